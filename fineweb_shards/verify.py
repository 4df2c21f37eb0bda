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

import numpy as np

from fineweb_shards.errors import DamageError, OutputError
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import Layout
from fineweb_shards.machine import usable_cores
from fineweb_shards.manifest import FILE_NAME, Manifest, load_manifest
from fineweb_shards.tokenizers.ranks import EOT, VOCABULARY_SIZE
from fineweb_shards.types import ShardRecord

_READ_BYTES = 4 * 2**20


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
    layout = get_layout(manifest.settings["layout"])

    def check(record: ShardRecord) -> str | None:
        damage = check_shard(folder, layout, record)
        report(record)
        return damage

    with ThreadPoolExecutor(usable_cores()) as pool:  # hashing and numpy release the GIL
        damages = [damage for damage in pool.map(check, manifest.shards) if damage]
    expected = [layout.shard_name(index) for index in range(len(manifest.shards))]
    for record, name in zip(manifest.shards, expected, strict=True):
        if record.name != name:
            damages.append(f"{record.name}: the manifest should name {name} here")
    damages += [
        f"{name}: not in the manifest, but a loader would read it"
        for name in sorted(os.listdir(folder))
        if layout.owns(name) and name not in expected
    ]
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


def check_shard(folder: Path, layout: Layout, record: ShardRecord) -> str | None:
    """What is wrong with one shard, or None."""
    path = folder / record.name
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.bytes or size != layout.header_bytes + 2 * record.tokens:
                return f"{record.name}: {size:,} bytes long, should be {record.bytes:,}"
            header = file.read(layout.header_bytes)
            if header != layout.header(record.tokens):
                return f"{record.name}: the header is damaged"
            digest, documents, highest = hashlib.sha256(header), 0, 0
            while data := file.read(_READ_BYTES):
                digest.update(data)
                tokens = np.frombuffer(data, "<u2")
                documents += int(np.count_nonzero(tokens == EOT))
                highest = max(highest, int(tokens.max()))
    except FileNotFoundError:
        return f"{record.name}: missing"
    except OSError as error:
        return f"{record.name}: {error.strerror}"
    if digest.hexdigest() != record.sha256:
        return f"{record.name}: SHA-256 is {digest.hexdigest()}, should be {record.sha256}"
    if highest >= VOCABULARY_SIZE:
        return f"{record.name}: token {highest} is outside the vocabulary"
    if documents != record.documents:
        return f"{record.name}: {documents:,} documents, should be {record.documents:,}"
    return None
