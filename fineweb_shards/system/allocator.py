"""Make the memory that a worker frees stay with it for the next chunk.

Every chunk takes and frees the same few buffers of megabytes. By default each of them is taken from the
kernel and given back, and the kernel clears thousands of pages for every chunk: 7 % of the time for parquet.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

# glibc's names for mallopt(3). It accepts no larger MMAP_THRESHOLD than this.
_M_TRIM_THRESHOLD, _TRIM_BYTES = -1, 64 * 2**20
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 32 * 2**20


def keep_freed_memory() -> None:
    """Let this process keep up to 64 MiB of free memory, and Arrow take its memory from the same place."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        import pyarrow as pa  # here: only workers need it

        pa.set_memory_pool(pa.system_memory_pool())
