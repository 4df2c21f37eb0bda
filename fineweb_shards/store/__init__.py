"""The output folder: files being written, the manifest, what a killed run leaves, documents left out.

May import: the root, `system`, `stream`, `layouts`.
"""
