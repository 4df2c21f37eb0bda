"""`.fineweb-shards/log.txt`: what happened and when, one line an event, to be read the next morning.

Bounded: a full log becomes `log.old.txt`, replacing the one before. It is an account, not a checkpoint:
nothing is ever read back from it, and a disk that can't take a line does not stop the run.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path

from fineweb_shards.events import Event
from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.system.terminal import printable

FILE_NAME = "log.txt"
OLD_FILE_NAME = "log.old.txt"
MAXIMUM_BYTES = 2 * 2**20
_LINE_CHARACTERS = 2000
_KEPT_LINES = 1000  # while the disk is full


class EventLog:
    """The log of one output folder. From any thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / WORK_FOLDER / FILE_NAME
        self._unwritten: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Append a line. What the disk can't take now is tried again with the next one."""
        text = printable(event.text).replace("\n", " | ")
        if len(text) > _LINE_CHARACTERS:
            text = text[: _LINE_CHARACTERS - 1] + "…"
        with self._lock:
            self._unwritten.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {event.kind:<10} {text}\n")
            try:
                self._flush()
            except OSError:
                return

    def _flush(self) -> None:
        data = "".join(self._unwritten).encode("utf-8", "replace")
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if os.fstat(descriptor).st_size + len(data) > MAXIMUM_BYTES:
                self._path.replace(self._path.with_name(OLD_FILE_NAME))
                os.close(descriptor)
                descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            written = os.write(descriptor, data)
            if written < len(data):  # a disk on the brink: no half line twice
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                return
        finally:
            os.close(descriptor)
        self._unwritten.clear()


def last_lines(folder: Path, count: int) -> list[str]:
    """The end of the log, or nothing where there is none."""
    path = folder / WORK_FOLDER / FILE_NAME
    if not path.is_file():  # a pipe in its place would be waited for
        return []
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - count * (_LINE_CHARACTERS + 40)))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []
