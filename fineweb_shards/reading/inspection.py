"""`inspect`: what is in a file of tokens, or in a folder of them, with or without a manifest.

Everything is read a block at a time, so memory does not grow with the file or with a document. The documents
that begin in what is looked at are numbered from 0; the rest of one that began before has no number.
"""

from __future__ import annotations

import codecs
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.errors import ChangedError, DamageError, InputError, UsageError
from fineweb_shards.reading.token_file import (
    TokenFile,
    has_eot_first,
    open_token_file,
    token_files,
    vocabulary_beside,
)
from fineweb_shards.reading.token_statistics import TokenStatistics, count_blocks, count_nothing
from fineweb_shards.store.files import list_files
from fineweb_shards.store.manifest_file import FILE_NAME, load_manifest
from fineweb_shards.tokenizers.decoder import BORDER, decode
from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary

_CONTEXT_BYTES = 80


@dataclass(frozen=True, slots=True)
class Target:
    """What is looked at."""

    path: Path
    files: tuple[TokenFile, ...]
    eot_first: bool
    vocabulary: Vocabulary
    begins_inside: bool = False  # with EOT behind documents: the first one began in the shard before

    @property
    def first_number(self) -> int:
        """Of the document that is there at the beginning; -1: it began before, or ends at an EOT in front."""
        return -1 if self.eot_first or self.begins_inside else 0

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
        return _make_target(path, [open_token_file(path)], _vocabulary_of(path))
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
    return _make_target(path, files, manifest.vocabulary if manifest else GPT2)


def _vocabulary_of(path: Path) -> Vocabulary:
    """Of one file. A damaged manifest beside it must not hide what is in it."""
    try:
        return vocabulary_beside(path) or GPT2
    except (DamageError, ChangedError):
        return GPT2


def _make_target(path: Path, files: list[TokenFile], vocabulary: Vocabulary) -> Target:
    positions = {has_eot_first(file) for file in files}
    if len(positions) > 1:
        raise InputError(f"{path}: files of several layouts are here.", "Name one of the files.")
    eot_first = positions.pop()
    known = load_token_bytes(vocabulary)
    begins_inside = not eot_first and _begins_inside(files[0].path, vocabulary)
    return Target(path, tuple(files), eot_first, known, begins_inside)


def _begins_inside(path: Path, vocabulary: Vocabulary) -> bool:
    """Whether the shard before this one, if it is there, ends without an EOT."""
    stem = path.stem.rstrip("0123456789")
    number = path.stem[len(stem) :]
    before = f"{int(number) - 1:0{len(number)}d}" if number.strip("0") else number
    for name in (f"{stem}{before}", f"{stem.replace('train', 'val')}{before}"):
        previous = path.with_name(f"{name}{path.suffix}")
        if name != path.stem and previous.is_file():
            file = open_token_file(previous)
            return file.tokens > 0 and int(file.map()[-1]) != vocabulary.eot
    return False


def count(target: Target) -> TokenStatistics:
    """The figures of all files. Each that follows another goes on with its last document."""
    vocabulary = target.vocabulary
    counted = (count_blocks(file.blocks(), vocabulary) for file in target.files)
    total = sum(counted, count_nothing(vocabulary))
    return total.closed(eot_first=target.eot_first, begins_inside=target.begins_inside)


def choose_document(target: Target, seed: int | None) -> int:
    """A document by chance, each with the same."""
    documents = target.first_number + (1 if target.eot_first else 0)
    eot = target.vocabulary.eot
    last = eot
    for block in target.blocks():
        documents += len(target.vocabulary.find_eots(block))
        last = int(block[-1])
    documents += 1 if last != eot and not target.eot_first else 0
    if documents < 1:
        raise InputError(f"{target.path}: no document begins here.", "Name another file, or the folder.")
    return random.Random(seed).randrange(documents)


def read_document(target: Target, number: int) -> Iterator[str]:
    """The text of a document, piece by piece. UsageError where there is none of that number."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = False
    for tokens in _document_tokens(target, number):
        found = True
        if text := decoder.decode(decode(tokens, target.vocabulary)):
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
    try:
        wanted = text.encode()
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        raise UsageError(
            f"--grep {text!a}: that is no UTF-8.", "Documents are; look for whole characters."
        ) from None
    if not wanted:
        raise UsageError("--grep: there is nothing to look for.", "Name a text.")
    return _find_bytes(target, wanted)


def _find_bytes(target: Target, wanted: bytes) -> Iterator[Match]:
    carry = b""
    number = target.first_number  # of the document at the beginning of a block
    last: int | None = None
    for tokens in target.blocks():
        data = carry + decode(tokens, target.vocabulary)
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
    seen = target.first_number  # number of the document at the beginning of a block
    begun = number == seen
    for tokens in target.blocks():
        places = target.vocabulary.find_eots(tokens)
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
