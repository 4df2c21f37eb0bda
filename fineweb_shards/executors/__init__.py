"""Who does the tokenizing: the protocol, the schedule that all executors share, and `local`, this machine's.

May import: the root, `system`, `tokenizers`, `sources`.
"""
