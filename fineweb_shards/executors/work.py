"""The work itself, the same for every executor: read a batch, encode it, yield its blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fineweb_shards.executors.one_by_one import encode_one_by_one, holds_any
from fineweb_shards.executors.task import WorkOrder
from fineweb_shards.sources.base import Source
from fineweb_shards.tokenizers import resolve_engine
from fineweb_shards.tokenizers.encoder import Encoder, UnencodableError
from fineweb_shards.tokenizers.selftest import check_engine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.types import EncodedBlock, Quarantined
from fineweb_shards.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a worker needs to know before its first order."""

    source: Source
    engine: str
    eot_first: bool
    seed: int

    @property
    def vocabulary(self) -> Vocabulary:
        """What is encoded to. Without the bytes of its tokens: a worker reads them itself."""
        return self.source.settings.vocabulary

    def make_encoder(self) -> Encoder:
        """The worker's encoder, once it has passed its self-test."""
        vocabulary = load_token_bytes(self.vocabulary)
        reference = TiktokenEngine(vocabulary)
        engine_class = resolve_engine(self.engine)
        engine = reference if engine_class is TiktokenEngine else engine_class(vocabulary)
        encoder = Encoder(engine, reference, eot_first=self.eot_first, seed=self.seed)
        check_engine(encoder, engine.name, reference)
        return encoder


def encode_batch(
    source: Source, encoder: Encoder, order: WorkOrder, announce: Callable[[Quarantined], None]
) -> Iterator[EncodedBlock]:
    """Do an order: yield a block for each chunk of the batch. The same for every executor."""
    name = source.files[order.batch.file].name
    for number, chunk in enumerate(source.chunks(order.batch)):
        if number < order.first_block:
            continue
        block = None
        if not order.one_by_one and not holds_any(chunk, order.skip_digests):
            with contextlib.suppress(UnencodableError):  # a document at a time will show which one it is
                block = encoder.encode(chunk, name)
        if block is None:
            block = encode_one_by_one(chunk, name, encoder, order, announce, source.settings.batch_bytes)
        yield block
