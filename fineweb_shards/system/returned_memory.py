"""Memory for what is fetched over the network, which goes back to the system when nobody needs it.

Many threads fetch, and malloc would keep a heap for each of them: 50 MB more in a worker.
"""

from __future__ import annotations

import mmap
import sys


def returned_memory(size_bytes: int) -> memoryview:
    """Return so much memory, to be written to."""
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, size_bytes))
    # Private, and all pages at once: a page fault for each takes a third more of the processor's time.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return memoryview(mmap.mmap(-1, size_bytes, flags=flags))
