"""Run worker processes on this machine: start them, exchange messages with them, watch and end them.

Which worker gets what is decided in schedule.py.
"""
