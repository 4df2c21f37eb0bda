"""What a build reads: files found by `--input`, or listed on the hub, each in its place and of its format.

May import: the root, `system`, `storage`, `formats`.
"""
