"""The supervisor: order, bounds, and workers that die."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_shards.errors import BadFileError, Interrupted, WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.local import executor as local
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.sources.source import Parts
from fineweb_shards.storage.place import InputFile
from fineweb_shards.system import memory_guard as guard
from fineweb_shards.system.machine import MemoryLimit
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.types import Batch, EncodedBlock, TextChunk
from tests.executors.faulty import with_format
from tests.support import collecting, reference, runs
from tests.support.documents import make_documents
from tests.support.doubles import Listener
from tests.support.inputs import write_parquet

DOCUMENTS = make_documents(400, seed=11)
WINDOW = 10**6


@pytest.fixture
def source(tmp_path: Path) -> Parts:
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    return runs.job_of(tmp_path / "out", path, batch_bytes=1024).source


def executor_of(source: Parts, workers: int, window: int = WINDOW, observer: Observer | None = None) -> LocalExecutor:
    return LocalExecutor(runs.spec_of(source), workers, window, MemoryGuard(2**40), observer=observer)


def tokens_of(blocks: list[EncodedBlock]) -> list[int]:
    return np.concatenate([block.array for block in blocks]).tolist()  # type: ignore[no-any-return]


EXPECTED = reference.stream(DOCUMENTS).tolist()


def test_blocks_come_in_order(source: Parts) -> None:
    """Three workers finish in any order; the stream is the reference's. And again with the same workers."""
    with executor_of(source, 3) as executor:
        for _ in range(2):
            assert tokens_of(list(collecting.encode(executor, source.batches(runs.START)))) == EXPECTED


@pytest.mark.full
def test_every_worker_killed_in_turn(source: Parts) -> None:
    """The run goes on with the same tokens, and says what happened."""
    blocks, listener = [], Listener()
    with executor_of(source, 2, observer=listener) as executor:
        for number, block in enumerate(collecting.encode(executor, source.batches(runs.START))):
            blocks.append(block)
            if number in (3, 9, 15, 21):
                worker = executor._workers[number // 6 % 2]
                os.kill(worker.pid, signal.SIGKILL)
    assert tokens_of(blocks) == EXPECTED
    # On a busy machine several kills may hit one worker before its end is noticed; the first one counts.
    assert 1 <= len(listener.texts("worker")) <= 4
    assert all("killed by signal 9; replaced" in line for line in listener.texts("worker"))


@pytest.mark.full
def test_all_workers_killed_at_once_and_while_starting(source: Parts) -> None:
    """Before they are ready and in the middle of the work."""
    blocks = []
    with executor_of(source, 2) as executor:
        os.kill(executor._workers[0].pid, signal.SIGKILL)
        for number, block in enumerate(collecting.encode(executor, source.batches(runs.START))):
            blocks.append(block)
            if number == 5:
                for worker in executor._workers:
                    os.kill(worker.pid, signal.SIGKILL)
    assert tokens_of(blocks) == EXPECTED


@pytest.mark.full
def test_workers_that_die_before_they_know_thousands_of_files(source: Parts) -> None:
    """A listing that fits into no pipe is on its way to them: one is replaced, and the others read it."""
    more = tuple(replace(source.files[0], index=number, name=f"{number:0100d}") for number in range(1, 5000))
    many = Parts((replace(source.parts[0], files=(*source.files, *more)),))
    with executor_of(many, 2) as executor:
        os.kill(executor._workers[1].pid, signal.SIGKILL)
        blocks = list(collecting.encode(executor, source.batches(runs.START)))
        os.kill(executor._workers[0].pid, signal.SIGSTOP)  # and one that reads nothing is no reason to wait
        executor._end(executor._workers[0])
    assert tokens_of(blocks) == EXPECTED


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_an_interruption_in_the_middle_of_a_message(source: Parts, tmp_path: Path) -> None:
    """What is placed is still written: by another worker, because nobody understands this one any more."""

    def stop_inside(pipe: Any) -> None:
        def receive() -> None:
            os.read(pipe.fileno(), 2)
            raise Interrupted("Interrupted.", 130)

        pipe.recv = receive

    expected = []
    path = tmp_path / "tokens"
    with executor_of(source, 2) as executor:
        stream = collecting.placed(executor, executor.encode([source.batches(runs.START)]), path)
        for _ in range(4):
            expected.append(len(next(stream).tokens))
        for worker in executor._workers:
            stop_inside(worker.pipe)
        with pytest.raises(Interrupted):
            expected.extend(len(block.tokens) for block in stream)
        held = [block for task in executor._schedule._unfinished.values() for block in task.held.values()]
        for write in [future for block in held for future in block.futures]:
            while not write.done():
                with contextlib.suppress(Interrupted):
                    executor.wait(write)
    tokens = np.fromfile(path, np.uint16).tolist()
    assert tokens == EXPECTED[: len(tokens)]
    assert len(tokens) == sum(expected)


class Deadly(ParquetFormat):
    """Crashes the worker that reads a certain row group."""

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        if batch.position == 20:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().chunks(file, batch)


class Raising(ParquetFormat):
    """Has a bug."""

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        if batch.position == 20:
            raise ZeroDivisionError("a bug")
        return super().chunks(file, batch)


@pytest.mark.full
def test_a_batch_that_kills_its_workers_is_given_up_with_its_place(source: Parts) -> None:
    """After three deaths and three more in careful mode, and everything in front of it has come out."""
    deadly = with_format(source, Deadly)
    blocks = []
    with executor_of(deadly, 2) as executor:
        stream = collecting.encode(executor, deadly.batches(runs.START))
        with pytest.raises(WorkerError, match=r"a\.parquet: 6 workers died while reading the batch at position 20"):
            blocks.extend(stream)
    assert tokens_of(blocks) == reference.stream(DOCUMENTS[:200]).tolist()


def test_a_bug_in_a_worker_is_told_with_its_traceback(source: Parts) -> None:
    """It is an error of ours, not of the user."""
    buggy = with_format(source, Raising)
    with executor_of(buggy, 1) as executor:
        stream = collecting.encode(executor, buggy.batches(runs.START))
        with pytest.raises(Exception, match=r"(?s)position 20: ZeroDivisionError: a bug.*Traceback"):
            list(stream)


@pytest.mark.full
def test_an_error_of_the_listing_comes_in_its_turn(source: Parts) -> None:
    """Batches listed before it are finished first."""

    def failing() -> Iterator[Batch]:
        for number, batch in enumerate(source.batches(runs.START)):
            if number == 12:
                raise BadFileError("b.parquet: broken.")
            yield batch

    blocks = []
    with executor_of(source, 2) as executor:
        stream = collecting.encode(executor, failing())
        with pytest.raises(BadFileError, match="broken"):
            blocks.extend(stream)
    assert len(blocks) == 12


@pytest.mark.full
def test_what_is_in_flight_is_bounded_in_bytes(source: Parts) -> None:
    """However slow the consumer and however many the workers, never more than the window and one batch."""
    batches = list(source.batches(runs.START))
    largest = max(batch.size_bytes for batch in batches)
    window = 3 * largest
    with executor_of(source, 3, window) as executor:
        for number, _ in enumerate(collecting.encode(executor, iter(batches))):
            assert executor._schedule.in_flight_bytes <= window + largest
            if number < 3:
                time.sleep(0.2)  # give workers every chance to run ahead


@pytest.mark.promise("short memory pauses the run")
def test_a_shortage_of_memory_pauses_the_run_and_takes_workers_away(
    source: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First no more work is given out, then workers go, largest first; afterwards it goes on, and says so."""
    monkeypatch.setattr(guard, "LOOK_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(local, "LOOK_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(guard, "RETIRE_AFTER_SECONDS", 0.2)
    room = {"available": 2**40}

    def read() -> guard.Reading:
        return [MemoryLimit("the machine", room["available"], 2**40)], 0.0

    class Relief(Listener):
        """Memory comes back when both workers are gone."""

        def tell(self, event: Event) -> None:
            super().tell(event)
            if len(self.texts("memory")) == 2:
                room["available"] = 2**40

    blocks, listener = [], Relief()
    watch = MemoryGuard(2**40, read, measure=lambda pid: 1000)
    with LocalExecutor(runs.spec_of(source), 2, WINDOW, watch, observer=listener) as executor:
        before = [worker.pid for worker in executor._workers]
        for number, block in enumerate(collecting.encode(executor, source.batches(runs.START))):
            blocks.append(block)
            if number == 5:
                room["available"] = 1
        after = [worker.pid for worker in executor._workers]
    assert tokens_of(blocks) == EXPECTED
    assert [cause for cause, _ in listener.waits] == ["memory", "memory"]
    assert "paused for memory since" in str(listener.waits[0][1])
    assert "the machine has 1 bytes of memory left" in str(listener.waits[0][1])
    assert listener.waits[1][1] is None
    assert all("memory stays short" in text for text in listener.texts("memory"))
    assert set(before).isdisjoint(after)
    assert len(after) == 2


@pytest.mark.full
@pytest.mark.promise("short memory pauses the run")
def test_a_worker_beyond_its_share_is_renewed_between_batches(source: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is done twice for it, and the stream is the same."""
    monkeypatch.setattr(guard, "LOOK_EVERY_SECONDS", 0.02)
    sizes: dict[int, int] = {}
    watch = MemoryGuard(1000, measure=lambda pid: sizes.get(pid, 0))
    listener = Listener()
    with LocalExecutor(runs.spec_of(source), 2, WINDOW, watch, observer=listener) as executor:
        grown = executor._workers[1].pid
        sizes[grown] = 2000
        limit = time.monotonic() + 300
        while grown in [worker.pid for worker in executor._workers]:
            assert time.monotonic() < limit
            assert tokens_of(list(collecting.encode(executor, source.batches(runs.START)))) == EXPECTED
    assert ["beyond its share" in text for text in listener.texts("memory")] == [True]
