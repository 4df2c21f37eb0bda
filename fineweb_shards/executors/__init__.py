"""Tokenize batches: the interface of executors, their shared schedule, and `local`, for this machine.

May import: the root, `system`, `tokenizers`, `sources`, `stream`.
"""
