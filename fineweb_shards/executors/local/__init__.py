"""Worker processes on this machine: how they are started, spoken to, watched and ended.

May import: what `executors` may, and `executors` itself. What a worker gets to do is decided in schedule.py.
"""
