"""Workers that are killed, whatever they are doing: the run goes on with the same tokens."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.sources.source import Parts
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.types import Batch, Tokens
from tests.support import collecting, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_gzip, write_parquet
from tests.support.promises import Measure, Tries

PARENT = Path(__file__).parent / "orphan_parent.py"


def many_small(folder: Path) -> tuple[Parts, list[str]]:
    documents = make_documents(1500, seed=61)
    path = write_parquet(folder / "a.parquet", documents, 10)
    return runs.job_of(folder / "out", path, batch_bytes=1024).source, documents


def a_few_large(folder: Path) -> tuple[Parts, list[str]]:
    """Blocks that don't fit into a pipe, so that a worker waits in the middle of sending one."""
    documents = [" ".join(make_documents(150, seed=62 + i)) for i in range(60)]
    path = write_parquet(folder / "a.parquet", documents, 1)
    return runs.job_of(folder / "out", path, batch_bytes=1024).source, documents


def by_value(folder: Path) -> tuple[Parts, list[str]]:
    """Batches that carry their text, so that a worker waits in the middle of receiving one."""
    documents = [text for text in make_documents(3000, seed=63) if text and "<|endoftext|>" not in text]
    path = write_gzip(folder / "a.txt.gz", "<|endoftext|>".join(documents).encode())
    assert len(gzip.decompress(path.read_bytes())) > 20 * 65536
    return runs.job_of(folder / "out", path, batch_bytes=65536).source, documents


def batches_of(source: Parts, executor: LocalExecutor, victims: list[int]) -> Iterator[Batch]:
    """The last one not before somebody was killed and the end of it was noticed: on a busy machine the others might be
    through with everything until then."""
    *batches, last = source.batches(runs.START)
    yield from batches
    while not victims or victims[0] in [worker.pid for worker in executor._workers]:
        time.sleep(0.005)
    yield last


@pytest.mark.full(but=["encoding"])
@pytest.mark.promise("a worker's death never hangs the run")
@pytest.mark.parametrize(
    ("make", "longest_pause"), [(many_small, 0.3), (many_small, 0.0), (a_few_large, 0.2), (by_value, 0.01)],
    ids=["idle", "encoding", "sending", "receiving"],
)  # fmt: skip
def test_a_killed_worker_is_replaced(
    tmp_path: Path, make: object, longest_pause: float, tries: Tries, within: Measure
) -> None:
    """While it is idle, encoding, sending or receiving: same tokens, a new worker, and no hang."""
    source, documents = make(tmp_path)  # type: ignore[operator]
    expected = reference.stream(documents)
    chooser = random.Random(longest_pause)
    kills = iter(tries(1, 25))
    with LocalExecutor(runs.spec_of(source), 2, 10**6, MemoryGuard(2**40)) as executor:
        while (kill := next(kills, None)) is not None:
            parts: list[Tokens] = []
            victims: list[int] = []
            stream = collecting.encode(executor, batches_of(source, executor, victims))
            for number, block in enumerate(stream):
                parts.append(block.array)
                if number != 3:
                    continue
                time.sleep(chooser.uniform(0, longest_pause))
                victim = executor._workers[kill % 2].pid
                os.kill(victim, signal.SIGKILL)
                victims.append(victim)
                with within(5.0):
                    while victim in [worker.pid for worker in executor._workers]:
                        parts.append(next(stream).array)
            assert np.array_equal(np.concatenate(parts), expected)


@pytest.mark.promise("no orphans, nothing left in /dev/shm")
def test_no_orphans(tmp_path: Path, tries: Tries, within: Measure) -> None:
    """After kill -9 of the parent every worker ends, and nothing is left in /dev/shm."""
    path = write_parquet(tmp_path / "a.parquet", make_documents(200, seed=64), 10)
    shared = Path("/dev/shm")
    for number in tries(2, 20):
        before = set(shared.iterdir()) if shared.is_dir() else set()
        words = [sys.executable, str(PARENT), str(path), str(tmp_path / str(number))]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            workers = [int(word) for word in parent.stdout.readline().split()]
            assert len(workers) == 2
            time.sleep(random.Random(number).uniform(0, 0.1))
            parent.kill()
            with within(2.0):
                while any(is_running(pid) for pid in workers):
                    time.sleep(0.01)
        assert not {path for path in set(shared.iterdir()) - before if path.name.startswith(("psm_", "sem."))}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
