"""`export`: finished shards of any layout in any other, by copying tokens; nothing is tokenized again.

The stream with EOT before each document and the one with EOT after it differ at their two ends only:
`EOT S` and `S EOT`. So the stream is read in its order, shifted by one token where the side of EOT
changes, and goes through the same packer, writer and manifest as a build.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

import fineweb_shards
from fineweb_shards.errors import DiskFullError, InputError, UsageError
from fineweb_shards.events import Observer
from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.numbering import choose_digits
from fineweb_shards.reading.token_stream import read_stream
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import output_spec
from fineweb_shards.run.trainer_warnings import stray_warnings
from fineweb_shards.store.changed_settings import check_settings, check_vocabulary
from fineweb_shards.store.fresh import refuse_untracked_shards, start_over
from fineweb_shards.store.leftovers import tidy_finished
from fineweb_shards.store.lost_files import trim_to_whole_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_file import load_manifest, nothing_built
from fineweb_shards.store.output import Output, OutputSpec, open_folder
from fineweb_shards.stream.borders import NO_PLACES, Span
from fineweb_shards.stream.packer import Packer
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.machine import free_disk_bytes
from fineweb_shards.types import Counts, Cursor, TokenBlock
from fineweb_shards.units import show_bytes

# The rest of a source's settings says what its documents are, and stays.
OUTPUT_SETTINGS = ("layout", "shard_tokens", "val_tokens", "val_ratio", "val_seed", "last_shard")


@dataclasses.dataclass(frozen=True)
class Origin:
    """Finished shards, and what is known about their stream."""

    folder: Path
    layout: Layout
    manifest: Manifest

    @property
    def is_cut(self) -> bool:
        """Whether the stream ended before its documents did, so that the last one is not whole."""
        return self.manifest.tokens == self.limit_tokens

    @property
    def limit_tokens(self) -> int | None:
        """How long the stream can be at most: where --max-tokens or --last-shard drop ended it."""
        if self.manifest.totals["dropped_tokens"]:
            return self.manifest.tokens
        limit: int | None = self.manifest.settings["max_tokens"]
        return limit

    @property
    def digest(self) -> str:
        """Tells these shards from all others."""
        hashes = "".join(record.sha256 for record in self.manifest.shards)
        return hashlib.sha256(hashes.encode()).hexdigest()

    @property
    def counts(self) -> Counts:
        names = [field.name for field in dataclasses.fields(Counts)]
        return Counts(**{name: self.manifest.totals.get(name, 0) for name in names})  # the first had fewer


@dataclasses.dataclass(frozen=True)
class Exported:
    """How an export ended."""

    spec: OutputSpec
    manifest: Manifest
    new_tokens: int
    seconds: float


def open_origin(folder: Path) -> Origin:
    """Finished shards, or why they can't be exported."""
    manifest = load_manifest(folder)
    if manifest is None:
        nothing = nothing_built(folder)
        raise InputError(nothing.message, nothing.hint)
    if not manifest.complete:
        raise InputError(f"{folder}: the build is not finished.", "Finish it first: run its command again.")
    if manifest.split_rule.val_ratio and manifest.totals["dropped_tokens"]:
        raise InputError(
            f"{folder}: made with --val-ratio and --last-shard drop; the order of its documents is lost.",
            "Build it again without --last-shard drop.",
        )
    return Origin(folder, manifest.layout, manifest)


def export(
    origin: Origin,
    config: Config,
    *,
    fresh: bool,
    say: Callable[[str], None],
    observer: Observer,
    yes: bool = False,
) -> Exported:
    """Copy the tokens into another folder and layout, or the rest of them."""
    spec = output_spec(config, origin.manifest.vocabulary)
    if spec.folder.resolve() == origin.folder.resolve():
        raise UsageError(f"--out {config.out}: that is the folder to export from.", "Choose another --out.")
    load_manifest(spec.folder)  # a folder of another program is refused before anything is put into it
    with FolderLock(spec.folder):
        if fresh:
            start_over(spec.folder, spec.layout, say, yes=yes)
        manifest = _open_manifest(origin, config, spec)
        if manifest.complete:
            tidy_finished(spec.folder, manifest)
            return Exported(spec, manifest, 0, 0.0)
        _check_disk(origin, spec, manifest)
        for warning in stray_warnings(spec.folder, spec.layout):
            say(f"{'WARNING':<10} {warning}")
        begin = time.monotonic()
        disk = Disk(spec.folder, config.max_outage, observer)
        size_bytes = spec.shard_format.size_bytes
        with tqdm(
            total=size_bytes(origin.manifest.tokens), initial=size_bytes(manifest.tokens), unit="B",
            unit_scale=True, disable=None,  # outside a terminal
        ) as bar:  # fmt: skip
            result = _copy(origin, spec, manifest, disk, lambda tokens: bar.update(size_bytes(tokens)))
        return Exported(spec, result, result.tokens - manifest.tokens, time.monotonic() - begin)


def _open_manifest(origin: Origin, config: Config, spec: OutputSpec) -> Manifest:
    source = origin.manifest
    ours = {name: value for name, value in config.fingerprint().items() if name in OUTPUT_SETTINGS}
    settings = {**source.settings, **ours, "exported_from": origin.digest}
    manifest = load_manifest(spec.folder)
    if manifest is None:
        refuse_untracked_shards(spec.folder, spec.layout, set())
        versions = {**source.versions, "fineweb_shards": fineweb_shards.__version__}
        digits = choose_digits(spec.layout, spec.shard_tokens, source.tokens, exact=True)
        return Manifest(
            settings, source.files, versions, source.commit, digits=digits, vocabulary=source.vocabulary
        )
    check_settings(manifest, settings, Config().fingerprint())
    check_vocabulary(manifest, source.vocabulary)
    return trim_to_whole_files(manifest, spec.folder)


def _copy(
    origin: Origin, spec: OutputSpec, manifest: Manifest, disk: Disk, advance: Callable[[int], object]
) -> Manifest:
    disk.attempt(lambda: open_folder(spec.folder, manifest))
    limit = origin.limit_tokens
    packer = Packer(
        spec.shard_tokens,
        split_rule=spec.split_rule,
        one_file=spec.layout.one_file,
        eot_first=spec.layout.eot_first,
        done=manifest.done,
        skip_tokens=manifest.end.skip_tokens,
        max_tokens=None if limit is None else limit - manifest.tokens,
    )
    with Output(spec, manifest, disk) as output:
        for block in _blocks(origin, manifest.end.position, eot_first=spec.layout.eot_first):
            for part in packer.pack(block):  # what is behind a limit is dropped here
                advance(len(part.tokens))
                output.add(part)
        return output.finish()


def _blocks(origin: Origin, start: int, *, eot_first: bool) -> Iterator[TokenBlock]:
    """The stream from token `start` on, EOT on its new side. Its cursors are token numbers."""
    position = start
    for span in _moved(origin, start, eot_first=eot_first):
        yield TokenBlock(Cursor(0, position), Cursor(0, position + len(span)), span.tokens, span.eots)
        position += len(span)
    end = Cursor(0, position)
    nothing = np.empty(0, origin.manifest.vocabulary.dtype)
    yield TokenBlock(end, end, nothing, NO_PLACES, origin.counts)


def _moved(origin: Origin, start: int, *, eot_first: bool) -> Iterator[Span]:
    def read(first: int) -> Iterator[Span]:
        return read_stream(origin.folder, origin.manifest, first)

    vocabulary, total = origin.manifest.vocabulary, origin.manifest.tokens
    only_eot = Span(np.array([vocabulary.eot], vocabulary.dtype), np.zeros(1, np.int64))
    if eot_first == origin.layout.eot_first or not total:
        yield from read(start)
    elif eot_first:
        if start == 0:
            yield only_eot
        yield from _without_last_eot(read(max(0, start - 1)))
    else:
        yield from read(start + 1)
        if not origin.is_cut and start < total:
            yield only_eot


def _without_last_eot(blocks: Iterator[Span]) -> Iterator[Span]:
    """A stream cut inside a document does not end in one."""
    held = None
    for block in blocks:
        if held is not None:
            yield held
        held = block
    if held is not None:
        last = len(held) - 1
        yield held.cut(0, last) if held.eots[-1:].tolist() == [last] else held


def _check_disk(origin: Origin, spec: OutputSpec, manifest: Manifest) -> None:
    needed = spec.shard_format.size_bytes(origin.manifest.tokens - manifest.tokens)
    free = free_disk_bytes(spec.folder)
    if needed > free:
        raise DiskFullError(
            f"{spec.folder}: the export needs {show_bytes(needed)}, {show_bytes(free)} are free.",
            "Free some space, or choose another --out.",
        )
