"""`inspect`: what is in a file of tokens, or in a folder of them, with or without a manifest.

Everything is read a block at a time, so memory does not grow with the file or with a document. Documents
are numbered from 0 by the EOTs; what stands before the first EOT of a shard that begins inside a
document has no number.
"""

from __future__ import annotations

import codecs
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.files import list_files
from fineweb_shards.manifest import FILE_NAME, load_manifest
from fineweb_shards.statistics import NOTHING, Statistics, count_blocks
from fineweb_shards.tokenfile import TokenFile, has_eot_first, open_token_file, token_files
from fineweb_shards.tokenizers.decoder import BORDER, decode
from fineweb_shards.tokenizers.ranks import EOT
from fineweb_shards.types import Tokens, count_eots

_CONTEXT_BYTES = 80


@dataclass(frozen=True, slots=True)
class Target:
    """What is looked at."""

    path: Path
    files: tuple[TokenFile, ...]
    eot_first: bool

    def blocks(self) -> Iterator[Tokens]:
        for file in self.files:
            yield from file.blocks()


@dataclass(frozen=True, slots=True)
class Match:
    """A document that holds what was looked for, and the place where it does first."""

    document: int
    before: str
    text: str
    after: str


def open_target(path: Path) -> Target:
    """A file, the files of a manifest in their order, or all token files of a folder."""
    if not path.is_dir():
        return Target(path, (open_token_file(path),), has_eot_first(path))
    manifest = load_manifest(path) if (path / FILE_NAME).exists() else None
    if manifest is None:
        files = token_files(path)
    else:
        known = [path / file.name for file in list_files(manifest.shards)]
        files = [open_token_file(file) for file in known if file.exists()]  # one may still grow
    if not files:
        raise InputError(
            f"{path}: there is no file of tokens here.", "Name a .npy or .bin file, or a folder."
        )
    sides = {has_eot_first(file.path) for file in files}
    if len(sides) > 1:
        raise InputError(f"{path}: files of several layouts are here.", "Name one of the files.")
    return Target(path, tuple(files), sides.pop())


def count(target: Target) -> Statistics:
    """The figures of all files. Each that follows another goes on with its last document."""
    total = sum((count_blocks(file.blocks()) for file in target.files), NOTHING)
    return total.closed(eot_first=target.eot_first)


def choose_document(target: Target, seed: int | None) -> int:
    """A document by chance, each with the same."""
    borders = sum(map(count_eots, target.blocks()))
    if not borders:
        raise InputError(f"{target.path}: no document begins or ends here.", "Name another file.")
    return random.Random(seed).randrange(borders)


def read_document(target: Target, number: int) -> Iterator[str]:
    """The text of a document, piece by piece. UsageError where there is none of that number."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = False
    for tokens in _document_tokens(target, number):
        found = True
        if text := decoder.decode(decode(tokens)):
            yield text
    if not found:
        raise UsageError(
            f"--document {number}: {target.path} has no such document.",
            "See `fineweb-shards inspect` for how many there are; they count from 0.",
        )
    if text := decoder.decode(b"", final=True):
        yield text


def find_text(target: Target, text: str) -> Iterator[Match]:
    """Every document that contains `text`, in order."""
    wanted = text.encode("utf-8", "surrogateescape")
    carry = b""
    number = -1 if target.eot_first else 0  # of the document at the beginning of a block
    last: int | None = None
    for tokens in target.blocks():
        data = carry + decode(tokens)
        place = data.find(wanted, max(0, len(carry) - len(wanted) + 1))
        counted, document = len(carry), number
        while place >= 0:
            # A match that begins in what was carried over is in the document the block begins with.
            document += data.count(BORDER, counted, max(counted, place))
            counted = max(counted, place)
            if document != last:
                yield _match(document, data, place, wanted)
            last = document
            border = data.find(BORDER, place)
            place = data.find(wanted, border) if border >= 0 else -1
        number += data.count(BORDER, len(carry))
        carry = data[-max(len(wanted) - 1, _CONTEXT_BYTES) :]


def _document_tokens(target: Target, number: int) -> Iterator[Tokens]:
    """A document's tokens, a part for each block it is in; one empty part where it is empty."""
    seen = -1 if target.eot_first else 0  # number of the document at the beginning of a block
    begun = not target.eot_first and number == 0
    for tokens in target.blocks():
        places = np.flatnonzero(tokens == EOT)
        first, seen = seen, seen + len(places)
        if first > number or (first == number and not begun):
            return
        if seen < number:
            continue
        start = 0 if first == number else int(places[number - first - 1]) + 1
        ends = seen > number
        end = int(places[number - first]) if ends else len(tokens)
        # With EOT behind, what follows the last one is a document only if there is anything.
        if end > start or ends or target.eot_first:
            yield tokens[start:end]
        begun = True
        if ends:
            return


def _match(document: int, data: bytes, place: int, wanted: bytes) -> Match:
    before = data[max(0, place - _CONTEXT_BYTES) : place].rpartition(BORDER)[2]
    after = data[place + len(wanted) :][:_CONTEXT_BYTES].partition(BORDER)[0]
    texts = (part.decode("utf-8", "ignore") for part in (before, wanted, after))
    return Match(document, *texts)
