"""A thread that fails, whichever it is: the run ends with a sentence or goes on, and never hangs."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fineweb_shards
from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors import task
from fineweb_shards.executors.local import pool, worker
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.output import shard_files
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.reading import verify
from fineweb_shards.sources.source import Parts
from fineweb_shards.system.background import in_background
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.types import Batch
from tests.executors import faulty
from tests.support import collecting, reference, runs
from tests.support.documents import make_documents
from tests.support.doubles import Listener
from tests.support.inputs import write_parquet, write_text

DOCUMENTS = make_documents(400, seed=11)
EXPECTED = reference.stream(DOCUMENTS).tolist()

# Every place where the package starts threads, each with a test below or, for the monitor, in
# tests/watching/test_monitor.py, for what is read ahead in tests/storage/test_read_ahead.py, for a bucket's lock in
# tests/output/test_bucket_lock.py, for waits before a run in tests/watching/test_status.py. Of a worker's actions,
# `write_blocks` and `finish_files` are in test_unwritten.py.
INVENTORY = {
    "api/process.py": 1,  # its end is told, however it ends
    "executors/local/pool.py": 1,
    "executors/local/worker.py": 1,
    "storage/streams.py": 1,
    "output/bucket_work_folder.py": 1,
    "system/background.py": 2,  # both raise, where it is asked for, what a thread has raised
    "system/signals.py": 2,  # one watches the caller of the library, one signals again
    "watching/monitor.py": 2,  # with the reporter
}


def test_every_thread_we_start_is_in_the_inventory() -> None:
    """A new thread comes with a test of what happens when it fails."""
    root = Path(fineweb_shards.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        starts = re.findall(r"\b(?:Thread|ThreadPoolExecutor|Timer)\(", path.read_text("utf-8"))
        if starts:
            found[path.relative_to(root).as_posix()] = len(starts)
    assert found == INVENTORY


def test_every_action_of_a_workers_threads_is_known() -> None:
    """They are all started in one place, which ends the worker if one fails."""
    text = Path(worker.__file__).read_text("utf-8")
    started = re.findall(r"_start_thread\(outbox, (\w+)\)", text)
    assert started == ["die_with_parent", "action"]
    (actions,) = re.findall(r"for action in \((.*)\):\n        _start_thread", text)
    assert actions == "worker.receive_orders, worker.write_blocks, worker.finish_files"


@pytest.fixture
def source(tmp_path: Path) -> Parts:
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    return runs.job_of(tmp_path / "out", path, batch_bytes=1024).source


def encode(source: Parts, batches: Iterator[Batch]) -> tuple[list[int], Listener]:
    listener = Listener()
    with LocalExecutor(runs.spec_of(source), 2, 10**6, MemoryGuard(2**40), observer=listener) as executor:
        blocks = list(collecting.encode(executor, batches))
    return np.concatenate([block.array for block in blocks]).tolist(), listener


@pytest.mark.full
@pytest.mark.promise("a worker's death never hangs the run")
def test_a_prefetch_that_fails_costs_nothing(source: Parts) -> None:
    """The batch is read without it: the same tokens, and the log says what failed."""
    broken = faulty.with_format(source, faulty.FailingPrefetch)
    tokens, listener = encode(broken, broken.batches(runs.START))
    assert tokens == EXPECTED
    told = listener.texts("worker")
    assert 1 <= len(told) <= 2  # once from each worker, not once a batch
    assert "a.parquet" in told[0]
    assert "ValueError: Retry-After: 1.5" in told[0]


@pytest.mark.full(but=["exit"])
@pytest.mark.promise("a worker's death never hangs the run")
@pytest.mark.parametrize("fault", ["exit", "order"])
def test_a_receiver_that_fails_ends_its_worker(source: Parts, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a worker that is alive and deaf: it ends, and after some tries the run does, with the place."""
    monkeypatch.setattr(task, "MAXIMUM_DEATHS", 1)
    if fault == "exit":
        source = faulty.with_format(source, faulty.ExitingPrefetch)
    batches = source.batches(runs.START)
    with pytest.raises(WorkerError, match=r"a\.parquet: 2 workers died while reading the batch at position 0"):
        encode(source, faulty.mined(batches) if fault == "order" else batches)


@pytest.mark.full
@pytest.mark.promise("no orphans, nothing left in /dev/shm")
def test_a_worker_that_cannot_watch_its_parent_ends(source: Parts) -> None:
    """It would be an orphan one day."""
    blind = faulty.with_format(source, faulty.BlindToItsParent)
    with pytest.raises(WorkerError, match=r"Workers die before they are ready: the last one .* thread"):
        encode(blind, blind.batches(runs.START))


@pytest.mark.full
@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), SystemExit(0), KeyboardInterrupt()])
def test_a_listing_that_fails_ends_the_run(source: Parts, error: BaseException) -> None:
    """With what it raised, whatever that is; not with silence, and not with exit code 0."""

    def failing() -> Iterator[Batch]:
        yield next(source.batches(runs.START))
        raise error

    with pytest.raises(ZeroDivisionError if isinstance(error, Exception) else ShardError) as caught:
        encode(source, failing())
    assert type(error).__name__ in repr(caught.value)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_listing_that_ends_without_a_word_ends_the_run(source: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the thread can't say that it has failed."""

    def refuse(self: object) -> None:
        raise SystemExit  # threads pass over it in silence

    monkeypatch.setattr("fineweb_shards.executors.scheduled_executor.Producer._run", refuse)
    with pytest.raises(ShardError, match="listing"):
        encode(source, source.batches(runs.START))


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(0)])
def test_background_work_that_fails_is_somebodys(error: BaseException) -> None:
    """Downloads, ranges, listings: whoever asks for the result gets the error."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        in_background(fail).result(60)


def _fail(*arguments: object) -> None:
    raise ZeroDivisionError("hash")


def test_an_export_whose_thread_fails_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was not hashed and synced gets into the manifest; the next try has the same bytes."""
    path = write_text(tmp_path / "a.txt", [text for text in DOCUMENTS if text])
    texts = [text for text in path.read_text().split("<|endoftext|>") if text]
    runs.build_inline(tmp_path / "whole", path, shard_tokens=10**6)
    out = tmp_path / "out"
    with monkeypatch.context() as broken:
        broken.setattr(shard_files, "read_contents", _fail)
        with pytest.raises(ZeroDivisionError, match="hash"):
            runs.export(tmp_path / "whole", out, layout="build-nanogpt", shard_tokens=4000)
    assert not runs.shards_in(out)
    runs.export(tmp_path / "whole", out, layout="build-nanogpt", shard_tokens=4000)
    assert runs.shards_in(out) == reference.shard_files(reference.stream(texts), 4000)


@pytest.mark.parametrize("verb", ["verify", "export"])
def test_a_check_that_fails_ends_its_verb(tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that was not checked does not count as checked."""
    path = write_text(tmp_path / "a.txt", [text for text in DOCUMENTS if text])
    runs.build_inline(tmp_path / "out", path, shard_tokens=4000)

    def fail(*arguments: object, **settings: object) -> None:
        raise ZeroDivisionError("check")

    monkeypatch.setattr(verify, "check_segment", fail)
    check: Callable[[], object] = partial(verify.verify_folder, FolderStore(tmp_path / "out"))
    if verb == "export":
        check = partial(runs.export, tmp_path / "out", tmp_path / "copy", layout="llm.c", shard_tokens=4000)
    with pytest.raises(ZeroDivisionError):
        check()


@pytest.mark.full
def test_a_watch_that_fails_is_told_and_goes_on(source: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often it fails; the run does not notice."""
    looked = threading.Event()

    def fail(pid: int) -> None:
        looked.set()
        raise SystemExit

    monkeypatch.setattr(pool, "WATCH_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(pool, "process_life", fail)

    def patient() -> Iterator[Batch]:
        for number, batch in enumerate(source.batches(runs.START)):
            if number == 3:
                assert looked.wait(60)
            yield batch

    tokens, listener = encode(source, patient())
    assert tokens == EXPECTED
    assert listener.texts("worker") == ["the watchdog of the workers failed: SystemExit: "]
