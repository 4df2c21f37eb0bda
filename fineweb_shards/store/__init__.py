"""Write and maintain the output folder: token files, the manifest, leftovers of killed runs, quarantine.

May import: the root, `system`, `stream`, `layouts`.
"""
