"""The machine underneath: memory, disk, files that survive a crash, signals, retries, text on a terminal.

May import: the root only (types, errors, units, events).
"""
