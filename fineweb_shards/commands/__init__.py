"""The command line: one file per verb, with its flags (`add_flags`), its work (`run`) and what it prints.

Knows all rooms; no room knows it.
"""
