"""Write and check the sidecars of finished files: see layouts/sidecar.py.

One pass over a file's tokens, in constant memory, makes all its sidecars. They are durable before the manifest marks
the build as complete. Verifying makes them again and compares.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from fineweb_shards.events import Observer
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.layouts.sidecar import FileFacts, Sidecar, SidecarPart, parts_of_all
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.shard_files import growing_path, list_files
from fineweb_shards.output.store import FoundFile, Store
from fineweb_shards.system.background import map_in_background
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.own_files import make_folder, open_own
from fineweb_shards.types import Positions

_FoundFiles = Mapping[str, FoundFile]  # the store's files and sidecars, by name
_READ_BYTES = 4 * 2**20
_TOKENS_AT_ONCE = 32  # single tokens from as many files: reading one from a bucket is all latency


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """A token file under its final name, with its data from the manifest."""

    store: Store
    name: str
    documents: int  # number of EOTs
    previous: str | None  # the file before it in the same stream
    shard_format: ShardFormat
    sidecars: tuple[Sidecar, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.previous is None else (self.name, self.previous)


def list_finished(store: Store, manifest: Manifest) -> list[FinishedFile]:
    """Return all files of a manifest; none if they have no sidecars."""
    if not manifest.sidecars:
        return []
    finished = []
    previous: dict[str, str] = {}
    for file in list_files(manifest.shards):
        # With val_ratio each split is a separate stream.
        stream = file.split if manifest.split_rule.val_ratio else ""
        before, shard_format = previous.get(stream), manifest.shard_format
        finished.append(FinishedFile(store, file.name, file.documents, before, shard_format, manifest.sidecars))
        previous[stream] = file.name
    return finished


def with_sidecars(manifest: Manifest, names: Collection[str]) -> set[str]:
    return {*names, *(sidecar.name_for(name) for name in names for sidecar in manifest.sidecars)}


def write_sidecars(observer: Observer, file: FinishedFile) -> None:
    store, name = file.store, file.name
    names = {sidecar: sidecar.name_for(name) for sidecar in file.sidecars}
    # Unique names: on a cluster another process may be writing the same sidecars.
    attempt = f"new-{secrets.token_hex(8)}"
    paths = {
        sidecar: growing_path(store.folder / f"{one.replace('/', '-')}.{attempt}") for sidecar, one in names.items()
    }
    try:
        found = {name: store.require(name)}
        if file.previous is not None and (previous := store.find(file.previous)) is not None:
            found[file.previous] = previous
        with contextlib.ExitStack() as stack:
            outputs = {}
            for sidecar, path in paths.items():
                make_folder(path.parent)  # it may not exist yet on another node
                outputs[sidecar] = stack.enter_context(open_own(path, "xb"))
            for sidecar, part in _make_parts(file, found, paths):
                outputs[sidecar].seek(part.offset)
                outputs[sidecar].write(part.data)
            for output in outputs.values():
                output.flush()
                os.fsync(output.fileno())
        for sidecar, name in names.items():
            store.add_file(paths[sidecar], name, observer)
    except OSError as error:
        raise output_error(store.folder / name, error) from error
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def check_sidecars(file: FinishedFile, everything: _FoundFiles) -> list[str]:
    """Return a sentence for each fault of a file's sidecars."""
    names = {sidecar: sidecar.name_for(file.name) for sidecar in file.sidecars}
    damages = [f"{name}: missing" for name in names.values() if name not in everything]
    if file.name not in everything:
        return damages  # the missing token file is reported separately
    present = {sidecar: everything[name] for sidecar, name in names.items() if name in everything}
    ends = dict.fromkeys(present, 0)
    wrong = set()
    try:
        with contextlib.ExitStack() as stack:
            opened = {one: stack.enter_context(file.store.open(found)) for one, found in present.items()}
            for sidecar, part in _make_parts(file, everything, present):
                ends[sidecar] = max(ends[sidecar], part.offset + len(part.data))
                opened[sidecar].seek(part.offset)
                if sidecar not in wrong and opened[sidecar].read(len(part.data)) != part.data:
                    wrong.add(sidecar)
    except OSError as error:
        return [*damages, f"{file.name}: its sidecars can't be checked: {error.strerror}"]
    for sidecar, found in present.items():
        if sidecar in wrong:
            damages.append(f"{found.name}: does not match {file.name}")
        elif found.size_bytes != ends[sidecar]:
            damages.append(f"{found.name}: {found.size_bytes:,} bytes long, should be {ends[sidecar]:,}")
    return damages


def have_sidecars(files: Collection[FinishedFile], everything: _FoundFiles) -> bool:
    """Return whether all sidecars exist and, where it is known without reading the file, have the right length."""
    doubtful = []  # files where the answer depends on the last token, their own or the previous file's
    for file in files:
        possible = itertools.product([False, True], repeat=len(file.names))
        answers = {_fits(file, everything, dict(zip(file.names, ends, strict=True))) for ends in possible}
        if answers == {False}:
            return False
        if answers != {True}:
            doubtful.append(file)
    ends = _read_ends(doubtful, everything)
    return all(_fits(file, everything, ends) for file in doubtful)


def _make_parts(
    file: FinishedFile, everything: _FoundFiles, sidecars: Collection[Sidecar]
) -> Iterator[tuple[Sidecar, SidecarPart]]:
    """Yield the parts of these sidecars, reading the token file once for all of them."""
    if not sidecars:
        return
    facts = _make_facts(file, everything, _read_ends([file], everything))
    with file.store.open(everything[file.name]) as tokens:
        yield from parts_of_all(sidecars, facts, _find_eots(tokens, file.shard_format))


def _fits(file: FinishedFile, everything: _FoundFiles, ends: Mapping[str, bool]) -> bool:
    """Return whether a file has all sidecars with the right length; `ends` tells which files end with an EOT."""
    facts = _make_facts(file, everything, ends)
    for sidecar in file.sidecars:
        found = everything.get(sidecar.name_for(file.name))
        if found is None or sidecar.size_bytes(facts) not in (None, found.size_bytes):
            return False
    return True


def _make_facts(file: FinishedFile, everything: _FoundFiles, ends: Mapping[str, bool]) -> FileFacts:
    shard_format, found = file.shard_format, everything.get(file.name)
    tokens, _ = shard_format.tokens_in(found.size_bytes if found else 0)
    return FileFacts(
        tokens=tokens,
        dtype=shard_format.dtype,
        vocabulary=shard_format.vocabulary,
        eot_first=shard_format.layout.eot_first,
        eots=file.documents,
        follows_eot=file.previous is None or ends[file.previous],
        ends_with_eot=ends[file.name],
    )


def _read_ends(files: Collection[FinishedFile], everything: _FoundFiles) -> dict[str, bool]:
    """Return for each of these files, and their previous ones, whether its last token is an EOT."""
    by_name = {name: file for file in files for name in file.names}

    def read(name: str) -> bool:
        store, shard_format, found = by_name[name].store, by_name[name].shard_format, everything.get(name)
        tokens, _ = shard_format.tokens_in(found.size_bytes if found else 0)
        if found is None or tokens < 1:
            return False  # damaged: our files are never empty
        begin, end = (shard_format.offset_bytes(token) for token in (tokens - 1, tokens))
        last = store.read_range(found, begin, end)
        return shard_format.vocabulary.count_eots(shard_format.from_bytes(last)) > 0

    return dict(zip(by_name, map_in_background(read, by_name, _TOKENS_AT_ONCE), strict=True))


def _find_eots(file: BinaryIO, shard_format: ShardFormat) -> Iterator[Positions]:
    file.seek(shard_format.header_bytes)
    position = 0
    while data := file.read(_READ_BYTES):
        block = shard_format.from_bytes(data)
        places = shard_format.vocabulary.find_eots(block)
        if len(places):
            yield places + position
        position += len(block)
