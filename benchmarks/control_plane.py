"""`make bench-control`: how many tokens a second the control plane can order, for 2 to 160 workers.

Not every machine has 64 cores, and few have a cluster on the desk, so the workers are simulated: they answer at once,
without reading, encoding or writing anything (simulated_workers.py, simulated_ray.py). Everything else is the real
thing: listing, executor, schedule, packer, files with their headers, names, manifest, and Ray itself. The figure that
counts is tokens per second of the parent's processor time; wall time is bounded by the processes that simulate.

    python benchmarks/control_plane.py [--workers 2 16 64 128 160] [--shards 40]
    python benchmarks/control_plane.py --executor ray --nodes 10 --cores 16 --sample default

    python benchmarks/control_plane.py --mix 3

With --mix it measures only the order of a mix by tokens, of so many parts: mixer and packer, with documents of 1,000
and of 100 tokens.

With --sample it orders all tokens of a sample of FineWeb-Edu: its files are in the manifest, which is saved with each
of its shards, and batches are those from the hub. With --done it is a resume after so many shards, which shows what the
last ones cost without ordering all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fineweb_edu import SAMPLES, SHARD_TOKENS, Sample
from simulated_workers import DOCUMENT_TOKENS, TEXT_BYTES_A_TOKEN, simulated_local

from fineweb_shards.events import Observer
from fineweb_shards.executors.base import Executor
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.layouts import get_layout
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import InputPart, Manifest, divide_settings
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.run.config import Config
from fineweb_shards.run.resources import MAXIMUM_WINDOW_BYTES
from fineweb_shards.sources.source import Parts, open_source
from fineweb_shards.stream.mix import Mixer, MixRule
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.stream.stitcher import add_cursors, mend_seams
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Batch, Counts, Cursor, HeldTokens, ShardRecord, Taken, TokenBlock
from fineweb_shards.units import show_bytes, show_count
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.writing.placement import Output, begin_output

BATCH_BYTES = 4 * 2**20
SPLIT_RULE = SplitRule(val_tokens=SHARD_TOKENS)


@dataclass(frozen=True, slots=True)
class Stream:
    """What there is to order: so many batches of so many tokens, in so many files."""

    files: int
    batches_a_file: int
    batch_tokens: int
    done_shards: int = 0

    @classmethod
    def of_shards(cls, shards: int) -> Stream:
        """Text in one file on the disk, for so many shards."""
        batch_tokens = round(BATCH_BYTES / TEXT_BYTES_A_TOKEN)
        return cls(1, shards * SHARD_TOKENS // batch_tokens, batch_tokens)

    @classmethod
    def of_sample(cls, sample: Sample) -> Stream:
        """A sample on the hub."""
        return cls(sample.files, sample.batches_a_file, sample.tokens // sample.batches)

    @property
    def batches(self) -> int:
        return self.files * self.batches_a_file

    @property
    def tokens(self) -> int:
        return self.batches * self.batch_tokens

    @property
    def batch_bytes(self) -> int:
        return round(self.batch_tokens * TEXT_BYTES_A_TOKEN)

    @property
    def start(self) -> Cursor:
        """Where the first token is that is not done."""
        batch, skip_tokens = divmod(self.done_shards * SHARD_TOKENS, self.batch_tokens)
        file, position = divmod(batch, self.batches_a_file)
        return Cursor(file, position, skip_tokens)

    @property
    def batches_left(self) -> int:
        return self.batches - self.start.file * self.batches_a_file - self.start.position

    @property
    def tokens_left(self) -> int:
        return self.tokens - self.done_shards * SHARD_TOKENS

    def list_batches(self) -> Iterator[Batch]:
        for batch in range(self.batches - self.batches_left, self.batches):
            file, number = divmod(batch, self.batches_a_file)
            yield Batch(file, number, number + 1, self.batch_bytes)

    def list_done(self) -> tuple[ShardRecord, ...]:
        """The shards that are done, as a manifest has them; all end where the last one does."""
        return tuple(
            ShardRecord(
                f"edufineweb_{'train' if shard else 'val'}_{shard:06d}.npy",
                "train" if shard else "val",
                0,
                SHARD_TOKENS,
                SHARD_TOKENS // DOCUMENT_TOKENS,
                2 * SHARD_TOKENS,
                f"{shard:064x}",
                (self.start,),
                Counts(),
            )
            for shard in range(self.done_shards)
        )

    def list_files(self) -> list[dict[str, object]]:
        """The files as a manifest has them."""
        return [
            {
                "name": f"data/CC-MAIN-2024-10/train-{file:05d}-of-{self.files:05d}.parquet",
                "size_bytes": 2_150_000_000,
                "content_hash": f"{file:064x}",
            }
            for file in range(self.files)
        ]


@dataclass(frozen=True, slots=True)
class Ordered:
    """What it took to order a stream."""

    tokens: int
    batches: int
    shards: int
    processor_seconds: float  # of the parent
    save_seconds: float  # of these, what the manifest took
    wall_seconds: float
    answers: int  # that the parent received: messages of processes, or ends of tasks
    peak_bytes: int  # of the parent

    def row(self, workers: int) -> str:
        cells = [
            f"{workers:,}",
            show_count(self.tokens),
            f"{self.shards:,}",
            show_count(self.tokens / self.processor_seconds),
            f"{self.processor_seconds / self.tokens * 1e9:.2f}",
            f"{(self.processor_seconds - self.save_seconds) / self.batches * 1e6:.0f}",
            f"{self.save_seconds / self.shards * 1e3:.1f}",
            show_count(self.tokens / self.wall_seconds),
            f"{self.answers:,}",
            show_bytes(self.peak_bytes),
        ]
        return f"| {' | '.join(cells)} |"


HEAD = """\
| simulated workers | tokens | shards | tokens ordered per second of the parent | ns a token | µs a batch | \
ms a save | tokens per second of wall time | answers | peak memory of the parent |
|---|---|---|---|---|---|---|---|---|---|"""


class TimedOutput(Output):
    """An output that measures the processor time of saving the manifest, without that of other threads."""

    save_seconds = 0.0

    def _save(self, manifest: Manifest) -> None:
        begin = time.thread_time()
        super()._save(manifest)
        self.save_seconds += time.thread_time() - begin


@dataclass(frozen=True, slots=True)
class Workers:
    """Who does the work: processes, or tasks on so many nodes of Ray."""

    nodes: int  # 0: without Ray
    cores: int  # of a node

    @property
    def count(self) -> int:
        return max(1, self.nodes) * self.cores

    def open(
        self, spec: WorkerSpec, stream: Stream
    ) -> contextlib.AbstractContextManager[tuple[Executor, Callable[[], int]]]:
        """The executor, and a function that says how many answers it has received."""
        if self.nodes:
            from simulated_ray import simulated_ray  # Ray is an extra

            return simulated_ray(spec, self.nodes, self.cores)
        return simulated_local(spec, self.cores, max(MAXIMUM_WINDOW_BYTES, 4 * self.cores * stream.batch_bytes))


def order_stream(folder: Path, workers: Workers, stream: Stream) -> Ordered:
    """Run the control plane over a stream, with an output in `folder`."""
    layout = get_layout("build-nanogpt")
    output = OutputSpec(FolderStore(folder), layout, GPT2, SHARD_TOKENS, SPLIT_RULE)
    settings = ReadSettings("text", "auto", BATCH_BYTES, False, GPT2)
    spec = WorkerSpec(Parts((open_source((), settings),)), "tiktoken", 0, output.shard_format, output.store, 0)
    common, own = divide_settings(Config(out=str(folder), input=("x",)).fingerprint())
    parts = (InputPart(own, stream.list_files()),)
    manifest = Manifest(common, parts, {}, shards=stream.list_done(), vocabulary=GPT2, digits=6)
    (folder / ".fineweb-shards").mkdir(parents=True)
    begin_output(FolderStore(folder), manifest)
    with workers.open(spec, stream) as (executor, count_answers):
        return _order(stream, output, manifest, executor, count_answers)


def _order(
    stream: Stream, output: OutputSpec, manifest: Manifest, executor: Executor, count_answers: Callable[[], int]
) -> Ordered:
    start = stream.start
    packer = Packer(SHARD_TOKENS, split_rule=SPLIT_RULE, done=manifest.done, starts=(start,))
    disk = Disk(output.folder, 0, Observer())
    begin, used = time.monotonic(), time.process_time()
    with TimedOutput(output, manifest, executor, disk) as sink:
        for block in add_cursors(mend_seams(executor.encode([stream.list_batches()]), _no_seam), (start,)):
            section = Section.of(block)
            sink.add(section, packer.pack(section))
        finished = sink.finish()
    seconds, used = time.monotonic() - begin, time.process_time() - used
    assert finished.tokens == stream.tokens
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shards = finished.shard_count - stream.done_shards
    return Ordered(
        stream.tokens_left, stream.batches_left, shards, used, sink.save_seconds, seconds, count_answers(), peak_bytes
    )


def mix_parts(parts: int, document_tokens: int, tokens: int) -> tuple[float, int]:
    """Order a stream of `tokens` tokens from so many parts of different weights, a batch of the part that is waited for
    at a time. Returns the processor time per token, in ns, of mixer and packer, and how many ranges of blocks there
    are."""
    rule = MixRule(tuple(1 + 2 * part for part in range(parts)))
    starts = (Cursor(0, 0),) * parts
    mixer = Mixer(rule, starts, [0] * parts, eot_first=True)
    packer = Packer(SHARD_TOKENS, split_rule=SPLIT_RULE, starts=starts, taken=(Taken(),) * parts, max_tokens=tokens)
    generator = np.random.default_rng(0)
    batch_tokens = round(BATCH_BYTES / TEXT_BYTES_A_TOKEN)
    # A document is cut at the end of each block. The blocks are made before the clock starts; they differ.
    kinds = []
    for _ in range(8):
        lengths = 1 + generator.integers(2 * document_tokens - 1, size=2 * batch_tokens // document_tokens)
        eots = np.cumsum(lengths) - generator.integers(document_tokens)
        kinds.append(eots[(eots >= 0) & (eots < batch_tokens)])
    numbers = [0] * parts
    ranges, used = 0, time.process_time()
    while not packer.ended:
        part = mixer.next_part
        number = numbers[part]
        numbers[part] += 1
        mixer.add(
            TokenBlock(
                Cursor(0, number, 0, number > 0), Cursor(0, number + 1, 0, True), HeldTokens(number, 0, batch_tokens),
                kinds[number % len(kinds)] if number else np.concatenate([[0], kinds[0][kinds[0] > 0]]), part=part,
                ends_mid_document=True,
            )
        )  # fmt: skip
        while (section := mixer.take()) is not None:
            ranges += sum(len(one.ranges) for one in packer.pack(section))
    return (time.process_time() - used) / tokens * 1e9, ranges


def _no_seam() -> None:
    raise AssertionError("there is no seam to mend")


def _measure(workers: Workers, stream: Stream) -> Ordered:
    with tempfile.TemporaryDirectory() as folder:
        return order_stream(Path(folder) / "out", workers, stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", type=int, metavar="PARTS", help="measure only the order of a mix of so many parts")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 16, 64, 128, 160])
    parser.add_argument("--shards", type=int, default=40, help="of 100M tokens each")
    parser.add_argument("--sample", choices=SAMPLES, help="order all of this instead of --shards")
    parser.add_argument("--done", type=int, default=0, help="shards that an earlier run has finished")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--nodes", type=int, default=10, help="of Ray, that the driver believes in")
    parser.add_argument("--cores", type=int, default=16, help="of such a node")
    options = parser.parse_args()
    if options.mix:
        print("| parts | tokens per document | ns a token | ranges |\n|---|---|---|---|")
        for document_tokens in (1000, 100):
            nanoseconds, ranges = mix_parts(options.mix, document_tokens, options.shards * SHARD_TOKENS // 10)
            print(f"| {options.mix} | {document_tokens:,} | {nanoseconds:.2f} | {ranges:,} |")
        return
    sample = SAMPLES.get(options.sample)
    stream = Stream.of_sample(sample) if sample else Stream.of_shards(options.shards)
    stream = replace(stream, done_shards=options.done)
    choices = [Workers(0, count) for count in options.workers]
    if options.executor == "ray":
        choices = [Workers(options.nodes, options.cores)]
    print(HEAD)
    for workers in choices:
        # Each in a process of its own, whose peak of memory is that of one measurement.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as one:
            print(one.submit(_measure, workers, stream).result().row(workers.count), flush=True)


if __name__ == "__main__":
    main()
