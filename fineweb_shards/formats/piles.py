"""The piles of a shuffle (stream/shuffle.py): their files, and how the second pass reads them.

A pile has the tokens of its documents, EOTs included, in the order of the stream. A list beside the piles grows by one
block per checkpoint: a table with a row for each pile, then (hash, tokens) of the documents that have ended, by pile.
The row has the range of the pile's documents in the block, their CRC, the length of the pile, and the SHA-256 of what
was added to it. So one pile needs only its share of the list, and everything is checked when it is read: a pile from
the checkpoint that recorded it, and the list.

A position in a pile is a number of tokens in the order of the hashes. A batch is as small as any other, and its payload
says where its documents are: a worker reads them from a pile that the parent has just read sequentially to compare its
hash. So no process holds a whole pile, whatever its size, and the disk is read sequentially. Nor does any process hold
the whole list of a pile: the parent divides the documents by hash into parts that fit into `PART_BYTES`, and reads the
list again for each.

In a bucket nothing can be appended to an object, or written into its middle. So the additions of a checkpoint to all
piles are one object, one after the other. A batch then has the documents of a whole pile or of a large part of it, and
the worker fetches the pile's addition in every object, compares its hash, and takes its documents. The list is a file
on the parent's machine all the same (output/pile_objects.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import DamageError, InputError, OutputError
from fineweb_shards.formats.base import Format, PileSettings
from fineweb_shards.storage.place import InputFile
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import output_errors
from fineweb_shards.system.own_files import WORK_FOLDER, open_own
from fineweb_shards.system.shared_memory import SharedBytes
from fineweb_shards.texts import TokenLists, copy_ranges
from fineweb_shards.types import Batch, Cursor, Piles, Positions, TextChunk, Tokens

if TYPE_CHECKING:
    from fineweb_shards.storage.bucket import Bucket

FOLDER = "piles"
OBJECTS = f"{WORK_FOLDER}/{FOLDER}"  # in a bucket
ENTRY_BYTES = 2 * 8  # of a document in the list
# `place` is where the addition begins in its object, in tokens. (Files need none; their lists may have 0.)
_ROW = np.dtype(
    [("begin", "<i8"), ("end", "<i8"), ("crc", "<u4"), ("place", "<u4"), ("tokens", "<i8"), ("sha256", "V32")]
)
_READ_BYTES = 2**20
_PIECE_DOCUMENTS = 2**15  # of the list, read at once
# Memory of the parent for lists (included in PARENT_BYTES, run/resources.py), and per document while a part is sorted
# and the previous one is still held. Measured: 48 bytes per document, plus a megabyte.
PART_BYTES = 32 * 2**20
_PART_DOCUMENT_BYTES = 52
MOST_IN_PART = PART_BYTES // _PART_DOCUMENT_BYTES
_GAP_BYTES = 2**13  # reading a gap of this size between documents is faster than another read
_FETCHED_AT_ONCE = 8  # pieces of additions in a bucket
_PIECE_BYTES = 8 * 2**20
_CHUNK_TOKENS = 2**22


def pile_name(number: int) -> str:
    return f"{number:04d}"


def list_path(folder: Path) -> Path:
    return folder / "documents"


def object_name(position: int, tokens: int) -> str:
    """Return the name of the object for the checkpoint whose block is at this position in the list. With `tokens`, how
    many all piles have by then, the name stands for one content, even if a dead run's upload arrives late."""
    return f"{position:015d}-{tokens:015d}"


@contextlib.contextmanager
def pile_errors(path: Path) -> Iterator[None]:
    """Turn an OSError on a file of the first pass into an OutputError that names the next step."""
    try:
        with output_errors(path):
            yield
    except OutputError as error:
        if error.hint != OutputError.hint:
            raise
        raise OutputError(
            error.message,
            "Its disk may be faulty. Rerun the same command. If it fails here again, remove this file: then the first "
            "pass is repeated, and finished shards are kept.",
        ) from error


def digest_of(path: Path, begin: int, end: int) -> hashlib._Hash:
    """Return the SHA-256 of a range of a file, or of what there is if the file is shorter."""
    digest = hashlib.sha256()
    with open_own(path, "rb") as file:
        file.seek(begin)
        while begin < end and (block := file.read(min(end - begin, _READ_BYTES))):
            begin += len(block)
            digest.update(block)
    return digest


def list_block(
    before: Sequence[int],
    tokens: Sequence[int],
    sha256: Sequence[bytes],
    hashes: NDArray[np.uint64],
    lengths: Positions,
    piles: Piles,
) -> bytes:
    """Return the next block of the list: each pile's length, `before` and now, the SHA-256 of what was added, and the
    documents."""
    order = np.argsort(piles, kind="stable")
    entries = np.empty((len(hashes), 2), "<u8")
    entries[:, 0], entries[:, 1] = hashes[order], lengths[order]
    bounds = np.searchsorted(piles[order], np.arange(len(tokens) + 1)).tolist()
    rows = np.empty(len(tokens), _ROW)
    rows["begin"], rows["end"], rows["tokens"] = bounds[:-1], bounds[1:], tokens
    added = np.subtract(tokens, before)
    rows["place"] = np.cumsum(added) - added
    rows["crc"] = [zlib.crc32(entries[begin:end].data) for begin, end in pairwise(bounds)]
    rows["sha256"] = [np.void(one) for one in sha256]
    return b"".join([rows.data, entries.data])


def block_bytes(piles: int, documents: int) -> int:
    """Return the size of a block of the list."""
    return piles * _ROW.itemsize + documents * ENTRY_BYTES


def append_to_list(path: Path, position: int, block: bytes) -> None:
    """Write a block of the list durably at a position, and truncate the file after it."""
    with open_own(path, "r+b") as file:
        file.seek(position)
        file.write(block)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class _Addition:
    """What a checkpoint has added to a pile: tokens from `begin` to `end`."""

    begin: int
    end: int
    sha256: bytes
    name: str  # of its object in a bucket
    place: int  # of its first token there


@dataclass(frozen=True, slots=True)
class _Part:
    """Documents of a pile with consecutive hashes, in order. Positions are those in the pile."""

    begin: int
    ends: Positions
    offsets: Positions  # of the first token of each in the file

    @property
    def end(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else self.begin

    def cut(self, begin: int, most_tokens: int, most_documents: int) -> tuple[int, bool, Positions, Positions]:
        """Return the end of a batch that begins here, whether that is inside a document, and offset and length of each
        of its documents. It ends before the first document that does not fit, or inside it if it is the only one."""
        first, last = np.searchsorted(self.ends, (begin, begin + most_tokens), side="right").tolist()
        last = min(last, first + most_documents)
        end = int(self.ends[last - 1]) if last > first else begin + most_tokens
        ends = self.ends[first : max(last, first + 1)]
        begins = np.empty_like(ends)
        begins[0], begins[1:] = self.ends[first - 1] if first else self.begin, ends[:-1]
        places = self.offsets[first : first + len(ends)] + np.maximum(begin - begins, 0)
        return end, end < int(ends[-1]), places, np.minimum(ends, end) - np.maximum(begins, begin)


class _Pile:
    """The list of a pile, which raises DamageError if it has changed."""

    def __init__(self, path: Path, number: int, piles: PileSettings) -> None:
        self._path = path
        with pile_errors(path):
            self._read_rows(number, piles)
            parts = max(1, -(-int((self._rows["end"] - self._rows["begin"]).sum()) // MOST_IN_PART))
            # Hashes are uniform, so intervals of the same width have about the same number of documents. The pile for
            # validation, number 0, has hashes of the whole range.
            before, count = (number - 1, piles.count - 1) if number else (0, 1)
            inner = [2**64 * (before * parts + number) // (count * parts) for number in range(1, parts)]
            self._bounds = np.array([0, *inner, 2**64 - 1], np.uint64)
            tokens = np.zeros(parts, np.int64)
            for hashes, lengths, _ in self._pieces():
                numbers = np.searchsorted(self._bounds[1:-1], hashes, side="right")
                tokens += np.bincount(numbers, lengths, parts).astype(np.int64)
        self._ends = np.cumsum(tokens)
        self.tokens = int(self._ends[-1])

    def parts(self, position: int) -> Iterator[_Part]:
        """Yield the parts, beginning with the one at this position."""
        for number in range(int(np.searchsorted(self._ends, position, side="right")), len(self._ends)):
            with pile_errors(self._path):
                part = self._part(number)
            yield part
            del part

    def _part(self, number: int) -> _Part:
        hashes, lengths, offsets = (list[NDArray[Any]]() for _ in range(3))
        low, high = self._bounds[number : number + 2]
        is_last = number + 1 == len(self._ends)  # includes the highest hash
        for piece in self._pieces():
            chosen = np.flatnonzero((piece[0] >= low) & ((piece[0] < high) | is_last))
            for arrays, values in zip((hashes, lengths, offsets), piece, strict=True):
                arrays.append(values[chosen])
        order = np.argsort(_join(hashes))
        ends = _join(lengths)[order]
        ends[:1] += self._ends[number - 1] if number else 0
        np.cumsum(ends, out=ends)
        return _Part(int(self._ends[number - 1]) if number else 0, ends, _join(offsets)[order])

    def _read(self, file: BinaryIO, size_bytes: int) -> bytes:
        if len(data := file.read(size_bytes)) < size_bytes:
            raise _changed(self._path)
        return data

    def _read_rows(self, number: int, piles: PileSettings) -> None:
        """Read the row of this pile in each block, the position of its first entry in the list, and its additions."""
        rows, self._positions, self.additions = [], list[int](), list[_Addition]()
        position = all_tokens = own_tokens = last_tokens = 0
        with open_own(self._path, "rb") as file:
            while position < piles.list_bytes:
                file.seek(position + number * _ROW.itemsize)
                (row,) = np.frombuffer(self._read(file, _ROW.itemsize), _ROW)
                file.seek(position + (piles.count - 1) * _ROW.itemsize)
                (last,) = np.frombuffer(self._read(file, _ROW.itemsize), _ROW)
                if not 0 <= row["begin"] <= row["end"] <= last["end"] <= piles.list_bytes:
                    raise _changed(self._path)
                all_tokens += int(last["place"]) + int(last["tokens"]) - last_tokens
                name, end, place = object_name(position, all_tokens), int(row["tokens"]), int(row["place"])
                self.additions.append(_Addition(own_tokens, end, row["sha256"].tobytes(), name, place))
                own_tokens, last_tokens = end, int(last["tokens"])
                rows.append(row)
                position += piles.count * _ROW.itemsize
                self._positions.append(position + ENTRY_BYTES * int(row["begin"]))
                position += ENTRY_BYTES * int(last["end"])
        self._rows = np.array(rows, _ROW)

    def _pieces(self) -> Iterator[tuple[NDArray[np.uint64], Positions, Positions]]:
        """Yield hash, tokens and file offset of each document, some at a time."""
        offset = 0
        counts = (self._rows["end"] - self._rows["begin"]).tolist()
        with open_own(self._path, "rb") as file:
            for position, left, expected in zip(self._positions, counts, self._rows["crc"].tolist(), strict=True):
                file.seek(position)
                crc = 0
                while left:
                    data = self._read(file, ENTRY_BYTES * min(left, _PIECE_DOCUMENTS))
                    crc, left = zlib.crc32(data, crc), left - len(data) // ENTRY_BYTES
                    hashes, tokens = np.frombuffer(data, "<u8").reshape(-1, 2).T
                    lengths = tokens.astype(np.int64)
                    ends = np.cumsum(lengths) + offset
                    yield hashes, lengths, ends - lengths
                    offset = int(ends[-1])
                if crc != expected:
                    raise _changed(self._path)


def _join(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Join arrays and release them."""
    joined = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
    arrays.clear()
    return joined


class PilesFormat(Format):
    def batches(self, file: InputFile, position: int, starts_mid_document: bool) -> Iterator[Batch]:
        if not file.size_bytes:
            return
        piles, most = self.settings.piles, self.settings.batch_bytes
        assert piles is not None
        width, path = piles.dtype.itemsize, Path(file.path)
        pile = _Pile(list_path(path.parent), file.index, piles)
        if not piles.url:
            with pile_errors(path):
                self._check(path, pile, width)
        additions = pile.additions if piles.url else []
        limits = max(1, most // width), max(1, most // ENTRY_BYTES)
        for part in pile.parts(position):
            while position < part.end:
                end, is_mid, places, lengths = part.cut(position, *limits)
                payload = SharedBytes(pickle.dumps((pile.tokens, places, lengths, additions)))
                size_bytes = (end - position) * width + ENTRY_BYTES * len(places)
                yield Batch(file.index, position, end, size_bytes, starts_mid_document, is_mid, payload=payload)
                position, starts_mid_document = end, is_mid

    def _check(self, path: Path, pile: _Pile, width: int) -> None:
        """Raise DamageError if a pile has changed, and remove it, so that the next run repeats the first pass."""
        for one in pile.additions:
            if digest_of(path, one.begin * width, one.end * width).digest() != one.sha256:
                path.unlink()
                raise _changed(path, "It was removed. ")

    def chunks(self, file: InputFile, batch: Batch) -> Iterator[TextChunk]:
        path, piles = Path(file.path), self.settings.piles
        assert piles is not None
        assert batch.payload is not None
        pile_tokens, places, lengths, additions = pickle.loads(batch.payload.read())
        tokens = np.empty(batch.end - batch.position, piles.dtype)
        if additions:
            self._fetch_ranges(additions, tokens, places, lengths)
        else:
            _read_ranges(path, tokens, places, lengths)
        ends = np.cumsum(lengths)
        eots = ends - lengths if piles.eot_first else ends - 1
        if piles.eot_first and batch.starts_mid_document:
            eots = eots[1:]
        if not piles.eot_first and batch.ends_mid_document:
            eots = eots[:-1]
        if not np.array_equal(self.settings.vocabulary.find_eots(tokens), eots):
            raise _changed(piles.url or path, "Remove it. ")
        tokens = tokens.astype(self.settings.vocabulary.dtype, copy=False)
        # A chunk ends with the document in which it exceeds its size; a batch of usual size is one chunk.
        lasts = np.searchsorted(ends, np.arange(_CHUNK_TOKENS, len(tokens), _CHUNK_TOKENS)) + 1
        for first, last in pairwise(np.unique([0, *lasts, len(ends)]).tolist()):
            begin, stop = int(ends[first] - lengths[first]), int(ends[last - 1])
            starts_mid = batch.starts_mid_document and first == 0
            ends_mid = batch.ends_mid_document and last == len(ends)
            position = batch.position + stop
            own = eots[slice(*np.searchsorted(eots, (begin, stop)))] - begin
            yield TextChunk(
                TokenLists((tokens[begin:stop], lengths[first:last]), eots=own),
                Cursor(file.index, batch.position + begin, 0, starts_mid),
                Cursor(file.index, position, 0, ends_mid) if position < pile_tokens else Cursor(file.index + 1, 0),
                starts_mid_document=starts_mid,
                ends_mid_document=ends_mid,
            )

    @cached_property
    def _bucket(self) -> Bucket:
        from fineweb_shards.storage.bucket import Bucket  # here, because few runs need it

        assert self.settings.piles is not None
        observer = self.place.retrier.observer
        return Bucket(self.settings.piles.url, self.place.max_outage_seconds, observer)

    def _fetch_ranges(self, additions: list[_Addition], tokens: Tokens, places: Positions, lengths: Positions) -> None:
        """Fetch ranges of a pile in a bucket into `tokens`, one after the other. Damaged objects are fetched once more,
        because the network may be at fault, and then removed, so that the next run repeats the first pass."""
        order = np.argsort(places)
        targets, begins, ends = (np.cumsum(lengths) - lengths)[order], places[order], (places + lengths)[order]
        for _ in range(2):
            damaged: set[str] = set()
            for name, begin, data, is_whole in self._fetch_pieces(additions, tokens.itemsize):
                held = np.frombuffer(data, tokens.dtype)
                own = slice(np.searchsorted(ends, begin, "right"), np.searchsorted(begins, begin + len(held)))
                first = np.maximum(begins[own], begin)  # a long document may be in several pieces
                sizes = np.minimum(ends[own], begin + len(held)) - first
                copy_ranges(held, first - begin, sizes, tokens, targets[own] + first - begins[own])
                damaged |= set() if is_whole else {name}
            if not damaged:
                return
        for name in damaged:
            self._bucket.delete_one(name)
        raise _changed(str(self._bucket.address.child(min(damaged))), "It was removed. ")

    def _fetch_pieces(self, additions: list[_Addition], width: int) -> Iterator[tuple[str, int, memoryview, bool]]:
        """Yield the additions to a pile in pieces, a few of which are fetched ahead: the object's name, the first
        token, the bytes, and False if the piece ends an addition whose hash is not the recorded one."""
        most = _PIECE_BYTES // width
        pieces = deque((one, begin) for one in additions for begin in range(one.begin, one.end, most))
        ahead: deque[tuple[_Addition, int, Future[memoryview]]] = deque()
        digest = hashlib.sha256()
        while pieces or ahead:
            while pieces and len(ahead) < _FETCHED_AT_ONCE:
                one, begin = pieces.popleft()
                place, end = (one.place + begin - one.begin) * width, min(begin + most, one.end)
                fetch = partial(self._bucket.fetch, one.name, None, place, place + (end - begin) * width)
                ahead.append((one, begin, in_background(fetch)))
            one, begin, future = ahead.popleft()
            try:
                data = future.result()
            except InputError:
                if self._bucket.head(one.name) is None:
                    raise _changed(str(self._bucket.address.child(one.name)), "It is missing. ") from None
                raise
            digest.update(data)
            is_last, is_whole = begin + len(data) // width == one.end, True
            if is_last:
                is_whole, digest = digest.digest() == one.sha256, hashlib.sha256()
            yield one.name, begin, data, is_whole

    def share_before(self, file: InputFile, position: int) -> float:
        assert self.settings.piles is not None
        return position * self.settings.piles.dtype.itemsize / max(1, file.size_bytes)

    def close(self) -> None:
        """No file is kept open."""


def _changed(path: Path | str, done: str = "") -> DamageError:
    return DamageError(
        f"{path}: this file of the shuffle has changed since it was written.",
        f"Memory or disk may be faulty. {done}Rerun the same command to repeat the first pass. "
        "Finished shards are kept.",
    )


def _read_ranges(path: Path, tokens: Tokens, places: Positions, lengths: Positions) -> None:
    """Read ranges of a token file into `tokens`, one after the other; DamageError if the file is too short. Nearby
    ranges are read together."""
    order, width = np.argsort(places), tokens.itemsize
    targets, begins, lengths = (np.cumsum(lengths) - lengths)[order], places[order], lengths[order]
    ends, blocks = begins + lengths, begins * width // _READ_BYTES
    apart = ((begins[1:] - ends[:-1]) * width > _GAP_BYTES) | (blocks[1:] != blocks[:-1])
    firsts = np.concatenate([[0], np.flatnonzero(apart) + 1])  # of what is read at once
    counts = np.diff(firsts, append=len(order))
    starts = begins[firsts]
    sizes = ends[firsts + counts - 1] - starts
    before = np.cumsum(sizes) - sizes
    begins += np.repeat(before - starts, counts)  # in everything that is read
    bounds = np.flatnonzero(np.diff(before * width // _READ_BYTES, prepend=-1, append=-1)).tolist()
    with pile_errors(path), open_own(path, "rb", buffering=0) as file:
        for first, stop in pairwise(bounds):  # hold a block or two
            held = np.empty(int(sizes[first:stop].sum()), tokens.dtype)
            view, position = held.data.cast("B"), 0
            runs = np.stack([starts[first:stop], sizes[first:stop]], 1) * width
            for start, size in runs.tolist():
                file.seek(start)
                end = position + size
                while position < end and (count := file.readinto(view[position:end])):  # type: ignore[attr-defined]
                    position += count
                if position < end:
                    raise _changed(path)
            own = slice(int(firsts[first]), int(firsts[stop - 1] + counts[stop - 1]))
            copy_ranges(held, begins[own] - before[first], lengths[own], tokens, targets[own])
