"""Access to the operating system: memory, disk, durable files, signals, retries, text on a terminal.

May import: the root only (types, errors, units, events).
"""
