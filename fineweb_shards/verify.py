"""`verify`: every shard against the manifest, its header, the vocabulary and its document count.

Reads each file once, a few at a time, in constant memory. Nothing in a shard is trusted: the header is
compared as bytes, never parsed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fineweb_shards.errors import DamageError, OutputError
from fineweb_shards.files import OutputFile, find_file, list_files
from fineweb_shards.index import check_index, index_path
from fineweb_shards.layouts.base import Layout
from fineweb_shards.machine import usable_cores
from fineweb_shards.manifest import FILE_NAME, Manifest, load_manifest
from fineweb_shards.split import SIDES, Side
from fineweb_shards.tokenizers.ranks import VOCABULARY_SIZE
from fineweb_shards.types import ShardRecord, count_eots

_READ_BYTES = 2**19  # larger blocks are given back to the kernel each time, and cost a page fault a page


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found in a folder."""

    manifest: Manifest
    damages: list[str]  # a sentence each, beginning with the file's name


def verify_folder(folder: Path, report: Callable[[ShardRecord], None] = lambda _: None) -> Verdict:
    """Check everything; `report` is called for each shard that is checked."""
    manifest = load_manifest(folder)
    if manifest is None:
        raise OutputError(f"{folder}: there is no {FILE_NAME}.", "Name a folder made by `build`.")
    layout = manifest.layout
    files = {file.name: file for file in list_files(manifest.shards)}

    def check(record: ShardRecord) -> str | None:
        damage = check_stretch(folder, layout, files[record.name], record)
        report(record)
        return damage

    with ThreadPoolExecutor(usable_cores()) as pool:  # hashing and numpy release the GIL
        found = [damage for damage in pool.map(check, manifest.shards) if damage]
        if layout.has_index and manifest.complete:
            indices = pool.map(lambda file: check_index(folder / file.name, file.documents), files.values())
            found += [damage for damage in indices if damage]
    damages = [*dict.fromkeys(found), *_check_names(folder, layout, manifest)]
    return Verdict(manifest, damages)


def check_folder(
    folder: Path, complain: Callable[[str], None], report: Callable[[ShardRecord], None] = lambda _: None
) -> Manifest:
    """Verify; names every damaged file and raises, or returns the manifest."""
    verdict = verify_folder(folder, report)
    for damage in verdict.damages:
        complain(damage)
    if verdict.damages:
        raise DamageError(f"{folder}: {len(verdict.damages)} damaged files.")
    return verdict.manifest


def _check_names(folder: Path, layout: Layout, manifest: Manifest) -> list[str]:
    """What the ledger names, and what a loader would find."""
    expected = _expected_names(layout, manifest)
    damages = [
        f"{record.name}: the manifest should name {name} here"
        for record, name in zip(manifest.shards, expected, strict=True)
        if record.name != name
    ]
    known = {*expected, *(index_path(Path(name)).name for name in expected if layout.has_index)}
    return damages + [
        f"{name}: not in the manifest, but a loader would read it"
        for name in sorted(os.listdir(folder))
        if layout.owns(name) and name not in known
    ]


def _expected_names(layout: Layout, manifest: Manifest) -> list[str]:
    """The name of the file in which each record must be."""
    shard_tokens, split = manifest.settings["shard_tokens"], manifest.split
    done: dict[Side, int] = dict.fromkeys(SIDES, 0)
    names = []
    for record in manifest.shards:
        index = 0 if layout.one_file else done[record.split] // shard_tokens
        names.append(layout.shard_name(record.split, index + split.first_index(record.split, shard_tokens)))
        done[record.split] += record.tokens
    return names


def check_stretch(folder: Path, layout: Layout, file: OutputFile, record: ShardRecord) -> str | None:
    """What is wrong with one stretch of a file, or None."""
    path = find_file(folder, file.name)
    if path is None:
        return f"{file.name}: missing"
    try:
        with open(path, "rb") as data:
            return _check_size(layout, file, data, whole=path == folder / file.name) or _check_tokens(
                layout, record, data
            )
    except OSError as error:
        return f"{file.name}: {error.strerror}"


def _check_size(layout: Layout, file: OutputFile, data: BinaryIO, *, whole: bool) -> str | None:
    size = os.fstat(data.fileno()).st_size
    expected = layout.header_bytes + 2 * file.tokens
    if file.end_bytes != expected or size < expected or (whole and size != expected):
        return f"{file.name}: {size:,} bytes long, should be {expected:,}"
    if whole and data.read(layout.header_bytes) != layout.header(file.tokens):
        return f"{file.name}: the header is damaged"
    return None


def _check_tokens(layout: Layout, record: ShardRecord, data: BinaryIO) -> str | None:
    data.seek(record.offset)
    header = data.read(max(0, layout.header_bytes - record.offset))
    digest, documents, highest = hashlib.sha256(header), 0, 0
    left = record.bytes - len(header)
    while left and (block := data.read(min(left, _READ_BYTES))):
        left -= len(block)
        digest.update(block)
        tokens = np.frombuffer(block[: len(block) // 2 * 2], "<u2")
        documents += count_eots(tokens)
        highest = max(highest, int(tokens.max(initial=0)))
    if digest.hexdigest() != record.sha256:
        return f"{record.name}: SHA-256{_place(record)} is {digest.hexdigest()}, should be {record.sha256}"
    if highest >= VOCABULARY_SIZE:
        return f"{record.name}: token {highest} is outside the vocabulary"
    if documents != record.documents:
        return f"{record.name}: {documents:,} documents, should be {record.documents:,}"
    return None


def _place(record: ShardRecord) -> str:
    return f" of {record.bytes:,} bytes from {record.offset:,} on" if record.offset else ""
