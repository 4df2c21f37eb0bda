"""Peak memory of a process and all its children together, in PSS: shared pages are counted once."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def tree_of(root: int) -> list[int]:
    """`root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def process_memory_bytes(pid: int) -> int:
    """The PSS of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class PeakMemory:
    """Samples the tree of `root` twenty times a second, without this process itself."""

    def __init__(self, root: int) -> None:
        self.peak_bytes = 0
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.05):
            total = sum(process_memory_bytes(pid) for pid in tree_of(self._root))
            self.peak_bytes = max(self.peak_bytes, total)
