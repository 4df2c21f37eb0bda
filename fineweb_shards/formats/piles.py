"""The piles of a shuffle (stream/shuffle.py): their files, and how the second pass reads them.

A pile has the tokens of its documents, EOTs included, in the order in which they came. A list beside the piles says
where a document ends: blocks of (hash, tokens), each sorted by pile and with a table in front of it of where each
pile begins in it. So it only grows at its end, and of it is read what one pile needs.

A position in a pile is a number of tokens in the order of the hashes. A batch is as small as any other: a worker finds
its documents, one by one, in a pile that the parent has just read from front to back to compare its hash. So no process
holds a pile, however large it is, and the disk is read in one go.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import DamageError
from fineweb_shards.formats.base import Format
from fineweb_shards.storage.place import InputFile
from fineweb_shards.system.durable import output_errors
from fineweb_shards.system.own_files import open_own
from fineweb_shards.texts import TokenLists
from fineweb_shards.types import Batch, Cursor, Piles, Positions, TextChunk

FOLDER = "piles"
ENTRY_BYTES = 2 * 8  # of a document in the list
_READ_BYTES = 2**20
_KEPT_PILES = 2  # batches of two may be under way


def pile_name(number: int) -> str:
    return f"{number:04d}"


def list_path(folder: Path) -> Path:
    return folder / "documents"


def digest_of(path: Path, size_bytes: int) -> hashlib._Hash:
    """Return the SHA-256 of the beginning of a file; of a shorter one, of what there is."""
    digest = hashlib.sha256()
    with open_own(path, "rb") as file:
        while size_bytes and (block := file.read(min(size_bytes, _READ_BYTES))):
            size_bytes -= len(block)
            digest.update(block)
    return digest


def list_block(count: int, hashes: NDArray[np.uint64], lengths: Positions, piles: Piles) -> bytes:
    """Return the next block of the list, of documents of `count` piles."""
    order = np.argsort(piles, kind="stable")
    begins = np.searchsorted(piles[order], np.arange(count + 1))
    entries = np.empty((len(hashes), 2), "<u8")
    entries[:, 0], entries[:, 1] = hashes[order], lengths[order]
    return begins.astype("<i8").tobytes() + entries.tobytes()


def append_to_list(path: Path, position: int, block: bytes) -> None:
    """Write a block of the list durably, at a position, and cut off what comes after it."""
    with open_own(path, "r+b") as file:
        file.seek(position)
        file.write(block)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def read_list(path: Path, number: int, count: int) -> tuple[NDArray[np.uint64], Positions]:
    """Return hash and tokens of each document of a pile, in the order in which they came."""
    found = np.concatenate([np.empty((0, 2), np.uint64), *_read_entries(path, number, 8 * (count + 1))])
    return found[:, 0], found[:, 1].astype(np.int64)


def _read_entries(path: Path, number: int, table_bytes: int) -> Iterator[NDArray[np.uint64]]:
    with open_own(path, "rb") as file:
        size, position = os.fstat(file.fileno()).st_size, 0
        while position < size:
            file.seek(position)
            begins = np.frombuffer(file.read(table_bytes), "<i8")
            begin, end = begins[number : number + 2].tolist()
            if begin < end:
                file.seek(position + table_bytes + ENTRY_BYTES * begin)
                yield np.frombuffer(file.read(ENTRY_BYTES * (end - begin)), "<u8").reshape(-1, 2)
            position += table_bytes + ENTRY_BYTES * int(begins[-1])


class _Pile:
    """The documents of a pile in the order of their hashes. Positions are numbers of tokens in that order."""

    def __init__(self, path: Path, number: int, count: int) -> None:
        hashes, lengths = read_list(path, number, count)
        order = np.argsort(hashes, kind="stable")
        self.lengths = lengths[order]
        self.ends = np.cumsum(self.lengths)
        self.offsets = (np.cumsum(lengths) - lengths)[order]  # of the first token of each in the file

    @property
    def tokens(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def cut(self, begin: int, most: int) -> int:
        """Return where a batch ends that begins here: before the first document of which not all fits, or in it, if it
        is the only one."""
        if begin + most >= self.tokens:
            return self.tokens
        before = int(np.searchsorted(self.ends, begin + most, side="right"))
        end = int(self.ends[before - 1]) if before else 0
        return end if end > begin else begin + most

    def is_in_document(self, position: int) -> bool:
        return 0 < position < self.tokens and int(self.ends[np.searchsorted(self.ends, position)]) != position


class PilesFormat(Format):
    """Reads piles."""

    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        self._check(file)
        pile = self._pile(file)
        piles = self.settings.piles
        assert piles is not None
        width = piles.dtype.itemsize
        while position < pile.tokens:
            end = pile.cut(position, max(1, self.settings.batch_bytes // width))
            starts, ends = pile.is_in_document(position), pile.is_in_document(end)
            yield Batch(file.index, position, end, (end - position) * width, starts, ends)
            position = end

    def _check(self, file: InputFile) -> None:
        """Raise DamageError if a pile is not what was written. It is removed, so that the next run makes all again."""
        path = Path(file.path)
        with output_errors(path):
            sound = digest_of(path, file.size_bytes).hexdigest() == file.content_hash
        if not sound:
            path.unlink()
            raise _changed(path, "It was removed: the")

    @cached_property
    def _piles(self) -> dict[int, _Pile]:
        return {}

    def _pile(self, file: InputFile) -> _Pile:
        """Return what is in a pile; that of the last few is kept."""
        assert self.settings.piles is not None
        if file.index not in self._piles:
            while len(self._piles) >= _KEPT_PILES:
                del self._piles[next(iter(self._piles))]
            path = list_path(Path(file.path).parent)
            self._piles[file.index] = _Pile(path, file.index, self.settings.piles.count)
        return self._piles[file.index]

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        pile, piles = self._pile(file), self.settings.piles
        assert piles is not None
        first, last = np.searchsorted(pile.ends, (batch.position, batch.end - 1), side="right").tolist()
        chosen = slice(first, last + 1)
        starts = pile.ends[chosen] - pile.lengths[chosen]
        begins = np.maximum(batch.position - starts, 0)  # in its document
        lengths = np.minimum(batch.end - starts, pile.lengths[chosen]) - begins
        places = (pile.offsets[chosen] + begins) * piles.dtype.itemsize
        path = Path(file.path)
        tokens = _read_ranges(path, places, lengths * piles.dtype.itemsize).view(piles.dtype)
        ends = np.cumsum(lengths)
        eots = ends - lengths if piles.eot_first else ends - 1
        if piles.eot_first and batch.starts_mid_document:
            eots = eots[1:]
        if not piles.eot_first and batch.ends_mid_document:
            eots = eots[:-1]
        if not np.array_equal(self.settings.vocabulary.find_eots(tokens), eots):
            raise _changed(path, "Remove it: the")
        done = batch.end == pile.tokens
        end = Cursor(file.index + 1, 0) if done else Cursor(file.index, batch.end, 0, batch.ends_mid_document)
        yield TextChunk(
            TokenLists((tokens.astype(self.settings.vocabulary.dtype, copy=False), lengths), eots=eots),
            Cursor(file.index, batch.position, 0, batch.starts_mid_document),
            end,
            starts_mid_document=batch.starts_mid_document,
            ends_mid_document=batch.ends_mid_document,
        )

    def share_before(self, file: InputFile, position: int) -> float:
        assert self.settings.piles is not None
        return position * self.settings.piles.dtype.itemsize / max(1, file.size_bytes)

    def close(self) -> None:
        """No file is kept open."""


def _changed(path: Path, what: str) -> DamageError:
    hint = f"Memory or disk may be faulty. {what} same command makes the first pass again, and keeps finished shards."
    return DamageError(f"{path}: this file of the shuffle has changed since it was written.", hint)


def _read_ranges(path: Path, places: Positions, sizes: Positions) -> NDArray[np.uint8]:
    """Read ranges of bytes of a file, one after the other; what it lacks is zero."""
    data = np.zeros(int(sizes.sum()), np.uint8)
    view, position = data.data, 0
    with output_errors(path), open_own(path, "rb", buffering=0) as file:
        for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
            file.seek(place)
            end = position + size
            while position < end and (read := file.readinto(view[position:end])):  # type: ignore[attr-defined]
                position += read
            position = end
    return data
