"""Inspect a token file or a folder of them, with or without a manifest: count, show and search documents.

Everything is read block by block, so memory does not grow with a file or a document. The documents that begin in the
target are numbered from 0; the rest of an earlier one has no number. For trainers that compute bits per byte, this
module also writes the number of text bytes of every id.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fineweb_shards.errors import ChangedError, DamageError, InputError, UsageError
from fineweb_shards.output.opening import is_object
from fineweb_shards.output.shard_files import list_files
from fineweb_shards.reading import token_file
from fineweb_shards.reading.statistics import TokenStatistics, count_blocks
from fineweb_shards.system.durable import write_file
from fineweb_shards.system.own_files import ForeignFileError, read_file
from fineweb_shards.tokenizers.references import BOUNDARY, decode, load_token_bytes
from fineweb_shards.types import Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary

_CONTEXT_BYTES = 80


@dataclass(frozen=True, slots=True)
class Target:
    location: str
    files: tuple[token_file.TokenFile, ...]
    eot_first: bool
    vocabulary: Vocabulary
    starts_mid_document: bool = False  # with EOT after documents: the first one began in an earlier shard

    @property
    def first_number(self) -> int:
        """The number of the document at the first token; -1 if document 0 only begins at a later EOT."""
        return -1 if self.eot_first or self.starts_mid_document else 0

    def blocks(self) -> Iterator[Tokens]:
        for file in self.files:
            yield from file.blocks()


@dataclass(frozen=True, slots=True)
class Match:
    """A document that contains the wanted text, with the context of its first occurrence."""

    document: int
    before: str
    text: str
    after: str


def open_target(location: str | Path) -> Target:
    """Open a file, or the files of a folder: those of its manifest or, without one, all token files."""
    vocabulary = GPT2
    # In a bucket anything but an object is a folder.
    is_file = is_object(location) if token_file.is_address(location) else not Path(location).is_dir()
    if is_file:
        files = [token_file.open_token_file(location)]
        with contextlib.suppress(DamageError, ChangedError):  # of the manifest beside it
            vocabulary = token_file.vocabulary_beside(files[0]) or GPT2
    else:
        folder = token_file.open_folder(location)
        if folder.manifest is None:
            files = token_file.open_files_in(folder, token_file.token_names(folder))
        else:
            vocabulary = folder.manifest.vocabulary
            found = folder.store.find_all([file.name for file in list_files(folder.manifest.shards)])
            names = [name for name, file in found.items() if file.named]  # one may grow
            files = token_file.open_files_in(folder, names)
    positions = {token_file.has_eot_first(file) for file in files}
    if not positions:
        raise InputError(f"{location}: there is no token file here.", "Name a .npy, .bin or .ds file, or a folder.")
    if len(positions) > 1:
        raise InputError(f"{location}: there are files of several layouts here.", "Name one of the files.")
    eot_first = positions.pop()
    load_token_bytes(vocabulary)  # a missing file is reported first
    before = None if eot_first else token_file.file_before(files[0])
    mid_document = before is not None and before.ends_mid_document(vocabulary)
    return Target(str(location), tuple(files), eot_first, vocabulary, mid_document)


def count(target: Target) -> TokenStatistics:
    """Return the statistics of all files; a document may continue from one file into the next."""
    total = count_blocks(target.blocks(), target.vocabulary)
    return total.closed(eot_first=target.eot_first, starts_mid_document=target.starts_mid_document)


def choose_document(target: Target, seed: int | None) -> int:
    documents = count(target).documents
    if documents < 1:
        raise InputError(f"{target.location}: no document begins here.", "Name another file, or the folder.")
    return random.Random(seed).randrange(documents)


def read_document(target: Target, number: int) -> Iterator[str]:
    """Yield the text of a document in parts; UsageError if no document has that number."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = False
    for tokens in _document_tokens(target, number):
        found = True
        if text := decoder.decode(decode(tokens, target.vocabulary)):
            yield text
    if not found:
        raise UsageError(
            f"--document {number}: {target.location} has no such document.",
            "`fineweb-shards inspect` shows how many there are; they count from 0.",
        )
    if text := decoder.decode(b"", final=True):
        yield text


def find_text(target: Target, text: str) -> Iterator[Match]:
    """Yield the first match in each document that contains `text`; a match may span two blocks."""
    try:
        wanted = text.encode()
    except UnicodeEncodeError:  # the command line had bytes that are not UTF-8
        raise UsageError(f"--grep {text!a}: not valid UTF-8.", "Documents are; search for whole characters.") from None
    if not wanted:
        raise UsageError("--grep: there is nothing to search for.", "Give a text.")
    carry = b""  # the end of the previous block
    number = target.first_number  # of the document at the start of a block
    last: int | None = None
    for tokens in target.blocks():
        data = carry + decode(tokens, target.vocabulary)
        place = data.find(wanted, max(0, len(carry) - len(wanted) + 1))
        counted, document = len(carry), number
        while place >= 0:
            # A match that begins in `carry` belongs to the document at the start of the block.
            document += data.count(BOUNDARY, counted, max(counted, place))
            counted = max(counted, place)
            if document != last:
                before = data[max(0, place - _CONTEXT_BYTES) : place].rpartition(BOUNDARY)[2]
                after = data[place + len(wanted) :][:_CONTEXT_BYTES].partition(BOUNDARY)[0]
                yield Match(document, *(part.decode("utf-8", "ignore") for part in (before, wanted, after)))
            last = document
            boundary = data.find(BOUNDARY, place)
            place = data.find(wanted, boundary) if boundary >= 0 else -1
        number += data.count(BOUNDARY, len(carry))
        carry = data[-max(len(wanted) - 1, _CONTEXT_BYTES) :]


def _document_tokens(target: Target, number: int) -> Iterator[Tokens]:
    """Yield a document's tokens, one part for each block it spans; one empty part if it is empty."""
    seen = target.first_number  # number of the document at the start of a block
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
        # If EOT comes after documents, one follows the last EOT only if there are tokens.
        if end > start or ends or target.eot_first:
            yield tokens[start:end]
        begun = True
        if ends:
            return


def write_token_bytes(path: Path, vocabulary: Vocabulary) -> None:
    """Write the number of text bytes of every id, 0 for EOT and other special ids, to an .npy file. UsageError if
    another file has that name: it may be a shard."""
    counts = np.zeros(vocabulary.size, np.int32)
    known = load_token_bytes(vocabulary)
    counts[: len(known)] = [len(token) for token in known]
    content = io.BytesIO()
    np.save(content, counts)
    data, found = content.getvalue(), None
    with contextlib.suppress(FileNotFoundError, ForeignFileError):
        found = read_file(path, len(data))
    if found != data and os.path.lexists(path):
        raise UsageError(f"--token-bytes {path}: something else has this name.", "Name a file that does not exist.")
    write_file(path, data, path.parent)
