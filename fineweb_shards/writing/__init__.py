"""The control plane's side of writing: where tokens belong, when a checkpoint is recorded, what is named.

May import: everything down to `executors`, whose data plane does the work on files.
"""
