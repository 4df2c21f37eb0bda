"""Read finished shards: verify, count, inspect and sample them, or stream their tokens.

May import: the root, `system`, `tokenizers`, `layouts`, `stream`, `store`.
"""
