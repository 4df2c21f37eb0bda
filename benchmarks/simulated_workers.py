"""Worker processes of the local executor, simulated: one process answers for all of them, at once.

It reads, encodes and writes nothing. The executor, its schedule and its pipes are the real ones.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import selectors
from collections.abc import Callable, Iterator
from multiprocessing import connection

import numpy as np

from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local import executor as local_executor
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.executors.messages import (
    Done,
    Encoded,
    FileOrder,
    FileResult,
    Signal,
    WorkOrder,
    WriteOrder,
    Written,
)
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.types import Batch, Cursor, EncodedBlock, HeldTokens

TEXT_BYTES_A_TOKEN = 4.46  # of FineWeb-Edu
DOCUMENT_TOKENS = 1000
SHA256 = "0" * 64


class SimulatedWorker:
    """In the place of a WorkerProcess: the parent's end of a pipe to the simulation."""

    ends: list[connection.Connection]  # prepared before the simulation was started
    simulation = 0  # its process id

    def __init__(self, spec: bytes) -> None:
        self.pipe = SimulatedWorker.ends.pop()
        self.sentinel, self._never = os.pipe()
        self.pid = SimulatedWorker.simulation
        self.ready = self.leaving = False
        self.messages = 0

    def kill(self) -> None:
        self.pipe.close()

    def join(self) -> None:
        os.close(self._never)
        os.close(self.sentinel)


@contextlib.contextmanager
def simulated_local(
    spec: WorkerSpec, workers: int, window_bytes: int
) -> Iterator[tuple[LocalExecutor, Callable[[], int]]]:
    """A LocalExecutor whose workers take no time, and a function that counts their messages."""
    pairs = [multiprocessing.Pipe() for _ in range(workers)]
    context = multiprocessing.get_context("fork")  # so that all pipes are inherited
    ends = [theirs for _, theirs in pairs]
    simulation = context.Process(target=simulate, args=(ends,), daemon=True)
    simulation.start()
    for theirs in ends:
        theirs.close()
    SimulatedWorker.ends = [ours for ours, _ in pairs]
    SimulatedWorker.simulation = simulation.pid or 0
    local_executor.WorkerProcess = SimulatedWorker  # type: ignore[misc, assignment]
    with LocalExecutor(spec, workers, window_bytes, MemoryGuard(2**40)) as executor:
        yield executor, lambda: sum(worker.messages for worker in executor._workers)
        simulation.terminate()
    simulation.join()


def simulate(pipes: list[connection.Connection]) -> None:
    """Answer every order at once, as a worker would that takes no time."""
    selector = selectors.DefaultSelector()
    for pipe in pipes:
        selector.register(pipe, selectors.EVENT_READ)
        pipe.send(Signal.READY)
    while pipes:
        for key, _ in selector.select(60):
            pipe = key.fileobj
            assert isinstance(pipe, connection.Connection)
            try:
                order = pipe.recv()
            except (EOFError, OSError):
                selector.unregister(pipe)
                pipes.remove(pipe)
                continue
            match order:
                case WorkOrder():
                    pipe.send(Encoded(0, encoded_block(order.batch, order.number)))
                    pipe.send(Done())
                case WriteOrder():
                    *others, _ = order.placements
                    for _ in others:
                        pipe.send(Written(order.batch, order.block, placements=1, dropped=False))
                    pipe.send(Written(order.batch, order.block, placements=1, dropped=True))
                case FileOrder():
                    pipe.send(FileResult(order.number, SHA256))


def encoded_block(batch: Batch, number: int) -> EncodedBlock:
    """What is told of a batch when it is encoded: where it begins and ends, and where its documents begin."""
    batch_tokens = round(batch.size_bytes / TEXT_BYTES_A_TOKEN)
    start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
    eots = np.arange(0, batch_tokens, DOCUMENT_TOKENS)
    return EncodedBlock(start, end, HeldTokens(number, 0, batch_tokens), eots)
