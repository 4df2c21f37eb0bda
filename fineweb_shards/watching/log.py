"""Write `.fineweb-shards/log.txt`: one line per event with its time, for a person to read the next morning.

Its size is bounded: a full log becomes `log.old.txt`, replacing the one before. It is not a checkpoint: a run
reads nothing back from it, and a failed write does not stop the run.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from pathlib import Path

from fineweb_shards.events import Event
from fineweb_shards.system.own_files import WORK_FOLDER, ForeignFileError, open_descriptor, open_own
from fineweb_shards.system.terminal import printable

FILE_NAME = "log.txt"
OLD_FILE_NAME = "log.old.txt"
MAXIMUM_BYTES = 2 * 2**20
_LINE_CHARACTERS = 2000
_KEPT_LINES = 1000  # in memory, while the disk is full


class EventLog:
    """The log of one output folder. May be used from any thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / WORK_FOLDER / FILE_NAME
        self._unwritten: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Append a line. If that fails, it is written together with the next one."""
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
        try:
            descriptor = self._open()
        except ForeignFileError as error:
            if error.errno != errno.EMLINK:
                raise
            descriptor = self._open_next()  # somebody keeps a hard link to it, which must not change
        try:
            if os.fstat(descriptor).st_size + len(data) > MAXIMUM_BYTES:
                full, descriptor = descriptor, self._open_next()
                os.close(full)
            written = os.write(descriptor, data)
            if written < len(data):  # the disk is full: remove the part, or it would be written twice
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                return
        finally:
            os.close(descriptor)
        self._unwritten.clear()

    def _open(self) -> int:
        return open_descriptor(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _open_next(self) -> int:
        self._path.replace(self._path.with_name(OLD_FILE_NAME))
        return self._open()


def last_lines(folder: Path, count: int) -> list[str]:
    """Read the last lines of the log; none if there is no log."""
    path = folder / WORK_FOLDER / FILE_NAME
    try:
        with open_own(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - count * (_LINE_CHARACTERS + 40)))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []
