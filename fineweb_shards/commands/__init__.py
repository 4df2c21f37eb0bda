"""The command line: one file per verb, with its flags and what it prints.

Knows all rooms; no room knows it.
"""
