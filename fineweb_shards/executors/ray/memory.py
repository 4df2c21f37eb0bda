"""Know roughly how much memory a run takes on a cluster, from what is at hand.

It is the sum of what the driver has, of what each process that encodes had at the end of its last task, and
of the tokens in the object stores. Ray's own processes and second copies in the stores are not in it. Nobody
is asked for it: the figures come with the results of tasks.
"""

from __future__ import annotations

import time

from fineweb_shards.system.machine import own_memory_bytes

_FORGET_AFTER_SECONDS = 60.0  # a process that had no task for so long is idle, or gone


class ClusterMemory:
    """The memory of all processes of a run, as far as it is known."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._processes: dict[str, tuple[int, float]] = {}  # bytes, and when it was noted

    def note(self, process: str, size_bytes: int) -> None:
        """Note what a process of a node had at the end of a task."""
        self._processes[process] = size_bytes, time.monotonic()

    def used_bytes(self, tokens_bytes: int) -> int:
        """Return what is used now, given the size of the tokens in the object stores."""
        since = time.monotonic() - _FORGET_AFTER_SECONDS
        processes = sum(size for size, noted in list(self._processes.values()) if noted > since)
        used = own_memory_bytes() + processes + tokens_bytes
        self.peak_bytes = max(self.peak_bytes, used)
        return used
