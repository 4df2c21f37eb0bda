"""Pure: encoded blocks in order become one token stream, mended at seams, split and cut into shards.

May import: the root, `tokenizers`. No I/O.
"""
