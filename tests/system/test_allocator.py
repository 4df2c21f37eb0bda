"""The allocator: what a process frees stays with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource
import numpy as np
from fineweb_shards.system.allocator import keep_freed_memory

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(2**21, np.uint32)
        np.ones(2**21 + 4096, np.uint32)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if KEEP:
    keep_freed_memory()
print(count_faults())
"""


def faults(*, keep: bool) -> int:
    words = [sys.executable, "-c", CODE.replace("KEEP", str(keep))]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only for glibc")
def test_freed_memory_is_used_again() -> None:
    """Buffers of megabytes, taken and freed again and again, are asked of the kernel less often."""
    assert faults(keep=True) < faults(keep=False)
