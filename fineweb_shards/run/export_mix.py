"""`export --mix` and `--shuffle`: mix the documents of finished folders by tokens (stream/mix.py), or put all of them
into a random order (run/shuffle.py), without tokenizing again.

Each folder is a part of the input, and its shards are the files. They are read in ranges: the files for validation,
then the others once per epoch. A cursor has the first file of its range, and counts the tokens in the range.

If whole documents were chosen for validation (by a ratio, their number or their files), the splits are read separately:
validation stays the same and comes first, as with --val-input. A number of tokens may end inside a document, so then
the stream is read as it was before it was split.

A document that was cut off at the end of a folder stays cut off. It gets an EOT like any other, because the next
document comes from another part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import fineweb_shards
from fineweb_shards.errors import InputError
from fineweb_shards.events import Observer
from fineweb_shards.layouts.base import choose_digits, tokens_of
from fineweb_shards.output.manifest import InputPart, Manifest, divide_settings
from fineweb_shards.output.resume_rules import show_vocabulary
from fineweb_shards.output.shard_files import list_files
from fineweb_shards.run.config import Config
from fineweb_shards.run.export import ExportJob, ExportSource, identify, read_with_eot_moved
from fineweb_shards.run.job import output_spec
from fineweb_shards.run.plan import forecast_parts
from fineweb_shards.stream.mix import Mixer, mix
from fineweb_shards.stream.section import NO_POSITIONS, Section
from fineweb_shards.stream.split import VAL_SETTINGS, SplitRule
from fineweb_shards.stream.stitcher import add_cursors
from fineweb_shards.types import Counts, Cursor, EncodedBlock, Split


def make_mix_job(sources: Sequence[ExportSource], config: Config, observer: Observer) -> ExportJob:
    """Return what the export of a mix writes; each source is one part of the settings."""
    manifests = [source.manifest for source in sources]
    vocabulary = manifests[0].vocabulary
    if config.shard_tokens is None:
        config = dataclasses.replace(config, shard_tokens=manifests[0].settings["shard_tokens"])
    keeps_val = all(getattr(config, name) is None for name in VAL_SETTINGS)
    if keeps_val and all(source.val_documents == 0 for source in sources):
        config = dataclasses.replace(config, val_documents=0)
    for source in sources:
        if source.manifest.vocabulary != vocabulary:
            one, other = show_vocabulary(vocabulary), show_vocabulary(source.manifest.vocabulary)
            raise InputError(
                f"{source.store.location} has another vocabulary than {sources[0].store.location}: {other}, not {one}.",
                "A mix needs a single vocabulary: rebuild one of them with the --tokenizer of the other.",
            )
    parts, available, val_tokens = [], [], 0
    for source, own in zip(sources, config.part_configs, strict=True):
        part, tokens = _make_part(source, own, keeps_val=keeps_val)
        parts.append(part)
        available.append(tokens * part.epochs)
        val_tokens += source.manifest.tokens - tokens
    spec = output_spec(config, config.open_store(observer), vocabulary)
    val_files = tuple(map(_count_val_files, parts))
    if any(val_files):
        spec = dataclasses.replace(spec, split_rule=SplitRule(val_files=val_files))
    forecast = forecast_parts(config.mix, available, config.max_tokens, before=val_tokens)
    tokens = val_tokens + sum(filter(None, forecast.taken))
    settings, _ = divide_settings(config.fingerprint())
    new = Manifest(
        {**settings, "mixed_from": identify(sources)},
        tuple(parts),
        {"fineweb_shards": fineweb_shards.__version__},
        digits=choose_digits(spec.layout, spec.shard_tokens, tokens, exact=False),
        vocabulary=vocabulary,
        index=config.index,
    )
    return ExportJob(tuple(sources), spec, new, tokens, config.max_tokens, partial(_sections, sources))


def _make_part(source: ExportSource, config: Config, *, keeps_val: bool) -> tuple[InputPart, int]:
    """Return a folder as a part of the input, and how many tokens one epoch of it has."""
    manifest = source.manifest
    # A number of tokens may end inside a document.
    keeps_val = keeps_val and not manifest.split_rule.val_tokens
    files: list[dict[str, Any]] = []
    for file in list_files(manifest.shards):
        hashes = [record.sha256 for record in file.segments]
        content = hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
        mark = {"for_validation": True} if keeps_val and file.split == "val" else {}
        files.append({"name": file.name, "size_bytes": file.end_bytes, "content_hash": content, **mark})
    files.sort(key=lambda file: not file.get("for_validation"))
    tokens = tokens_of(manifest.shards, "train") if keeps_val else manifest.tokens
    if not tokens:
        what = "all its documents are for validation" if manifest.tokens else "it has no documents"
        raise InputError(f"{source.store.location}: {what}, so there is nothing to mix.", "Leave it out.")
    return InputPart({"folder": source.store.name, "weight": config.weight, "epochs": config.epochs}, files), tokens


def _count_val_files(part: InputPart) -> int:
    return sum(file.get("for_validation", False) for file in part.files)


def _sections(sources: Sequence[ExportSource], manifest: Manifest) -> Iterator[Section]:
    """Yield the rest of the mix after a manifest, reading only what is needed next."""
    rule, starts, eot_first = manifest.mix, manifest.input_end, manifest.layout.eot_first
    parts = enumerate(zip(sources, manifest.parts, starts, strict=True))
    readers = [_part_blocks(source, part, number, start, eot_first) for number, (source, part, start) in parts]
    if rule is None:  # one folder, to be shuffled
        (blocks,) = readers
        return map(Section.of, add_cursors(blocks, starts))
    val_files = tuple(map(_count_val_files, manifest.parts))
    taken, _ = manifest.mixed
    mixer = Mixer(rule, starts, [one.tokens for one in taken], eot_first=eot_first, val_files=val_files)

    def needed() -> Iterator[EncodedBlock]:
        while True:
            yield next(readers[mixer.next_part])

    return mix(add_cursors(needed(), starts), mixer)


def _part_blocks(
    source: ExportSource, part: InputPart, number: int, start: Cursor, eot_first: bool
) -> Iterator[EncodedBlock]:
    """Yield the documents of a part from a cursor on: those for validation, then the others once per epoch."""
    val_files, train_files = _count_val_files(part), len(part.files) - _count_val_files(part)
    train: Split | None = "train" if val_files else None
    ranges: list[tuple[int, int, Split | None]] = [(0, val_files, "val")]
    ranges += [(first, first + train_files, train) for first in range(val_files, part.file_count, train_files)]
    for first, after, split in ranges:
        if start.file < after:
            begin = start if start.file == first else Cursor(first, 0)
            yield from _blocks(source, split, number, begin, after, eot_first)
    nothing = np.empty(0, source.manifest.vocabulary.dtype)
    yield EncodedBlock(None, None, nothing, NO_POSITIONS, part=number, ends_part=True)


def _blocks(
    source: ExportSource, split: Split | None, number: int, start: Cursor, after: int, eot_first: bool
) -> Iterator[EncodedBlock]:
    """Yield the documents of one split (None: of both) from a cursor on; the next range begins with file `after`."""
    position, mid_document = start.position, start.starts_mid_document
    records = [record for record in source.manifest.shards if split in (None, record.split)]
    ends = [*itertools.accumulate(record.tokens for record in records)]
    spans = filter(len, read_with_eot_moved(source, position, eot_first=eot_first, split=split, ends_last=True))
    span = next(spans, None)
    while span is not None:
        following = next(spans, None)
        begin, first = Cursor(start.file, position, 0, mid_document), bisect_right(ends, position)
        position += len(span)
        if following is None:
            mid_document, end, last = False, Cursor(after, 0), len(ends)
        else:
            mid_document = not (following.begins_with_eot if eot_first else span.ends_with_eot)
            end, last = Cursor(start.file, position, 0, mid_document), bisect_right(ends, position)
        counts = sum((record.counts for record in records[first:last]), Counts())
        yield EncodedBlock(
            begin, end, span.tokens, span.eots, ends_mid_document=mid_document, counts=counts, part=number
        )
        span = following
