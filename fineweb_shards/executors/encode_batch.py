"""The work of a worker, the same for every executor: read a batch, encode it, yield its blocks.

The executor decides how orders arrive, where tokens are held, and where blocks are sent.

To find a document that crashes workers, a chunk is encoded one document at a time, and each document is announced to
the parent first. If an engine raises an exception for a document, the other engine encodes it. A document that neither
can encode is left out: a whole document leaves nothing in the stream, a piece of a long one leaves its EOT.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fineweb_shards.errors import ShardError, describe_error
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.messages import FileOrder, FileResult, WorkOrder
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.shard_files import PileWork, TokenWriter, seal
from fineweb_shards.output.sidecars import write_sidecars
from fineweb_shards.output.store import Segment, Store
from fineweb_shards.sources.source import Parts, arrived_damaged
from fineweb_shards.stream.section import NO_POSITIONS, Span, join_spans
from fineweb_shards.system.retry import Disk
from fineweb_shards.texts import NO_TEXTS, Texts
from fineweb_shards.tokenizers import ENGINES
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.encoder import Encoder, TokenJoiner, UnencodableError
from fineweb_shards.tokenizers.references import make_reference
from fineweb_shards.tokenizers.trial import GPT2_SHA256, check_engine
from fineweb_shards.tokenizers.vocabulary_files import is_gpt2_text
from fineweb_shards.types import Batch, Counts, EncodedBlock, HeldTokens, Quarantined, TextChunk, Tokens, find_origin
from fineweb_shards.vocabulary import Vocabulary

# After this many documents of a batch crash the first engine, the other one encodes the rest.
_MANY_FALLBACKS = 3
_SHOWN_CHARACTERS = 200
Announce = Callable[[Quarantined], None]  # called with each document that is encoded separately
Blocks = Iterator[tuple[int, EncodedBlock]]  # with their numbers in the batch


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker's settings, sent before its first order."""

    source: Parts
    engine: str | None  # None: the whole input is already tokenized
    seed: int
    shard_format: ShardFormat  # of the files to write
    store: Store  # of the output
    max_outage_seconds: int  # how long to wait for space on a full disk
    priority: str = "background"
    selftest_sha256: str = GPT2_SHA256  # of the reference's tokens
    mistaken: str = ""  # characters that the engine misclassifies
    holds_tokens: bool = True  # until a write order arrives; False: the worker sends them with their block

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary; the worker loads the bytes of its tokens itself."""
        return self.shard_format.vocabulary

    def make_writer(self, observer: Observer) -> TokenWriter:
        return TokenWriter(self.shard_format, Disk(self.store.folder, self.max_outage_seconds, observer))

    def finish_file(self, order: FileOrder, observer: Observer) -> FileResult:
        """Seal a segment or a pile, or write the sidecars of a finished file."""
        if isinstance(order.work, Segment | PileWork):
            settings = self.shard_format, self.store, self.max_outage_seconds
            return FileResult(order.number, seal(observer, order.work, *settings))
        if order.work is not None:
            write_sidecars(observer, order.work)
        return FileResult(order.number)

    def make_encoder(self) -> Encoder | TokenJoiner:
        """Return the worker's encoder, which has passed the self-test."""
        eot_first = self.shard_format.layout.eot_first
        if self.engine is None:
            return TokenJoiner(self.vocabulary, eot_first=eot_first)
        reference = make_reference(self.vocabulary)
        is_reference = self.engine == reference.name
        engine: Engine = reference if is_reference else ENGINES[self.engine](self.vocabulary, self.mistaken)
        encoder = Encoder(engine, reference, eot_first=eot_first, seed=self.seed)
        check_engine(encoder.encode_documents, engine.name, reference, self.selftest_sha256)
        if not is_gpt2_text(self.vocabulary):
            # Now, not with the first sample: the memory guard must not mistake its memory for a growing cache.
            reference.encode_text("")
        return encoder


def encode_batch(source: Parts, encoder: Encoder | TokenJoiner, order: WorkOrder, announce: Announce) -> Blocks:
    """Yield a block, with its number, for each chunk. `announce` gets each document that is encoded separately."""
    part = order.batch.part
    if isinstance(encoder, Encoder) and source.of(order.batch).settings.tokens_column is not None:
        encoder = encoder.joiner
    encode = _encode_members if order.batch.members else _encode_single
    for number, block in encode(source, encoder, order, announce):
        yield number, replace(block, part=part) if part else block


def _encode_single(source: Parts, encoder: Encoder | TokenJoiner, order: WorkOrder, announce: Announce) -> Blocks:
    """Yield the blocks of one file. If a token_count differs, fetch what came over the network once more."""

    def encode_from(first_block: int) -> Blocks:
        for number, chunk in enumerate(source.chunks(order.batch)):
            if number >= first_block:
                yield number, _encode_chunk(source, encoder, order, chunk, announce)

    for number, block in encode_from(order.first_block):
        if block.counts.token_count_mismatches and source.fetch_again(order.batch):
            note = arrived_damaged(source.file_of(order.batch), order.batch)
            for later, sound in encode_from(number):
                is_sound = later == number and not sound.counts.token_count_mismatches
                yield later, replace(sound, problems=(*sound.problems, note)) if is_sound else sound
            return
        yield number, block


def _encode_members(source: Parts, encoder: Encoder | TokenJoiner, order: WorkOrder, announce: Announce) -> Blocks:
    """Yield one block for several small files. If one can't be read, yield the files before it, then raise."""
    read: list[tuple[Batch, TextChunk]] = []
    failure: ShardError | None = None
    for member in order.batch.members:
        try:
            read.extend((member, chunk) for chunk in source.chunks(member))
        except ShardError as error:
            failure = error
            break
        except Exception as error:  # a bug: its message will name the first of the files
            error.add_note(f"While {source.file_of(member).name} was read.")
            raise
    if read and not order.first_block:
        block = None
        if not (isinstance(encoder, TokenJoiner) or order.one_by_one or order.skip_digests):
            chunks = [chunk for _, chunk in read]
            whole = TextChunk(
                Texts.from_pieces([text for chunk in chunks for text in chunk.texts.iter_bytes()]),
                chunks[0].start,
                chunks[-1].end,
                counts=sum((chunk.counts for chunk in chunks), Counts()),
                problems=tuple(problem for chunk in chunks for problem in chunk.problems),
            )  # without origins: only documents with a token_count, or encoded one by one, need them
            first, last = (source.file_of(order.batch.members[i]).name for i in (0, -1))
            with contextlib.suppress(UnencodableError):  # encoding file by file will find the document
                block = encoder.encode(whole, f"{first} to {last}")
        if block is None:
            orders = [(replace(order, batch=member), chunk) for member, chunk in read]
            block = join_blocks([_encode_chunk(source, encoder, *one, announce) for one in orders])
        yield 0, block
    if failure is not None:
        raise failure


def _encode_chunk(
    source: Parts, encoder: Encoder | TokenJoiner, order: WorkOrder, chunk: TextChunk, announce: Announce
) -> EncodedBlock:
    if isinstance(encoder, TokenJoiner):  # no document can crash it
        return encoder.join(chunk)
    name = source.file_of(order.batch).name
    skips = order.skip_digests and not order.skip_digests.isdisjoint(map(digest_of, chunk.texts.iter_views()))
    if not (order.one_by_one or skips):
        with contextlib.suppress(UnencodableError):  # encoding one by one will find the document
            return encoder.encode(chunk, name)
    batch_bytes = source.of(order.batch).settings.batch_bytes
    return encode_one_by_one(chunk, name, encoder, order, announce, batch_bytes)


def hold_tokens(order: WorkOrder, index: int, block: EncodedBlock) -> tuple[EncodedBlock, Tokens | None]:
    """Return a block without its tokens, and the tokens for the worker to hold. A block at a seam, whose tokens the
    parent has to repair, or without tokens is returned unchanged."""
    tokens = block.array
    if block.starts_at_seam or block.ends_at_seam or not len(tokens):
        return block, None
    return replace(block, tokens=HeldTokens(order.number, index, len(tokens))), tokens


def batch_error(source: Parts, batch: Batch, error: Exception, who: str = "A worker") -> ShardError:
    """Return the error that ended a batch; an unexpected exception is a bug, and shown with its traceback."""
    if isinstance(error, ShardError):
        return error
    name = source.file_of(batch).name
    return ShardError(f"{who} failed on {name} at position {batch.position}: {describe_error(error)}")


class Prefetcher:
    """Fetches batches ahead of their use. Each failure is only reported, once: reading the batch raises the error."""

    def __init__(self, source: Parts, observer: Observer) -> None:
        self._source, self._observer = source, observer
        self._reported: set[str] = set()

    def prefetch(self, batch: Batch) -> None:
        """Start fetching a batch. Raises only MemoryError: the batch may still be readable later."""
        try:
            self._source.prefetch(batch)
        except MemoryError:
            raise
        except Exception as error:
            if repr(error) not in self._reported:
                self._reported.add(repr(error))
                name = self._source.file_of(batch).name
                text = f"{name}: could not be fetched ahead: {describe_error(error)}"
                self._observer.tell(Event("worker", text))


def digest_of(document: bytes | memoryview) -> str:
    """Return the SHA-256 of a document's text, which identifies a quarantined document."""
    return hashlib.sha256(document).hexdigest()


def encode_one_by_one(
    chunk: TextChunk, where: str, encoder: Encoder, order: WorkOrder, announce: Announce, piece_bytes: int
) -> EncodedBlock:
    """Encode a chunk as one block, like `encoder.encode`, but leave out documents that can't be encoded. Call
    `announce` before each document. `piece_bytes` is recorded for pieces of long documents."""
    nothing = np.empty(0, encoder.vocabulary.dtype), NO_POSITIONS
    blocks = [EncodedBlock(chunk.start, None, *nothing, counts=chunk.counts, problems=chunk.problems)]
    quarantined: list[Quarantined] = []
    for i in range(len(chunk.documents)):
        part = _single(chunk, i)
        is_piece = part.starts_mid_document or part.ends_mid_document
        document = _describe(chunk, i, order, piece_bytes if is_piece else 0)
        # The replacement of a quarantined document: nothing, or an empty text for a piece.
        documents = Texts.from_strings([""]) if is_piece else NO_TEXTS
        emptied = replace(part, documents=documents, origins=(), counts=Counts(quarantined_documents=1))
        try:
            if document.sha256 in order.skip_digests:
                blocks.append(encoder.encode(emptied, where))
                continue
            announce(document)
            fallbacks = order.use_fallback_for  # the first engine has crashed on these
            if len(fallbacks) >= _MANY_FALLBACKS or document.sha256 in fallbacks:
                blocks.append((encoder.fallback or encoder).encode(part, where))
                continue
            try:
                blocks.append(encoder.encode(part, where))
            except UnencodableError:
                if (fallback := encoder.fallback) is None:
                    raise
                blocks.append(fallback.encode(part, where))
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
    """Join consecutive blocks into one, without seams."""
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


def _single(chunk: TextChunk, i: int) -> TextChunk:
    """Return document `i` of a chunk as a separate chunk, without the counts of the whole chunk."""
    ids = [find_origin(chunk, i)[1]]
    return TextChunk(
        chunk.texts.only(i),
        None,
        None,
        starts_mid_document=chunk.starts_mid_document and i == 0,
        ends_mid_document=chunk.ends_mid_document and i == len(chunk.documents) - 1,
        origins=tuple(
            replace(one, first=0, count=1, rows=None, ids=ids, tokens=one.tokens[i - one.first :][:1])
            for one in chunk.origins
            if one.tokens is not None and 0 <= i - one.first < one.count
        ),
    )


def _describe(chunk: TextChunk, i: int, order: WorkOrder, piece_of_bytes: int) -> Quarantined:
    """Return the record of document `i` in case it is quarantined."""
    (document,) = chunk.texts.only(i).iter_views()  # not copied: it may be huge
    row, name = find_origin(chunk, i)
    return Quarantined(
        file=order.batch.file,
        position=order.batch.position,
        document=i,
        row=row,
        id=name,
        text_bytes=len(document),
        sha256=digest_of(document),
        begins=bytes(document[: 4 * _SHOWN_CHARACTERS]).decode("utf-8", "ignore")[:_SHOWN_CHARACTERS],
        piece_of_bytes=piece_of_bytes,
        part=order.batch.part,
    )
