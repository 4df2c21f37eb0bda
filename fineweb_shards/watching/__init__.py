"""A run as others see it: progress and time left, screen, log, heartbeat, history, `status`.

May import: everything but `report`, `run` and `commands`.
"""
