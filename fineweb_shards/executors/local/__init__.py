"""Run worker processes on this machine: start them, exchange messages with them, watch and end them.

May import: what `executors` may, and `executors` itself. Which worker gets what is decided in schedule.py.
"""
