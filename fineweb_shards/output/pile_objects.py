"""Keep the piles of a shuffle in the bucket of the output, for a cluster whose nodes share no folder.

Each checkpoint of the first pass makes two objects: the additions to all piles (formats/piles.py), which a node
uploads, and its block of the list of documents, which the parent uploads before it saves the manifest. The parent reads
the list from a file on its own machine; another machine that takes over makes that file from the blocks.
"""

from __future__ import annotations

import re
from pathlib import Path

from fineweb_shards.events import Observer
from fineweb_shards.formats.piles import OBJECTS, digest_of, pile_errors
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.store import FoundFile, Store
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.system.durable import output_errors, write_quickly
from fineweb_shards.system.own_files import WORK_FOLDER, is_plain_file, make_folder, open_own

_LIST_END = ".documents"
_NAME = re.compile(r"\d{15}-\d{15}(\.documents)?", re.ASCII)
_COPIED_BYTES = 8 * 2**20


def add_list_block(store: Store, name: str, block: bytes, observer: Observer) -> None:
    """Upload the block of the list that belongs to this object."""
    path = store.folder / WORK_FOLDER / f"{name}.tmp"
    with output_errors(path):
        write_quickly(path, block)
    store.add_file(path, f"{OBJECTS}/{name}{_LIST_END}", observer)


def find_lost_object(store: Store, state: PileState, shard_format: ShardFormat) -> str | None:
    """Return the first object of the recorded ones that is missing or has another size."""
    blocks, found = _find_blocks(store)
    position = tokens = 0
    while position < state.list_bytes:
        name = blocks.get(position)
        if name is None:
            return f"{store.location}/{OBJECTS}/{position:015d}-…"
        before, tokens = tokens, int(name.rpartition("-")[2])
        if name not in found or found[name].size_bytes != shard_format.size_bytes(tokens - before):
            return f"{store.location}/{name}"
        position += found[f"{name}{_LIST_END}"].size_bytes
    return None


def fetch_list(store: Store, state: PileState, path: Path) -> bool:
    """Make the file with the recorded list, unless it is there; return whether it is complete and unchanged."""
    size = state.list_bytes
    with pile_errors(path):
        if not size or (is_plain_file(path) and digest_of(path, 0, size).hexdigest() == state.list_sha256):
            return True
        make_folder(path.parent)
        blocks, found = _find_blocks(store)
        position = 0
        with open_own(path, "r+b", create=True) as file:
            while position < size and position in blocks:
                with store.open(found[f"{blocks[position]}{_LIST_END}"]) as block:
                    while data := block.read(_COPIED_BYTES):
                        position += file.write(data)
        return digest_of(path, 0, size).hexdigest() == state.list_sha256


def remove_objects(store: Store, position: int = 0) -> None:
    """Remove the objects of checkpoints from this position of the list on, which no manifest names."""
    found = [name for name in store.list_names(OBJECTS) if _NAME.fullmatch(name)]
    names = [f"{OBJECTS}/{name}" for name in found if int(name.partition("-")[0]) >= position]
    if names:
        store.remove(names)


def _find_blocks(store: Store) -> tuple[dict[int, str], dict[str, FoundFile]]:
    """Return the names of the objects whose block of the list is there, by its position, and all that are there."""
    found = store.find_all(f"{OBJECTS}/{name}" for name in store.list_names(OBJECTS) if _NAME.fullmatch(name))
    listed = sorted(name.removesuffix(_LIST_END) for name in found if name.endswith(_LIST_END))
    return {int(name.removeprefix(f"{OBJECTS}/").partition("-")[0]): name for name in listed}, found
