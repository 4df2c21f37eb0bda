"""Measure the memory of processes once a second, at little cost.

What counts is a process's part of all its pages (PSS). But the kernel walks them all to tell it, which takes
milliseconds; its private pages it has counted. They are what grows, so the rest is measured now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fineweb_shards.system.machine import private_memory_bytes, process_memory_bytes
from fineweb_shards.system.retry import Clock

_FIRST_AFTER_SECONDS = 1.0  # a process that has just started has not loaded its libraries yet
_EVERY_SECONDS = 15.0


@dataclass(slots=True)
class _Rest:
    """What a process has beside its private memory."""

    due: float  # when it is measured next
    bytes: int = 0


class ProcessMemory:
    """Measures processes, and remembers of each the memory that is not private."""

    def __init__(
        self,
        exact: Callable[[int], int | None] = process_memory_bytes,
        private: Callable[[int], int | None] = private_memory_bytes,
        clock: Clock | None = None,
    ) -> None:
        self._exact = exact
        self._private = private
        self._clock = clock or Clock()
        self._rests: dict[int, _Rest] = {}

    def measure(self, pid: int) -> int | None:
        """Return a process's memory; None if it has ended, or if that is not known."""
        private, now = self._private(pid), self._clock.now()
        if private is None:
            self._rests.pop(pid, None)
            return None
        rest = self._rests.setdefault(pid, _Rest(now + _FIRST_AFTER_SECONDS))
        if now >= rest.due:
            rest.due = now + _EVERY_SECONDS
            rest.bytes = (self._exact(pid) or private) - private
        return private + rest.bytes
