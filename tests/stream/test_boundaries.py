"""Where documents end is carried from the encoder on: everywhere it is what a search would find."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.executors.encode_batch import digest_of, encode_one_by_one
from fineweb_shards.executors.local.worker import Outbox
from fineweb_shards.executors.messages import Encoded, WorkOrder
from fineweb_shards.sources.source import Parts, open_source
from fineweb_shards.stream.section import Span, join_spans
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.encoder import PASSAGE_BYTES, make_mender
from fineweb_shards.types import Batch, EncodedBlock, TextChunk, TokenBlock
from fineweb_shards.vocabulary import GPT2, Vocabulary
from tests.support import runs
from tests.support.doubles import InlineExecutor
from tests.support.stitching import stitch

WIDE = Vocabulary("wide", "", 70_000, 69_999)
texts = st.lists(st.sampled_from(["", "a", "one two", "<|endoftext|>", "\n\n", "你好 " * 3]), max_size=12)


def check(block: EncodedBlock | TokenBlock | Span, vocabulary: Vocabulary = GPT2) -> None:
    """As a loop over the tokens finds them."""
    expected = [place for place, token in enumerate(block.tokens.tolist()) if token == vocabulary.eot]
    assert block.eots.tolist() == expected
    assert block.eots.dtype == np.int64


def chunk_of(documents: list[str], *, begins: bool, ends: bool) -> TextChunk:
    return TextChunk(Texts.from_strings(documents), None, None, starts_mid_document=begins, ends_mid_document=ends)


@given(texts, st.booleans(), st.booleans(), st.booleans())
def test_the_encoder_tells_its_eots(documents: list[str], eot_first: bool, begins: bool, ends: bool) -> None:
    """On either side, empty documents too, and none where a document only goes on."""
    encoder = runs.encoder("tiktoken", eot_first=eot_first)
    block = encoder.encode(chunk_of(documents, begins=begins, ends=ends), "test")
    check(block)
    goes_on = begins if eot_first else ends
    assert len(block.eots) == max(0, len(documents) - goes_on)


def test_a_long_document_between_short_ones() -> None:
    """It is encoded in passages, with seams, and joined again."""
    long = "a" * (PASSAGE_BYTES + 999)
    block = runs.encoder("auto").encode(chunk_of(["x", long, "", "y"], begins=False, ends=False), "test")
    check(block)
    assert len(block.eots) == 4


@given(texts, st.sets(st.integers(0, 11)), st.booleans(), st.booleans(), st.booleans())
def test_one_by_one_with_documents_in_quarantine(
    documents: list[str], lost: set[int], eot_first: bool, begins: bool, ends: bool
) -> None:
    """A whole document leaves no trace, a piece of one its EOT."""
    encoder = runs.encoder("tiktoken", eot_first=eot_first)
    digests = frozenset(digest_of(documents[i].encode()) for i in lost if i < len(documents))
    order = WorkOrder(Batch(0, 0, 1, 1), skip_digests=digests, one_by_one=True)
    chunk = chunk_of(documents, begins=begins, ends=ends)
    block = encode_one_by_one(chunk, "test", encoder, order, lambda document: None, 1)
    check(block)
    assert block.tokens.dtype == GPT2.dtype
    whole = [text for text in documents if digest_of(text.encode()) not in digests]
    if len(documents) > 2 and not begins and not ends:
        assert len(block.eots) == len(whole)


@pytest.mark.parametrize("eot_first", [True, False])
@pytest.mark.parametrize("batch_bytes", [20_000, 70_000])
def test_the_stitcher_moves_them_at_seams(tmp_path: Path, eot_first: bool, batch_bytes: int) -> None:
    """Documents of many batches with no safe place to cut, with short ones between them."""
    chooser = random.Random(1)
    long = ["".join(chr(chooser.randrange(0x4E00, 0x5200)) for _ in range(80_000)) for _ in range(3)]
    parts = ["short", long[0], "short", "end", long[1], "a", long[2], "the last"]
    (tmp_path / "a.txt").write_text("\n\n\n".join(parts))
    source = runs.job_of(tmp_path / "out", tmp_path / "a.txt", separator="\n\n\n").source
    part = source.parts[0]
    source = Parts((open_source(part.files, replace(part.settings, batch_bytes=batch_bytes)),))
    encoder = runs.encoder(eot_first=eot_first)
    encoded = list(InlineExecutor(source, encoder).encode([source.batches(runs.START)]))
    assert any(block.starts_at_seam for block in encoded)
    blocks = list(stitch(encoded, partial(make_mender, GPT2), runs.START))
    for block in blocks:
        check(block)
    assert sum(len(block.eots) for block in blocks) == len(parts)


spans = st.lists(st.lists(st.sampled_from([1, 66_000, WIDE.eot]), max_size=9), min_size=1, max_size=6)


@given(spans, st.integers(0, 54), st.integers(0, 54))
def test_cutting_and_joining(lists: list[list[int]], one: int, other: int) -> None:
    """Whatever is cut off or put together, the places are those of its own tokens."""
    arrays = [np.array(tokens, WIDE.dtype) for tokens in lists]
    whole = join_spans([Span(tokens, WIDE.find_eots(tokens)) for tokens in arrays])
    check(whole, WIDE)
    assert whole.tokens.tolist() == [token for tokens in lists for token in tokens]
    begin, end = sorted((min(one, len(whole)), min(other, len(whole))))
    part = whole.cut(begin, end)
    check(part, WIDE)
    assert part.tokens.tolist() == whole.tokens[begin:end].tolist()


@pytest.mark.parametrize("vocabulary", [GPT2, WIDE], ids=lambda one: one.name)
@pytest.mark.parametrize("tokens", [[], [1], [5, 6, 7]])
def test_the_pipe_keeps_places_and_width(vocabulary: Vocabulary, tokens: list[int]) -> None:
    """What a worker sends of a block with a seam is what arrives."""
    array = np.array([vocabulary.eot, *tokens] if tokens else [], vocabulary.dtype)
    here, there = Pipe()
    block = EncodedBlock(None, None, array, vocabulary.find_eots(array), ends_at_seam=True)
    Outbox(here).send(Encoded(3, block))
    message = there.recv()
    assert isinstance(message, Encoded)
    assert message.index == 3
    found = message.block
    assert (found.array.dtype, found.array.tolist()) == (vocabulary.dtype, array.tolist())
    check(found, vocabulary)
