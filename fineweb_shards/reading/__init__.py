"""Finished shards read back: verified, counted, inspected, sampled, streamed.

May import: the root, `system`, `tokenizers`, `layouts`, `stream`, `store`.
"""
