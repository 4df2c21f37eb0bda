"""Share a small value among the processes of a run: a JSON file that is read and changed under a lock.

For figures that only save time, such as how much of a quota is left. It is never synced, and where the file
can't be used (a folder that does not exist yet, a disk that is full), each process has a value of its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fineweb_shards.system.durable import lock_file
from fineweb_shards.system.own_files import open_own

_MOST_BYTES = 64 * 1024


class SharedValue:
    """A dictionary that processes and threads change one at a time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._own: dict[str, Any] = {}  # if there is no file
        self._lock = threading.Lock()  # a file lock is the process's, not the thread's

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Yield the value, and keep what it has been changed to. Keep it short: others wait."""
        with self._lock:
            file = self._open()
            if file is None:
                yield self._own
                return
            with file:
                lock_file(file)
                value = _read(file)
                yield value
                self._own = value
                _write(file, value)

    def _open(self) -> BinaryIO | None:
        if self._path is None:
            return None
        try:
            return open_own(self._path, "a+b", buffering=0)
        except OSError:
            return None


def _read(file: BinaryIO) -> dict[str, Any]:
    """Return the file's value; an empty one if it is new, or not ours."""
    try:
        file.seek(0)
        value = json.loads(file.read(_MOST_BYTES))
    except (ValueError, OSError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(file: BinaryIO, value: dict[str, Any]) -> None:
    try:
        file.truncate(0)
        file.write(json.dumps(value).encode())
    except OSError:
        pass  # a full disk: others will see an empty value, and learn it anew
