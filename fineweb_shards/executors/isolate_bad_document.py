"""Encode a chunk one document at a time, to find the document that crashes workers.

Each document is announced to the parent before it is encoded, so that the parent knows which one the worker
died on. If an engine raises an exception for a document, the other engine encodes it. A document that neither
can encode is left out: a whole document leaves nothing in the stream, a piece of a long one leaves its EOT.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fineweb_shards.executors.task import WorkOrder
from fineweb_shards.stream.boundaries import NO_POSITIONS, Span, join_spans
from fineweb_shards.texts import NO_TEXTS, Texts
from fineweb_shards.tokenizers.encoder import Encoder, UnencodableError
from fineweb_shards.types import Counts, EncodedBlock, Quarantined, TextChunk, id_of, row_of

# After this many documents of a batch crashed the first engine, the other one encodes the rest of it.
_MANY_FALLBACKS = 3
_SHOWN_CHARACTERS = 200
Announce = Callable[[Quarantined], None]  # called with each document that is encoded on its own


def digest_of(document: bytes | memoryview) -> str:
    """Return the SHA-256 of a document's text, by which a quarantined document is recognized."""
    return hashlib.sha256(document).hexdigest()


def holds_any(chunk: TextChunk, digests: frozenset[str]) -> bool:
    """Return whether one of the chunk's documents has one of these digests."""
    return bool(digests) and not digests.isdisjoint(map(digest_of, chunk.texts.iter_views()))


def encode_one_by_one(
    chunk: TextChunk,
    where: str,
    encoder: Encoder,
    order: WorkOrder,
    announce: Announce,
    piece_bytes: int,
) -> EncodedBlock:
    """Encode a chunk as one block, like `encoder.encode`, but leave out documents that can't be encoded.

    `announce` is called before each document. `piece_bytes` is recorded for pieces of long documents.
    """
    nothing = np.empty(0, encoder.vocabulary.dtype), NO_POSITIONS
    blocks = [EncodedBlock(chunk.start, None, *nothing, counts=chunk.counts, problems=chunk.problems)]
    quarantined: list[Quarantined] = []
    for i in range(len(chunk.documents)):
        part = _single(chunk, i)
        is_piece = part.starts_mid_document or part.ends_mid_document
        document = _describe(chunk, i, order, piece_bytes if is_piece else 0)
        # What is encoded instead of a quarantined document: nothing, or an empty text for a piece.
        documents = Texts.from_strings([""]) if is_piece else NO_TEXTS
        emptied = replace(part, documents=documents, origins=(), counts=Counts(quarantined_documents=1))
        try:
            if document.sha256 in order.skip_digests:
                blocks.append(encoder.encode(emptied, where))
                continue
            announce(document)
            blocks.append(_encode_with_either(part, where, encoder, order, document.sha256))
        except UnencodableError as error:
            quarantined.append(replace(document, cause=str(error)))
            blocks.append(encoder.encode(emptied, where))
    return replace(
        join_blocks(blocks),
        end=chunk.end,
        starts_at_seam=chunk.starts_at_seam,
        ends_at_seam=chunk.ends_at_seam,
        ends_mid_document=chunk.ends_mid_document,
        quarantined=tuple(quarantined),
    )


def join_blocks(blocks: list[EncodedBlock]) -> EncodedBlock:
    """Return blocks that follow one another as one, without seams."""
    whole = join_spans([Span(block.array, block.eots) for block in blocks])
    return EncodedBlock(
        blocks[0].start,
        blocks[-1].end,
        whole.tokens,
        whole.eots,
        counts=sum((block.counts for block in blocks), Counts()),
        problems=tuple(problem for block in blocks for problem in block.problems),
        quarantined=tuple(document for block in blocks for document in block.quarantined),
    )


def _encode_with_either(
    part: TextChunk, where: str, encoder: Encoder, order: WorkOrder, sha256: str
) -> EncodedBlock:
    """Encode a document with either engine, or only with the other one if the first has crashed on it."""
    if sha256 in order.use_fallback_for or len(order.use_fallback_for) >= _MANY_FALLBACKS:
        return (encoder.fallback or encoder).encode(part, where)
    try:
        return encoder.encode(part, where)
    except UnencodableError:
        if encoder.fallback is None:
            raise
        return encoder.fallback.encode(part, where)


def _single(chunk: TextChunk, i: int) -> TextChunk:
    """Return document `i` of a chunk as a chunk of its own, without the counts of the whole chunk."""
    origins = [origin for origin in chunk.origins if 0 <= i - origin.first < origin.count]
    return TextChunk(
        chunk.texts.only(i),
        None,
        None,
        starts_mid_document=chunk.starts_mid_document and i == 0,
        ends_mid_document=chunk.ends_mid_document and i == len(chunk.documents) - 1,
        origins=tuple(
            replace(
                origin,
                first=0,
                count=1,
                rows=None if origin.rows is None else origin.rows[i - origin.first :][:1],
                ids=None if origin.ids is None else origin.ids[i - origin.first :][:1],
                tokens=None if origin.tokens is None else origin.tokens[i - origin.first :][:1],
            )
            for origin in origins
        ),
    )


def _describe(chunk: TextChunk, i: int, order: WorkOrder, piece_of_bytes: int) -> Quarantined:
    """Return the record that document `i` has if it is quarantined."""
    (document,) = chunk.texts.only(i).iter_views()  # not copied: it may be too long for anything else
    return Quarantined(
        file=order.batch.file,
        position=order.batch.position,
        document=i,
        row=row_of(chunk, i),
        id=id_of(chunk, i),
        text_bytes=len(document),
        sha256=digest_of(document),
        begins=bytes(document[: 4 * _SHOWN_CHARACTERS]).decode("utf-8", "ignore")[:_SHOWN_CHARACTERS],
        piece_of_bytes=piece_of_bytes,
        part=order.batch.part,
    )
