"""Who does the tokenizing: batches in, their blocks out, in order. `local.py` is this machine."""
