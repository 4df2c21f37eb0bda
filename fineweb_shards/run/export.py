"""`export`: copy finished shards from any layout to any other, without tokenizing again.

A stream with EOT before each document differs from one with EOT after it only at its ends: `EOT S` and `S EOT`. So the
stream is read in order, shifted by one token if the position of EOT changes, and goes through the same packer, output
and manifest as a build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from tqdm import tqdm

import fineweb_shards
from fineweb_shards.errors import ChangedError, InputError, UsageError
from fineweb_shards.events import Observer
from fineweb_shards.executors.base import DataPlane, InProcessPlane
from fineweb_shards.layouts.base import choose_digits, tokens_of
from fineweb_shards.output.cleanup import refuse_planted_files, start_over, tidy_finished
from fineweb_shards.output.manifest import Manifest, find_manifest, load_manifest
from fineweb_shards.output.opening import missing_manifest_error
from fineweb_shards.output.store import OutputSpec, Store
from fineweb_shards.reading.verify import read_stream
from fineweb_shards.run import shuffle
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import check_resumed_settings, output_spec, resume_manifest
from fineweb_shards.run.output_text import stray_warnings, training_error
from fineweb_shards.run.resources import Rest, check_needs, find_needs
from fineweb_shards.run.stream import write_stream
from fineweb_shards.stream.section import NO_POSITIONS, Section, Span
from fineweb_shards.stream.split import VAL_SETTINGS
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.retry import Disk
from fineweb_shards.texts import copy_ranges
from fineweb_shards.tokenizers.definition import copy_definition
from fineweb_shards.types import Counts, Cursor, Cursors, ShardRecord, ShardSlice, Split, TokenBlock
from fineweb_shards.watching.run_files import PASS_NAMES, State
from fineweb_shards.watching.screen import Screen, TokensOnScreen
from fineweb_shards.writing.piles import PileOutput, make_pile_packer
from fineweb_shards.writing.placement import Output, begin_output, make_packer

# Settings that an export may change; all others describe the documents and are kept.
OUTPUT_SETTINGS = ("layout", "shard_tokens", *VAL_SETTINGS, "val_seed", "last_shard", "shuffle")


@dataclasses.dataclass(frozen=True)
class ExportSource:
    store: Store
    manifest: Manifest

    @property
    def limit_tokens(self) -> int | None:
        """The limit that --max-tokens or --last-shard drop put on the stream; None if there is none."""
        if self.manifest.totals["dropped_tokens"]:
            return self.manifest.tokens
        if self.manifest.is_shuffled:  # the cut document is no longer at the end
            return None
        limit: int | None = self.manifest.settings["max_tokens"]
        return limit

    @property
    def val_documents(self) -> int | None:
        """How many documents are for validation if --val-documents or --val-input chose them; else None."""
        manifest = self.manifest
        chosen: int | None = manifest.settings.get("val_documents")
        if chosen is not None or not manifest.split_rule.val_files:
            return chosen
        documents = sum(record.documents for record in manifest.shards if record.split == "val")
        # If the stream was cut before training began, its last document may have no EOT.
        return documents if tokens_of(manifest.shards, "train") else documents + 1


@dataclasses.dataclass(frozen=True)
class ExportJob:
    """What an export writes: the documents of one folder or several (export_mix.py)."""

    sources: tuple[ExportSource, ...]
    spec: OutputSpec
    new: Manifest  # of an empty output
    tokens: int  # at the end; for a mix an estimate
    limit_tokens: int | None
    read: Callable[[Manifest], Iterator[Section]]  # returns the rest of the stream after a manifest


@dataclasses.dataclass(frozen=True)
class Exported:
    manifest: Manifest
    new_tokens: int
    seconds: float


def open_export_source(store: Store) -> ExportSource:
    manifest = find_manifest(store)
    if manifest is None:
        nothing = missing_manifest_error(store)
        raise InputError(nothing.message, nothing.hint)
    if not manifest.complete:
        raise InputError(f"{store.location}: the build is not finished.", "Finish it first: run its command again.")
    if manifest.split_rule.val_ratio and manifest.totals["dropped_tokens"]:
        raise InputError(
            f"{store.location} was made with --val-ratio and --last-shard drop, so the order of its documents is lost.",
            "Build it again without --last-shard drop.",
        )
    return ExportSource(store, manifest)


def make_export_job(source: ExportSource, config: Config, observer: Observer) -> ExportJob:
    """Return what the export of one folder writes. The documents for validation stay the same unless the settings
    choose others, because tokens don't show where files ended."""
    built = source.manifest
    if config.shard_tokens is None:
        config = dataclasses.replace(config, shard_tokens=built.settings["shard_tokens"])
    if all(getattr(config, name) is None for name in VAL_SETTINGS):
        config = dataclasses.replace(config, val_documents=source.val_documents)
    spec = output_spec(config, config.open_store(observer), built.vocabulary)
    ours = {name: value for name, value in config.fingerprint().items() if name in OUTPUT_SETTINGS}
    new = Manifest(
        {**built.settings, **ours, "max_tokens": source.limit_tokens, "exported_from": identify([source])},
        built.parts,
        {**built.versions, "fineweb_shards": fineweb_shards.__version__},
        digits=choose_digits(spec.layout, spec.shard_tokens, built.tokens, exact=True),
        vocabulary=built.vocabulary,
        index=config.index,
    )
    return ExportJob((source,), spec, new, built.tokens, source.limit_tokens, partial(_sections, source))


def identify(sources: Iterable[ExportSource]) -> str:
    """Return a hash of the shards of folders, so that a resume notices another source."""
    hashes = "".join(record.sha256 for source in sources for record in source.manifest.shards)
    return hashlib.sha256(hashes.encode()).hexdigest()


def export(
    job: ExportJob,
    config: Config,
    *,
    fresh: bool,
    say: Callable[[str], None],
    observer: Observer,
    yes: bool = False,
    progress: TokensOnScreen | None = None,
) -> Exported:
    """Copy the tokens, or the rest of them; `progress` is updated in addition to the bar in a terminal."""
    spec = job.spec
    if any(spec.store.identity == source.store.identity for source in job.sources):
        raise UsageError(f"--out {config.out}: that is the folder to export from.", "Choose another --out.")
    if not spec.store.is_remote:
        load_manifest(spec.folder)  # refuses a folder of another program before anything is written into it
    with spec.store.lock(observer), shuffle.lock_scratch(config):
        if fresh:
            start_over(spec.store, spec.layout, say, yes=yes)
        manifest = resume_manifest(spec.store, spec.layout, job.new, partial(_check_same_export, job.new))
        if manifest.complete:
            tidy_finished(spec.store, manifest)
            shuffle.remove_piles(spec, config, observer)
            return Exported(manifest, 0, 0.0)
        refuse_planted_files(spec.store, index=manifest.index)
        documents = sum(source.manifest.documents for source in job.sources)
        # The length of a mix is unknown until its end.
        if not manifest.shards and not manifest.mix and (error := training_error(spec, config, job.tokens, documents)):
            raise error
        manifest = shuffle.find_piles(spec, config, manifest, observer)
        if not manifest.piled_tokens:  # the first pass begins: free the space of an earlier one
            shuffle.remove_piles(spec, config, observer)
        piles = manifest.piles
        if config.shuffle is not None and piles is None:
            piles = shuffle.begin_piles(spec, config, manifest, job.tokens).piles
        rest = Rest(job.tokens, documents, manifest.tokens, workers=0, piles=piles)
        needs = find_needs(spec, config.pile_folder, rest)
        check_needs(needs, spec, exact=not manifest.mix, has_limit=bool(config.parts))
        for warning in stray_warnings(spec.store, spec.layout):
            say(f"{'WARNING':<10} {warning}")
        begin = time.monotonic()
        disk = Disk(spec.folder, config.max_outage, observer)
        result = _write(job, config, manifest, disk, progress or TokensOnScreen(Screen()))
        return Exported(result, result.tokens - manifest.tokens, time.monotonic() - begin)


def _check_same_export(now: Manifest, before: Manifest) -> None:
    """Raise ChangedError if sources or settings differ from those that the output was begun with."""
    if before.mix and now.mix:
        for number, (old, new) in enumerate(zip(before.parts, now.parts, strict=False), 1):
            old_hashes, new_hashes = ({file["content_hash"] for file in part.files} for part in (old, new))
            if old_hashes != new_hashes:
                raise ChangedError(
                    f"Part {number} ({new.label}): its shards have changed since this mix was begun.",
                    "Name the same folders in the same order, another --out, or start over with --fresh.",
                )
    check_resumed_settings(before, now)


def _write(job: ExportJob, config: Config, manifest: Manifest, disk: Disk, progress: TokensOnScreen) -> Manifest:
    spec = job.spec
    disk.attempt(lambda: begin_output(spec.store, manifest))
    copy_definition(spec.vocabulary, spec.folder / WORK_FOLDER)
    plane = InProcessPlane(spec.store, spec.shard_format, disk)
    size_bytes, piled = spec.shard_format.size_bytes, sum(manifest.piles.tokens) if manifest.piles else 0
    expected, done = job.tokens * (1 if config.shuffle is None else 2), manifest.tokens + piled
    progress.begin(State.COPYING, expected, done)
    with (
        tqdm(
            total=size_bytes(expected), initial=size_bytes(done), unit="B", unit_scale=True,
            disable=None,  # no bar outside a terminal
        ) as bar,
        contextlib.closing(plane),
    ):  # fmt: skip

        def advance(tokens: int) -> None:
            bar.update(size_bytes(tokens))
            progress.add(tokens)

        def release(_: Sequence[ShardRecord], end: Cursors) -> None:
            if config.shuffle is not None:
                source.release_before(end)

        if config.shuffle is None:
            sections, limit_tokens = job.read(manifest), job.limit_tokens
        else:
            if manifest.pass_number == 1:
                bar.set_description_str(PASS_NAMES[1])
                manifest = _write_piles(job, config, manifest, plane, disk, advance)
                plane.close()  # removing an open pile would not free its space
            bar.set_description_str(PASS_NAMES[2])
            source, spec = shuffle.pile_source(spec, config, manifest), shuffle.second_spec(spec)
            sections, limit_tokens = shuffle.read_piles(source, spec, manifest.end), None
        packer = make_packer(spec, manifest, limit_tokens)
        with Output(spec, manifest, plane, disk, on_record=release) as output:
            for section in sections:
                slices = list(packer.pack(section))  # without tokens after the limit
                output.add(*_gather(section, slices))
                advance(sum(part.tokens for part in slices))
                if packer.ended and manifest.mix:  # otherwise the rest has counts
                    break
            if error := training_error(spec, config, packer.first_segment_tokens):
                raise error
            manifest = output.finish()
        shuffle.remove_piles(spec, config, disk.observer)
        return manifest


def _write_piles(
    job: ExportJob, config: Config, manifest: Manifest, plane: DataPlane, disk: Disk, advance: Callable[[int], None]
) -> Manifest:
    if manifest.piles is None:
        manifest = shuffle.begin_piles(job.spec, config, manifest, job.tokens)
    assert manifest.piles is not None
    packer = make_pile_packer(job.spec, manifest.piles, job.limit_tokens)
    disk.attempt(partial(shuffle.note_scratch, config))
    with PileOutput(job.spec, config.pile_folder, manifest, plane, disk) as output:
        write_stream(job.read(manifest), packer, output, lambda part: advance(part.tokens))
        return output.finish()


def _gather(section: Section, slices: list[ShardSlice]) -> tuple[Section, list[ShardSlice]]:
    """Copy what slices take from several blocks into one: writing alternating documents one by one is slower."""
    if len(section.blocks) < 2 or not slices:
        return section, slices
    blocks = [np.asarray(block.tokens) for block in section.blocks]
    holders, ranges = (
        np.concatenate([part.holders for part in slices]),
        np.concatenate([part.ranges for part in slices]),
    )
    begins, lengths = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
    places = np.cumsum(lengths) - lengths
    joined = np.empty(int(lengths.sum()), np.result_type(*blocks))
    for number, block in enumerate(blocks):
        own = np.flatnonzero(holders == number)
        copy_ranges(block.astype(joined.dtype, copy=False), begins[own], lengths[own], joined, places[own])
    gathered, done = [], 0
    for part in slices:
        ranges = np.array([[done, done + part.tokens]] * (part.tokens > 0), np.int64).reshape(-1, 2)
        gathered.append(dataclasses.replace(part, ranges=ranges, holders=np.zeros(len(ranges), np.int64)))
        done += part.tokens
    first = section.blocks[0]
    return Section.of(TokenBlock(first.start, first.end, joined, NO_POSITIONS)), gathered


def _sections(source: ExportSource, manifest: Manifest) -> Iterator[Section]:
    """Yield the rest of the stream of one folder after a manifest; the cursor of part 1 counts the tokens of all."""
    end = manifest.input_end[0]
    position = start = end.position + end.skip_tokens
    for span in read_with_eot_moved(source, start, eot_first=manifest.layout.eot_first):
        block = TokenBlock(Cursor(0, position), Cursor(0, position + len(span)), span.tokens, span.eots)
        yield Section.of(block)
        position += len(span)
    end = Cursor(0, position)
    # Of all documents, including those left out; manifests of the first version have fewer counts.
    totals = source.manifest.totals
    counts = Counts(**{field.name: totals.get(field.name, 0) for field in dataclasses.fields(Counts)})
    no_tokens = np.empty(0, source.manifest.vocabulary.dtype)
    yield Section.of(TokenBlock(end, end, no_tokens, NO_POSITIONS, counts))


def read_with_eot_moved(
    source: ExportSource, start: int, *, eot_first: bool, split: Split | None = None, ends_last: bool = False
) -> Iterator[Span]:
    """Yield the documents of a folder, or of one split, from token `start` on, with EOT at its new position. If the
    last document was cut off, no EOT comes after it unless `ends_last`."""
    manifest, vocabulary = source.manifest, source.manifest.vocabulary
    read = partial(read_stream, source.store, manifest, split=split)
    only_eot = Span(np.array([vocabulary.eot], vocabulary.dtype), np.zeros(1, np.int64))
    tokens = tokens_of(manifest.shards, split) if split else manifest.tokens
    if eot_first == manifest.layout.eot_first or not tokens:
        last = None
        for span in read(start):
            yield span
            last = span
        # If nothing is left to read, an earlier run may have ended right before this EOT.
        if tokens and ends_last and not eot_first and not (last and last.ends_with_eot):
            yield only_eot
    elif eot_first:
        if start == 0:
            yield only_eot
        # Drop the EOT at the end of the stream; a stream cut off inside a document has none.
        held: Span | None = None
        for block in read(max(0, start - 1)):
            if held is not None:
                yield held
            held = block
        if held is not None:
            yield held.cut(0, len(held) - 1) if held.ends_with_eot else held
    else:
        yield from read(start + 1)
        # If a limit cut the stream off, the last document may not be whole.
        if start < tokens and (ends_last or tokens != source.limit_tokens):
            yield only_eot
