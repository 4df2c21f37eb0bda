"""`make bench-control`: how many tokens a second the control plane can order, for 2 to 128 workers.

Not every machine has 64 cores, so the workers are simulated: one process answers for all of them, at once,
without reading, encoding or writing anything. Everything else is the real thing: listing, schedule, pipes,
packer, files with their headers, names, manifest. The figure that counts is tokens per second of the parent's
processor time; wall time is bounded by the process that simulates, on another core.

    python benchmarks/control_plane.py [--workers 2 16 64 128] [--shards 40]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path

import numpy as np

from fineweb_shards.events import Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local import pool
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.executors.local.mailbox import Mailbox
from fineweb_shards.executors.local.messages import Done, Encoded, Errand, Ready, Returned, Written
from fineweb_shards.executors.task import WorkOrder, WriteOrder
from fineweb_shards.layouts import get_layout
from fineweb_shards.run.budget import MAXIMUM_WINDOW_BYTES
from fineweb_shards.run.config import Config
from fineweb_shards.sources import open_source
from fineweb_shards.sources.base import ReadSettings
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.output import Output, begin_output
from fineweb_shards.store.output_spec import OutputSpec
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.stream.stitcher import stitch
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.types import Batch, Cursor, EncodedBlock, KeptTokens
from fineweb_shards.units import show_count
from fineweb_shards.vocabulary import GPT2

BATCH_BYTES = 4 * 2**20
BATCH_TOKENS = 940_000  # FineWeb-Edu has 4.46 bytes a token
DOCUMENT_TOKENS = 1000
SHARD_TOKENS = 100_000_000
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
        self.waits: dict[str, str] = {}
        self.messages = 0

    def kill(self) -> None:
        self.pipe.close()

    def join(self) -> None:
        os.close(self._never)
        os.close(self.sentinel)


def simulate(pipes: list[connection.Connection]) -> None:
    """Answer every order at once, as a worker would that takes no time."""
    eots = np.arange(0, BATCH_TOKENS, DOCUMENT_TOKENS)
    mailbox = Mailbox()
    mailbox.add(*pipes)
    for pipe in pipes:
        pipe.send(Ready())
    while pipes:
        for pipe in mailbox.wait(60):
            assert isinstance(pipe, connection.Connection)
            try:
                order = pipe.recv()
            except (EOFError, OSError):
                mailbox.remove(pipe)
                pipes.remove(pipe)
                continue
            match order:
                case WorkOrder():
                    start, end = Cursor(0, order.batch.position), Cursor(0, order.batch.end)
                    tokens = KeptTokens(order.number, 0, BATCH_TOKENS)
                    pipe.send(Encoded(0, EncodedBlock(start, end, tokens, eots)))
                    pipe.send(Done())
                case WriteOrder():
                    *others, _ = order.placements
                    for _ in others:
                        pipe.send(Written(order.batch, order.block, placements=1, dropped=False))
                    pipe.send(Written(order.batch, order.block, placements=1, dropped=True))
                case Errand():
                    pipe.send(Returned(order.number, SHA256))


def list_batches(count: int) -> Iterator[Batch]:
    for number in range(count):
        yield Batch(0, number, number + 1, BATCH_BYTES)


def order_tokens(folder: Path, workers: int, shards: int) -> tuple[float, float]:
    """Run the control plane; return tokens a second of the parent's processor time, and of wall time."""
    pairs = [multiprocessing.Pipe() for _ in range(workers)]
    context = multiprocessing.get_context("fork")  # so that all pipes are inherited
    simulation = context.Process(target=simulate, args=([theirs for _, theirs in pairs],), daemon=True)
    simulation.start()
    for _, theirs in pairs:
        theirs.close()
    SimulatedWorker.ends = [ours for ours, _ in pairs]
    SimulatedWorker.simulation = simulation.pid or 0
    pool.WorkerProcess = SimulatedWorker  # type: ignore[misc, assignment]
    layout, rule = get_layout("build-nanogpt"), SplitRule(val_tokens=SHARD_TOKENS)
    output = OutputSpec(FolderStore(folder), layout, GPT2, SHARD_TOKENS, rule)
    settings = ReadSettings("text", "auto", BATCH_BYTES, False, GPT2)
    spec = WorkerSpec(open_source((), settings), "tiktoken", 0, output.shard_format, folder, 0)
    manifest = Manifest(
        Config(out=str(folder), input=("x",)).fingerprint(), [], {}, vocabulary=GPT2, digits=6
    )
    (folder / ".fineweb-shards").mkdir(parents=True)
    begin_output(FolderStore(folder), manifest)
    disk = Disk(folder, 0, Observer())
    packer = Packer(SHARD_TOKENS, split_rule=rule)
    batches = shards * SHARD_TOKENS // BATCH_TOKENS
    with LocalExecutor(
        spec, workers, MAXIMUM_WINDOW_BYTES * max(1, workers // 8), MemoryGuard(2**40)
    ) as executor:
        begin, used = time.monotonic(), time.process_time()
        with Output(output, manifest, executor, disk) as sink:
            for block in stitch(executor.encode(list_batches(batches)), _no_seam, Cursor(0, 0)):
                sink.add(block.tokens, packer.pack(block))
            sink.finish()
        seconds, used = time.monotonic() - begin, time.process_time() - used
        simulation.terminate()
    simulation.join()
    tokens = batches * BATCH_TOKENS
    return tokens / used, tokens / seconds


def _no_seam() -> None:
    raise AssertionError("there is no seam to mend")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 16, 64, 128])
    parser.add_argument("--shards", type=int, default=40, help="of 100M tokens each")
    options = parser.parse_args()
    print("| simulated workers | tokens ordered per second of the parent | per second of wall time |")
    print("|---|---|---|")
    for workers in options.workers:
        with tempfile.TemporaryDirectory() as folder:
            by_processor, by_clock = order_tokens(Path(folder) / "out", workers, options.shards)
        print(f"| {workers} | {show_count(by_processor)} | {show_count(by_clock)} |", flush=True)


if __name__ == "__main__":
    main()
