"""Keep bytes where several processes can read them: in a file without a name, in memory.

Through a pipe, text costs a third as much as its encoding: it is copied six times, and both sides wait for
each other. Of these bytes only a descriptor is passed on. No process's own memory (PSS) includes them, but
that of the machine and of the control group does. Where there are no such files, pickling copies the bytes.
"""

from __future__ import annotations

import os
import sys
import weakref


class SharedBytes:
    """Bytes that are dropped when no process holds them. A pickled copy is given their descriptor, if they
    have one, by `attach`: pickling can't do that."""

    def __init__(self, data: bytes | memoryview) -> None:
        """Store a copy of the data."""
        self._size_bytes = len(data)
        self._own: bytes | None = None  # the bytes, if they are in no file
        self._descriptor: int | None = None
        try:
            self.attach(_make_file())
            _write_all(self.descriptor, memoryview(data))
        except OSError:  # not Linux, no memory left for it, or too many open files
            self._own = bytes(data)

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_descriptor": None}

    def by_value(self) -> SharedBytes:
        """Return a copy that holds the bytes itself, for a process on another machine."""
        copy = SharedBytes.__new__(SharedBytes)
        copy._size_bytes, copy._own, copy._descriptor = self._size_bytes, self.read(), None
        return copy

    @property
    def has_descriptor(self) -> bool:
        """Whether the bytes are in a file, and not in this object."""
        return self._own is None

    @property
    def descriptor(self) -> int:
        """The file with the bytes."""
        assert self._descriptor is not None, "a pickled copy was given no descriptor"
        return self._descriptor

    def attach(self, descriptor: int) -> None:
        """Read from this descriptor from now on. It is closed when this object is not used any more."""
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self) -> bytes:
        """Return the bytes."""
        if self._own is not None:
            return self._own
        data = os.pread(self.descriptor, self._size_bytes, 0)
        assert len(data) == self._size_bytes, "nobody changes it after it was written"
        return data


def _make_file() -> int:
    if sys.platform != "linux":
        raise OSError("only Linux has files without a name in memory")
    return os.memfd_create("fineweb-shards")


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:  # a write may be short
        data = data[os.write(descriptor, data) :]
