"""The stream of a build: from batches of the input to sections in order.

source ──► executor ──► stitcher ──► length limits ──► mix
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

from fineweb_shards.events import Event
from fineweb_shards.executors.base import Executor, Lane, choose_first
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.run.job import Job
from fineweb_shards.stream.length_limits import leave_out
from fineweb_shards.stream.mix import Mixer, mix
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.stitcher import add_cursors, mend_seams
from fineweb_shards.system.durable import write_file
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.retry import Disk
from fineweb_shards.tokenizers.encoder import make_mender
from fineweb_shards.types import Cursors, EncodedBlock, Quarantined, ShardSlice, Taken, TokenBlock
from fineweb_shards.units import show_count
from fineweb_shards.watching.progress import Progress
from fineweb_shards.writing.piles import PileOutput
from fineweb_shards.writing.placement import Output

QUARANTINE_NAME = "quarantine.jsonl"  # in the work folder
# A guess for English, weighted as if it had been measured on this many bytes of each part: files for validation give no
# tokens that a mix counts, and the first documents may all be left out.
_TOKENS_PER_BYTE, _GUESSED_BYTES = 0.2, 2**20
_EARLY_SHARE = 0.9  # a part that has less than this share of its planned tokens is reported


def write_stream(
    sections: Iterable[Section], packer: Packer, output: Output | PileOutput, on_slice: Callable[[ShardSlice], None]
) -> None:
    """Cut a stream into slices and have them written; `on_slice` is called before each is placed."""

    def watched(slices: Iterable[ShardSlice]) -> Iterator[ShardSlice]:
        for part in slices:
            on_slice(part)
            yield part

    for section in sections if not packer.ended else ():
        output.add(section, watched(packer.pack(section)))
        if packer.ended:
            return


class Running:
    """A running build. `begun` is the manifest with which this run began."""

    def __init__(self, job: Job, begun: Manifest, executor: Executor, progress: Progress) -> None:
        self.job = job
        self.begun = begun
        self.executor = executor
        self.progress = progress
        self.disk = Disk(job.folder, job.config.max_outage, progress)
        self._quarantined = list(begun.quarantined)

    def add_totals(self, manifest: Manifest) -> Manifest:
        """Add the figures about the work so far. The time excludes waits."""
        return replace(
            manifest,
            quarantined=tuple(self._quarantined),
            seconds=self.begun.seconds + self.progress.work_seconds,
            peak_memory_bytes=max(self.begun.peak_memory_bytes, self.executor.peak_bytes),
        )

    @contextlib.contextmanager
    def open_stream(
        self, starts: Cursors, taken: Sequence[Taken], on_idle: Callable[[], None], wanted: Callable[[], int | None]
    ) -> Iterator[Iterator[Section]]:
        """Yield the sections of the stream from `starts` on. A mix had `taken` this much of each part before."""
        job, mixer = self.job, None
        listings, choose = [job.source.batches(starts)], choose_first
        if job.config.mix is not None:
            before, val_files = [one.tokens for one in taken], job.output.split_rule.val_files
            mixer = Mixer(job.config.mix, starts, before, eot_first=job.layout.eot_first, val_files=val_files)
            listings = job.source.listings(starts)
            choose = partial(choose_listing, mixer, job.config.mix.weights, taken)
        # on_idle records what is written even while no blocks come: an outage may be long.
        encoding = self.executor.encode(listings, on_idle, wanted, choose)
        with contextlib.closing(encoding) as encoded:
            told = report_problems(encoded, job, self._quarantined, self.disk, self.progress)
            mended = mend_seams(told, partial(make_mender, job.vocabulary))
            if any(job.length_limits):
                mended = leave_out(mended, job.length_limits, starts, eot_first=job.layout.eot_first)
            blocks = add_cursors(mended, starts)
            if mixer is None:
                yield map(Section.of, blocks)
            else:
                yield mix(_note_ends(blocks, mixer, job, self.begun, self.progress), mixer)


def report_problems(
    blocks: Iterable[EncodedBlock], job: Job, quarantined: list[Quarantined], disk: Disk, progress: Progress
) -> Iterator[EncodedBlock]:
    """Pass blocks on, report problems of their input, and add documents left out to `quarantined`. These are also in
    `quarantine.jsonl`, for people (a resume reads the manifest), in ASCII, so that `cat` is safe."""
    work = job.folder / WORK_FOLDER

    def file_name(document: Quarantined) -> str:
        return job.source.parts[document.part].file(document.file).name

    for block in blocks:
        for problem in block.problems:
            progress.tell(Event("note", f"note: {problem}"))
        for document in block.quarantined:
            quarantined.append(document)
            place = f"row {document.row:,}" if document.row is not None else f"position {document.position:,}"
            called = f" ({document.id})" if document.id else ""
            what = "a piece of a document" if document.piece_of_bytes else "a document"
            text = f"{what} of {document.text_bytes:,} bytes at {place}{called}: {document.cause}"
            progress.tell(Event("quarantine", f"quarantined: {file_name(document)}: {text}"))
        if block.quarantined:
            lines = [json.dumps({**asdict(one), "file": file_name(one)}) + "\n" for one in quarantined]
            disk.attempt(partial(write_file, work / QUARANTINE_NAME, "".join(lines).encode(), work))
        yield block


def choose_listing(
    mixer: Mixer, weights: Sequence[int], taken: Sequence[Taken], lanes: Mapping[int, Lane]
) -> tuple[int, bool]:
    """Return the part of a mix to read next: the one that the mix waits for, if none of its batches are under way
    (True), else the one that will run short first (False). This affects only how much is held, never the order."""
    awaited, known = mixer.next_part, mixer.known_tokens
    if awaited in lanes and not lanes[awaited].waiting_bytes:
        return awaited, True

    def expected_key(part: int) -> float:
        lane, made = lanes[part], known[part] - taken[part].tokens
        per_byte = (made + _TOKENS_PER_BYTE * _GUESSED_BYTES) / (lane.output_bytes + _GUESSED_BYTES)
        return (known[part] + lane.waiting_bytes * per_byte) / weights[part]

    return min(lanes, key=expected_key), False


def _note_ends(
    blocks: Iterable[TokenBlock], mixer: Mixer, job: Job, begun: Manifest, progress: Progress
) -> Iterator[TokenBlock]:
    """Pass blocks on to a mix. At the end of a part, set the cursor to its end and log it; on the screen only if the
    plan had expected more, because the mix will then differ."""
    for block in blocks:
        if not block.ends_part:
            yield block
            continue
        tokens, planned = mixer.known_tokens[block.part], progress.planned_tokens[block.part : block.part + 1]
        text = f"part {block.part + 1} ({begun.parts[block.part].label}) has run out after {tokens:,} tokens"
        is_early = any(one is not None and tokens < _EARLY_SHARE * one for one in planned)
        if is_early:
            text += f"; the plan expected about {show_count(planned[0] or 0)}"
        progress.tell(Event("part", text, loud=is_early))
        yield replace(block, end=job.source.ends[block.part])
