"""The piles of a shuffle (stream/shuffle.py): their files, and how the second pass reads them.

A pile has the tokens of its documents, EOTs included, in the order in which they came. A list beside the piles grows by
a block with each checkpoint: a table with a row for each pile, and (hash, tokens) of the documents that have ended, by
pile. The row says where those of the pile are, their CRC, how long the pile is by now, and the SHA-256 of what was
added to it. So of the list is read what one pile needs, and nothing that is read goes unchecked: neither a pile, from
the checkpoint on that has recorded it, nor the list.

A position in a pile is a number of tokens in the order of the hashes. A batch is as small as any other: a worker finds
its documents, one by one, in a pile that the parent has just read from front to back to compare its hash. So no process
holds a pile, however large it is, and the disk is read in one go.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import DamageError, OutputError
from fineweb_shards.formats.base import Format, PileSettings
from fineweb_shards.storage.place import InputFile
from fineweb_shards.system.durable import output_errors
from fineweb_shards.system.own_files import open_own
from fineweb_shards.texts import TokenLists
from fineweb_shards.types import Batch, Cursor, Piles, Positions, TextChunk

FOLDER = "piles"
ENTRY_BYTES = 2 * 8  # of a document in the list
_ROW = np.dtype([("begin", "<i8"), ("end", "<i8"), ("crc", "<u8"), ("tokens", "<i8"), ("sha256", "V32")])
_READ_BYTES = 2**20
_KEPT_PILES = 2  # batches of two may be under way


def pile_name(number: int) -> str:
    return f"{number:04d}"


def list_path(folder: Path) -> Path:
    return folder / "documents"


@contextlib.contextmanager
def pile_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of a file of the first pass into one of our errors; if it can't be read, with what helps."""
    try:
        with output_errors(path):
            yield
    except OutputError as error:
        if error.hint != OutputError.hint:
            raise
        raise OutputError(
            error.message,
            "Its disk may be faulty. Run the same command again. If that ends here as well, remove this file: then the "
            "first pass is made again, and finished shards are kept.",
        ) from error


def digest_of(path: Path, begin: int, end: int) -> hashlib._Hash:
    """Return the SHA-256 of a range of a file; of a shorter one, of what there is."""
    digest = hashlib.sha256()
    with open_own(path, "rb") as file:
        file.seek(begin)
        while begin < end and (block := file.read(min(end - begin, _READ_BYTES))):
            begin += len(block)
            digest.update(block)
    return digest


def list_block(
    tokens: Sequence[int], sha256: Sequence[bytes], hashes: NDArray[np.uint64], lengths: Positions, piles: Piles
) -> bytes:
    """Return the next block of the list: how long each pile is now, the SHA-256 of what was added, and documents."""
    order = np.argsort(piles, kind="stable")
    entries = np.empty((len(hashes), 2), "<u8")
    entries[:, 0], entries[:, 1] = hashes[order], lengths[order]
    bounds = np.searchsorted(piles[order], np.arange(len(tokens) + 1)).tolist()
    rows = np.empty(len(tokens), _ROW)
    rows["begin"], rows["end"], rows["tokens"] = bounds[:-1], bounds[1:], tokens
    rows["crc"] = [zlib.crc32(entries[begin:end].tobytes()) for begin, end in pairwise(bounds)]
    rows["sha256"] = [np.void(one) for one in sha256]
    return rows.tobytes() + entries.tobytes()


def append_to_list(path: Path, position: int, block: bytes) -> None:
    """Write a block of the list durably, at a position, and cut off what comes after it."""
    with open_own(path, "r+b") as file:
        file.seek(position)
        file.write(block)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _read_list(path: Path, number: int, piles: PileSettings) -> Iterator[tuple[np.void, NDArray[np.uint64]]]:
    """Yield a pile's row, and hash and tokens of its documents, of each block; ValueError if they are damaged."""
    with open_own(path, "rb") as file:

        def read(at: int, size: int) -> bytes:
            file.seek(at)
            if len(data := file.read(size)) < size:
                raise ValueError("it is too short")
            return data

        position = 0
        while position < piles.list_bytes:
            (row,) = np.frombuffer(read(position + number * _ROW.itemsize, _ROW.itemsize), _ROW)
            (last,) = np.frombuffer(read(position + (piles.count - 1) * _ROW.itemsize, _ROW.itemsize), _ROW)
            position += piles.count * _ROW.itemsize
            if not 0 <= row["begin"] <= row["end"] <= last["end"] <= piles.list_bytes:
                raise ValueError("a row is damaged")
            begin, end = (ENTRY_BYTES * int(row[name]) for name in ("begin", "end"))
            entries = read(position + begin, end - begin)
            if zlib.crc32(entries) != row["crc"]:
                raise ValueError("a CRC differs")
            yield row, np.frombuffer(entries, "<u8").reshape(-1, 2)
            position += ENTRY_BYTES * int(last["end"])


class _Pile:
    """The documents of a pile in the order of their hashes. Positions are numbers of tokens in that order."""

    def __init__(self, path: Path, number: int, piles: PileSettings) -> None:
        try:
            with output_errors(path):
                blocks = [*_read_list(path, number, piles)]
        except ValueError as error:
            raise _changed(path, "The") from error
        # Of what each checkpoint has added: where it ends in the pile, and its SHA-256.
        self.added = [(int(row["tokens"]), row["sha256"].tobytes()) for row, _ in blocks]
        entries = np.concatenate([np.empty((0, 2), np.uint64), *(one for _, one in blocks)])
        lengths, order = entries[:, 1].astype(np.int64), np.argsort(entries[:, 0], kind="stable")
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
        if not file.size_bytes:
            return
        piles = self.settings.piles
        assert piles is not None
        width = piles.dtype.itemsize
        with pile_errors(Path(file.path)):
            pile = self._pile(file)
            self._check(file, pile, width)
        while position < pile.tokens:
            end = pile.cut(position, max(1, self.settings.batch_bytes // width))
            starts, ends = pile.is_in_document(position), pile.is_in_document(end)
            yield Batch(file.index, position, end, (end - position) * width, starts, ends)
            position = end

    def _check(self, file: InputFile, pile: _Pile, width: int) -> None:
        """Raise DamageError if a pile is not what was written. It is removed, so that the next run makes all again."""
        path, done = Path(file.path), 0
        for tokens, sha256 in pile.added:
            found = digest_of(path, done * width, tokens * width).digest()
            if found != sha256:
                path.unlink()
                raise _changed(path, "It was removed: the")
            done = tokens

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
            self._piles[file.index] = _Pile(path, file.index, self.settings.piles)
        return self._piles[file.index]

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        path, piles = Path(file.path), self.settings.piles
        assert piles is not None
        with pile_errors(path):
            pile = self._pile(file)
        first, last = np.searchsorted(pile.ends, (batch.position, batch.end - 1), side="right").tolist()
        chosen = slice(first, last + 1)
        starts = pile.ends[chosen] - pile.lengths[chosen]
        begins = np.maximum(batch.position - starts, 0)  # in its document
        lengths = np.minimum(batch.end - starts, pile.lengths[chosen]) - begins
        places = (pile.offsets[chosen] + begins) * piles.dtype.itemsize
        with pile_errors(path):
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
    """Read ranges of bytes of a file, one after the other; DamageError if it is too short."""
    data = np.empty(int(sizes.sum()), np.uint8)
    view, position = data.data, 0
    with output_errors(path), open_own(path, "rb", buffering=0) as file:
        for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
            file.seek(place)
            end = position + size
            while position < end and (read := file.readinto(view[position:end])):  # type: ignore[attr-defined]
                position += read
            if position < end:
                raise _changed(path, "The")
    return data
