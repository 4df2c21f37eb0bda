"""Bytes and small values shared between processes, and buffers whose memory returns to the system at once."""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fineweb_shards.system.durable import lock_file
from fineweb_shards.system.json_values import parse_object
from fineweb_shards.system.own_files import open_own


class SharedBytes:
    """Bytes in an anonymous in-memory file (memfd) that several processes can read.

    Sending text through a pipe costs a third as much as encoding it: it is copied six times, and both sides wait for
    each other. Here only a descriptor is sent; a pickled copy gets it from `attach`, because pickling can't transfer
    it. The memory is freed when no process has it open. It counts for the machine and the control group, but not for
    any process (PSS). Without memfd, pickling copies the bytes.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._size_bytes = len(data)
        self._own: bytes | None = None  # the bytes, if they are not in a file
        self._descriptor: int | None = None
        if sys.platform == "linux":
            try:
                self.attach(os.memfd_create("fineweb-shards"))
                view = memoryview(data)
                while view:  # a write may be short
                    view = view[os.write(self.descriptor, view) :]
                return
            except OSError:  # no memory left, or too many open files
                pass
        self._own = bytes(data)

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_descriptor": None}

    def by_value(self) -> SharedBytes:
        """Return a copy that contains the bytes, for a process on another machine."""
        copy = SharedBytes.__new__(SharedBytes)
        copy._size_bytes, copy._own, copy._descriptor = self._size_bytes, self.read(), None
        return copy

    @property
    def has_descriptor(self) -> bool:
        return self._own is None

    @property
    def descriptor(self) -> int:
        assert self._descriptor is not None, "a pickled copy needs `attach` first"
        return self._descriptor

    def attach(self, descriptor: int) -> None:
        """Read from this descriptor from now on. It is closed with this object."""
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self) -> bytes:
        if self._own is not None:
            return self._own
        data = os.pread(self.descriptor, self._size_bytes, 0)
        assert len(data) == self._size_bytes, "the file must not change after it was written"
        return data


class SharedValue:
    """A small dictionary in a JSON file that processes and threads change one at a time.

    It is for figures that only save time, such as the rest of a quota: it is never synced, and where the file can't be
    used (no such folder yet, a full disk), each process has a dictionary of its own.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._own: dict[str, Any] = {}  # if there is no file
        self._lock = threading.Lock()  # a file lock is the process's, not the thread's

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """Yield the dictionary and keep its changes. Be quick: others wait."""
        with self._lock:
            try:
                file = None if self._path is None else open_own(self._path, "a+b", buffering=0)
            except OSError:
                file = None
            if file is None:
                yield self._own
                return
            with file:
                lock_file(file)
                try:
                    file.seek(0)
                    value = parse_object(file.read(64 * 1024))
                except (ValueError, OSError):  # the file is new, or not ours
                    value = {}
                yield value
                self._own = value
                # On a full disk others see an empty dictionary and measure again.
                with suppress(OSError):
                    file.truncate(0)
                    file.write(json.dumps(value).encode())


def mmap_buffer(size_bytes: int) -> memoryview:
    """Return `size_bytes` of memory for fetched data; freeing it returns it to the system.

    malloc would keep a heap for each of the many fetching threads: a run from the hub took 1.0 GB instead of 0.78.
    """
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, size_bytes))
    # Private, with all pages at once: getting and filling 8 MiB takes 2.4 ms; with a page fault for each page 4.8 ms,
    # and if shared as well 6.6 ms.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return memoryview(mmap.mmap(-1, size_bytes, flags=flags))
