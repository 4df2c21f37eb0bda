"""Tokenize batches: the interface of executors, their shared schedule, and `local`, for this machine."""
