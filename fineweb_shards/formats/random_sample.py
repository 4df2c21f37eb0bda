"""Keep a random share of the documents (`--sample`) as they are read, so that later stages are unaffected.

A document is kept if a hash of its beginning is below the share: BLAKE2b with the seed as its key, over the first
64 KiB of its text in UTF-8, or of its ids in the vocabulary's width. Its number in the stream would do as well, but
workers don't know it. A choice by content is the same with any workers, batches, order of files, part and epoch. A
smaller share is a subset of a larger one. Copies of a document are kept or left out together, so that a sample and its
complement are disjoint.

The beginning of a long document decides for all of it. The pieces of a parquet row are read in order, and the beginning
may span several. Of a text file a worker may see only the middle, so the parent reads the beginning of each document
that it cuts, and passes on the decision (`Batch.is_kept`). A resume starts at the beginning of such a document, never
inside it: otherwise the parent would need its beginning again, which a stream can't provide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.texts import Texts, TokenLists
from fineweb_shards.types import Origin, TextChunk

BEGINNING_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RandomSample:
    share: float
    seed: int

    def keeps(self, beginning: bytes | memoryview) -> bool:
        """Return whether the document with this beginning, of at least BEGINNING_BYTES or all of it, is kept."""
        key = str(self.seed).encode()
        digest = hashlib.blake2b(beginning[:BEGINNING_BYTES], digest_size=8, key=key).digest()
        return int.from_bytes(digest, "big") < self.share * 2**64

    def choose(self, chunks: Iterator[TextChunk], decided: bool | None) -> Iterator[TextChunk]:
        """Yield the chunks of a batch with the documents to keep. `decided` is the decision about the last document, if
        the batch has only a part of it."""
        read: list[TextChunk] = []  # ahead
        is_kept = False  # the last document so far
        while chunk := read.pop(0) if read else next(chunks, None):
            beginnings = [*_iter_beginnings(chunk.documents)]
            if chunk.ends_mid_document and decided is None:
                beginnings[-1] = self._read_on(beginnings[-1], read, chunks)
            kept = np.fromiter(map(self.keeps, beginnings), np.bool_, len(beginnings))
            if decided is not None:
                kept[-1:] = decided
            elif chunk.starts_mid_document:
                kept[:1] = is_kept
            is_kept = bool(kept[-1]) if len(kept) else is_kept
            yield _take(chunk, kept)

    def _read_on(self, beginning: bytes | memoryview, read: list[TextChunk], chunks: Iterator[TextChunk]) -> bytes:
        """Return the beginning of a document that continues in the next chunks, which are added to `read` as needed."""
        found, number = bytes(beginning), 0
        while len(found) < BEGINNING_BYTES:
            if number == len(read):
                read.append(next(chunks))
            found += bytes(next(_iter_beginnings(read[number].documents)))
            if len(read[number].documents) > 1 or not read[number].ends_mid_document:
                break
            number += 1
        return found


def _iter_beginnings(documents: Texts | TokenLists) -> Iterator[bytes | memoryview]:
    """Yield at least the hashed bytes of each document."""
    if isinstance(documents, Texts):
        return (view[:BEGINNING_BYTES] for view in documents.iter_views())
    return (ids[:BEGINNING_BYTES].tobytes() for ids in documents)


def _take(chunk: TextChunk, kept: NDArray[np.bool_]) -> TextChunk:
    """Return the chunk with some of its documents, and without cursors inside a document."""
    documents = chunk.documents.take(kept)
    is_first, is_last = bool(kept[:1].all()), bool(kept[-1:].all())
    begun = len(kept) - int(chunk.starts_mid_document)  # documents count where they begin
    left_out = begun - int(kept[chunk.starts_mid_document :].sum())
    text_bytes = documents.size_bytes if isinstance(documents, Texts) else 0
    origins = []
    for origin in chunk.origins:
        own = kept[origin.first : origin.first + origin.count]
        rows, tokens = (None if one is None else one[own] for one in (origin.rows, origin.tokens))
        ids = None if origin.ids is None else [*compress(origin.ids, own)]
        origins.append(Origin(int(kept[: origin.first].sum()), int(own.sum()), rows, ids, tokens))
    return replace(
        chunk,
        documents=documents,
        start=None if chunk.starts_mid_document else chunk.start,
        end=None if chunk.ends_mid_document else chunk.end,
        starts_mid_document=chunk.starts_mid_document and is_first,
        ends_mid_document=chunk.ends_mid_document and is_last,
        starts_at_seam=chunk.starts_at_seam and is_first,
        ends_at_seam=chunk.ends_at_seam and is_last,
        counts=replace(chunk.counts, text_bytes=text_bytes, unsampled_documents=left_out),
        origins=tuple(origins),
    )
