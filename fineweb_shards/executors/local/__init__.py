"""Worker processes on this machine: pipes, process ids, the watchdog.

May import: what `executors` may.
"""
