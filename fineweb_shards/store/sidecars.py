"""Write and check the sidecars of finished files: see layouts/sidecar.py.

Each is made by one pass over its file of tokens in constant memory, durably and before the manifest says that
the build is complete. Verifying makes it again and compares.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from fineweb_shards.events import Observer
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.layouts.sidecar import FileFacts, Sidecar
from fineweb_shards.store.files import growing_path, list_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.store import FoundFile, Store
from fineweb_shards.system.durable import output_error
from fineweb_shards.types import Places

_READ_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """A file of tokens under its final name, and what the manifest knows of it."""

    store: Store
    name: str
    documents: int  # number of EOTs
    previous: str | None  # the file whose tokens come before in the same stream
    shard_format: ShardFormat
    sidecars: tuple[Sidecar, ...]


def list_finished(store: Store, manifest: Manifest) -> list[FinishedFile]:
    """Return all files of a manifest, if they have sidecars."""
    if not manifest.sidecars:
        return []
    finished = []
    previous: dict[str, str] = {}
    for file in list_files(manifest.shards):
        # With a share of the documents for validation each split is a stream of its own.
        stream = file.split if manifest.split_rule.val_ratio else ""
        finished.append(
            FinishedFile(
                store,
                file.name,
                file.documents,
                previous.get(stream),
                manifest.shard_format,
                manifest.sidecars,
            )
        )
        previous[stream] = file.name
    return finished


def with_sidecars(manifest: Manifest, names: Collection[str]) -> set[str]:
    """Return these names of token files, and the names of their sidecars."""
    return {*names, *(sidecar.name_for(name) for name in names for sidecar in manifest.sidecars)}


def write_sidecars(observer: Observer, file: FinishedFile) -> None:
    """Write all sidecars of a file."""
    for sidecar in file.sidecars:
        name = sidecar.name_for(file.name)
        try:
            _write_sidecar(observer, file, sidecar, name)
        except OSError as error:
            raise output_error(file.store.folder / name, error) from error


def check_sidecars(file: FinishedFile) -> list[str]:
    """Return what is wrong with the sidecars of a file, a sentence each."""
    return [damage for sidecar in file.sidecars if (damage := _check_sidecar(file, sidecar))]


def has_sidecars(file: FinishedFile) -> bool:
    """Return whether all sidecars exist and, where that can be told without a search, have their length."""
    facts = _read_facts(file, file.store.find(file.name))
    for sidecar in file.sidecars:
        found = file.store.find(sidecar.name_for(file.name))
        if found is None or sidecar.size_bytes(facts) not in (None, found.size_bytes):
            return False
    return True


def _write_sidecar(observer: Observer, file: FinishedFile, sidecar: Sidecar, name: str) -> None:
    # A name of its own: on a cluster another process may write the same sidecar at the same time.
    own_name = f"{name.replace('/', '-')}.new-{secrets.token_hex(8)}"
    temporary = growing_path(file.store.folder / own_name)
    temporary.parent.mkdir(parents=True, exist_ok=True)  # another node may have no such folder yet
    found = file.store.require(file.name)
    facts = _read_facts(file, found)
    try:
        with file.store.open(found) as tokens, open(temporary, "wb") as output:
            for part in sidecar.parts(facts, _find_eots(tokens, file.shard_format)):
                output.seek(part.offset)
                output.write(part.data)
            output.flush()
            os.fsync(output.fileno())
        file.store.add_file(temporary, name, observer)
    finally:
        temporary.unlink(missing_ok=True)


def _check_sidecar(file: FinishedFile, sidecar: Sidecar) -> str | None:
    name = sidecar.name_for(file.name)
    store = file.store
    present = store.find(name)
    if present is None:
        return f"{name}: missing"
    try:
        found = store.require(file.name)
        facts = _read_facts(file, found)
        with store.open(found) as tokens, store.open(present) as opened:
            size, end = present.size_bytes, 0
            for part in sidecar.parts(facts, _find_eots(tokens, file.shard_format)):
                opened.seek(part.offset)
                if opened.read(len(part.data)) != part.data:
                    return f"{name}: does not fit {file.name}"
                end = max(end, part.offset + len(part.data))
    except FileNotFoundError:
        return None  # a file of tokens is missing, and is reported itself
    except OSError as error:
        return f"{name}: {error.strerror}"
    return None if size == end else f"{name}: {size:,} bytes long, should be {end:,}"


def _read_facts(file: FinishedFile, found: FoundFile | None) -> FileFacts:
    shard_format, store = file.shard_format, file.store
    tokens, _ = shard_format.tokens_in(found.size_bytes if found else 0)
    previous = store.find(file.previous) if file.previous is not None else None
    return FileFacts(
        tokens=tokens,
        dtype=shard_format.dtype,
        vocabulary=shard_format.vocabulary,
        eot_first=shard_format.layout.eot_first,
        eots=file.documents,
        follows_eot=file.previous is None or _ends_with_eot(store, previous, shard_format),
        ends_with_eot=_ends_with_eot(store, found, shard_format),
    )


def _ends_with_eot(store: Store, found: FoundFile | None, shard_format: ShardFormat) -> bool:
    tokens, _ = shard_format.tokens_in(found.size_bytes if found else 0)
    if found is None or tokens < 1:
        return False  # damaged: no file of ours is empty
    last = store.read_range(found, shard_format.offset_bytes(tokens - 1), shard_format.offset_bytes(tokens))
    return shard_format.vocabulary.count_eots(shard_format.from_bytes(last)) > 0


def _find_eots(file: BinaryIO, shard_format: ShardFormat) -> Iterator[Places]:
    """Yield the positions of the EOTs, a block at a time; never an empty array."""
    file.seek(shard_format.header_bytes)
    position = 0
    while data := file.read(_READ_BYTES):
        block = shard_format.from_bytes(data)
        places = shard_format.vocabulary.find_eots(block)
        if len(places):
            yield places + position
        position += len(block)
