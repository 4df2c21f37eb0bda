"""What input files contain, and how documents are read from it. Where the bytes come from is for `storage`.

May import: the root, `system`, `storage`, `tokenizers` (for where a long text may be cut).
"""
