"""Encode documents to blocks of tokens with an engine, so that every document gets the reference's tokens.

- A long document is encoded in passages, cut where that does not change the tokens (cuts.py).
- An exception of the engine becomes an UnencodableError; the caller may then use `fallback`. The same error is raised
  for a text that is too long to be encoded whole and has no place to cut.
- A seeded sample is encoded again with the reference, and any difference stops the run.
- Documents that are already tokens need no engine: `TokenJoiner` only puts EOTs between them.

`executors/` decides which documents are retried or left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property

import numpy as np

from fineweb_shards.errors import ExactnessError
from fineweb_shards.texts import Ids, Texts, TokenLists
from fineweb_shards.tokenizers.base import Engine, JoinedIds, Reference, is_failure, join_ids
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, LONGEST_UNCUT_BYTES, SeamMender, cut_passages, find_cut
from fineweb_shards.tokenizers.fastokens_engine import FastokensEngine
from fineweb_shards.tokenizers.gigatoken_engine import GigatokenEngine
from fineweb_shards.tokenizers.references import load_token_bytes, make_reference
from fineweb_shards.tokenizers.vocabulary_files import is_gpt2_text
from fineweb_shards.types import Counts, EncodedBlock, Positions, TextChunk, Tokens, find_origin
from fineweb_shards.vocabulary import CutRule, Vocabulary

PASSAGE_BYTES = 256 * 1024
# One in this many documents is encoded again, and only the beginning of a long one: tiktoken is about 20 times slower,
# so this takes well under 3 % of the time.
SAMPLE_ONE_IN = 1024
SAMPLE_BYTES = 16 * 1024
# Without a rule for cutting, whole documents are encoded again, up to this size.
_LONGEST_WHOLE_BYTES = 2**20


def outer_eots(chunk: TextChunk, *, eot_first: bool) -> tuple[int, int]:
    """Return how many EOTs (0 or 1) to drop at each end of the documents of a chunk, with EOTs before, between and
    after them. A document that continues from the previous chunk, or in the next, has no EOT on that side."""
    return int(chunk.starts_mid_document or not eot_first), int(chunk.ends_mid_document or eot_first)


@cache
def make_mender(vocabulary: Vocabulary) -> SeamMender:
    """Return this process's SeamMender; it is immutable, so threads may share it."""
    reference = make_reference(vocabulary)
    encoder = Encoder(reference, reference, eot_first=True, seed=0)
    # With an Encoder, because tiktoken alone panics on very long windows.
    return SeamMender(
        lambda text: encoder.encode_documents(Texts.from_strings([text]))[0].tolist(), load_token_bytes(vocabulary)
    )


class UnencodableError(Exception):
    """The engine raised an exception for a text, or the text is too long to be encoded whole."""


class Encoder:
    """Encodes chunks for one worker with `engine`; `reference` checks the sample."""

    def __init__(self, engine: Engine, reference: Reference, *, eot_first: bool, seed: int) -> None:
        self.vocabulary = reference.vocabulary
        self._engine, self._reference = engine, reference
        self._eot_first, self._seed = eot_first, seed

    @cached_property
    def fallback(self) -> Encoder | None:
        """An encoder with another engine, for documents that this one can't encode; None if there is none.

        The fallback of a reference must be known to give the same tokens without a test.
        """
        engine: Engine | None = None
        if not isinstance(self._engine, Reference):
            engine = self._reference
        elif is_gpt2_text(self.vocabulary):
            others = (one for one in (GigatokenEngine, FastokensEngine) if one.installed_version())
            engine = next((other(self.vocabulary) for other in others), None)
        if engine is None:
            return None
        return Encoder(engine, self._reference, eot_first=self._eot_first, seed=self._seed)

    @cached_property
    def joiner(self) -> TokenJoiner:
        """The replacement for this encoder in a part of the input that is already tokens."""
        return TokenJoiner(self.vocabulary, eot_first=self._eot_first)

    def encode(self, chunk: TextChunk, where: str) -> EncodedBlock:
        """Return the chunk's tokens with EOTs; `where` names the file in messages.

        Raises UnencodableError if one of the documents can't be encoded.
        """
        tokens, positions = self._encode_joined(chunk.texts)
        if not isinstance(self._engine, Reference):
            self._check_sample(chunk, JoinedIds(tokens[:-1], positions[:-1]), where)
        lengths = np.diff(positions) - 1
        wrong: list[str] = []
        for origin in chunk.origins:
            if origin.tokens is not None:
                ours = lengths[origin.first : origin.first + origin.count]
                wrong += [
                    f"{where}: document {find_origin(chunk, origin.first + i)[1]} has {ours[i]:,} tokens, "
                    f"its token_count says {origin.tokens[i]:,}"
                    for i in np.flatnonzero((ours != origin.tokens) & (origin.tokens >= 0)).tolist()
                ]
        first, last = outer_eots(chunk, eot_first=self._eot_first)
        return EncodedBlock(
            start=chunk.start,
            end=chunk.end,
            tokens=tokens[first : len(tokens) - last],
            eots=positions[first : len(positions) - last] - first,
            starts_at_seam=chunk.starts_at_seam,
            ends_at_seam=chunk.ends_at_seam,
            ends_mid_document=chunk.ends_mid_document,
            counts=chunk.counts + Counts(token_count_mismatches=len(wrong)) if wrong else chunk.counts,
            problems=(*chunk.problems, *wrong),
        )

    def encode_documents(self, texts: Texts) -> list[Ids]:
        """Encode each document exactly as the reference does in one call, whatever its length and content."""
        if texts.longest_bytes <= PASSAGE_BYTES:
            with self._translated_errors():
                return self._engine.encode(texts)
        passages, seams = cut_passages(texts, PASSAGE_BYTES, self.vocabulary.cut_rule)
        if passages.longest_bytes > LONGEST_UNCUT_BYTES:
            raise UnencodableError(
                f"it has {passages.longest_bytes:,} bytes without a place where {self.vocabulary.name} "
                f"allows a cut, and at most {LONGEST_UNCUT_BYTES:,} can be encoded at once; split it into "
                "several documents"
            )
        with self._translated_errors():
            parts = iter(self._engine.encode(passages))
        return [self._join([(next(parts), seam) for seam in document]) for document in seams]

    def _join(self, parts: list[tuple[Ids, bool]]) -> Ids:
        """Join the tokens of one document's passages, each with its `seam` flag, and repair them at seams."""
        joined = [parts[0][0]]
        whole = True  # whether joined[-1] begins with a piece
        for tokens, seam in parts[1:]:
            if not seam:
                joined.append(tokens)
                whole = True
                continue
            mend = make_mender(self.vocabulary).mend(joined[-1], tokens, left_is_whole=whole)
            joined[-1] = joined[-1][: len(joined[-1]) - mend.left_tokens]
            joined.append(np.concatenate([mend.middle, tokens[mend.right_tokens :]]))
            whole = whole and len(joined[-2]) == 0
        return np.concatenate(joined) if len(joined) > 1 else joined[0]

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not is_failure(error):
                raise
            cause = f"{type(error).__name__}: {str(error)[:200]}"
            raise UnencodableError(f"{self._engine.name} raised {cause}") from error

    def _encode_joined(self, texts: Texts) -> tuple[Tokens, Positions]:
        """Return the tokens with an EOT before each document and after the last one, and the positions of EOTs."""
        vocabulary, length = self.vocabulary, 0
        parts: list[Tokens] = []
        positions: list[Positions] = []
        for joined in self._iter_joined(texts):
            # A harmless id, so that only the engine's ids are checked.
            joined.ids[joined.positions] = int(vocabulary.eot == 0)
            # Check before narrowing, which would turn an invalid id into another one.
            lowest = int(joined.ids.min(initial=0)) if joined.ids.dtype.kind == "i" else 0
            highest = int(joined.ids.max(initial=0))
            # EOT need not be the last id, so count it if the largest id reaches it.
            has_eot = highest >= vocabulary.eot and vocabulary.count_eots(joined.ids) > 0
            if has_eot or not 0 <= lowest <= highest < vocabulary.size:
                wrong = vocabulary.eot if has_eot else highest
                raise ExactnessError(f"{self._engine.name} made token {wrong}, which can't occur in text.")
            parts.append(joined.ids.astype(vocabulary.dtype))
            positions.append(joined.positions + length)
            length += len(joined.ids)
        eots = np.concatenate([*positions, np.array([length], np.int64)])
        tokens = np.concatenate([*parts, np.zeros(1, vocabulary.dtype)])
        tokens[eots] = vocabulary.eot
        return tokens, eots

    def _iter_joined(self, texts: Texts) -> Iterator[JoinedIds]:
        """Yield the ids of some documents at a time, so that they are checked and narrowed while in the CPU's cache,
        and no array of all ids is allocated."""
        if texts.longest_bytes > PASSAGE_BYTES:
            yield from join_ids(self.encode_documents(texts))
        else:
            with self._translated_errors():
                yield from self._engine.encode_joined(texts)

    def _check_sample(self, chunk: TextChunk, tokens: JoinedIds, where: str) -> None:
        """Encode a sample of a chunk's documents with the reference; ExactnessError if any token differs."""
        chooser = random.Random(f"{self._seed} {where} {chunk.start}")  # noqa: S311, RUF100
        for i in choose_documents(len(chunk.documents), chooser):
            document = chunk.texts[i]
            text = _comparable(document, self.vocabulary.cut_rule)
            expected = self._reference.encode_text(text)
            # Of a long document only a prefix is compared; see _comparable.
            whole = len(text) == len(document)
            found = (tokens.of_text(i) if whole else tokens.of_text(i)[: len(expected)]).tolist()
            if found != expected:
                start = f"position {chunk.start.position}" if chunk.start else "in the middle of a batch"
                raise ExactnessError(
                    f"{self._engine.name} and {self.vocabulary.reference} disagree about document {i + 1} of "
                    f"{where} ({start}), which begins {text[:60]!r}."
                )


class TokenJoiner:
    """Replaces an Encoder if the input is a column of ids (--tokens-column). Can't fail, because formats/rows.py has
    checked the ids."""

    def __init__(self, vocabulary: Vocabulary, *, eot_first: bool) -> None:
        self.vocabulary = vocabulary
        self._eot_first = eot_first

    def join(self, chunk: TextChunk) -> EncodedBlock:
        lists = chunk.documents
        if not isinstance(lists, TokenLists):
            assert not lists, "text has to be encoded"
            lists = TokenLists()
        if lists.eots is not None:
            tokens, eots = lists.ids, lists.eots
        else:
            first, last = outer_eots(chunk, eot_first=self._eot_first)
            positions = np.concatenate([np.zeros(1, np.int64), np.cumsum(lists.lengths + 1)])
            eots = positions[first : len(positions) - last] - first
            ids = lists.ids if lists else np.empty(0, self.vocabulary.dtype)
            tokens = np.insert(ids, eots - np.arange(len(eots)), self.vocabulary.eot)
        return EncodedBlock(
            chunk.start,
            chunk.end,
            tokens,
            eots,
            ends_mid_document=chunk.ends_mid_document,
            counts=chunk.counts,
            problems=chunk.problems,
        )


def choose_documents(documents: int, chooser: random.Random) -> list[int]:
    """Choose which of the `documents` documents to check, each with the same small probability."""
    expected = documents / SAMPLE_ONE_IN
    count = int(expected) + (chooser.random() < expected % 1)
    return sorted(chooser.sample(range(documents), count))


def _comparable(document: str, rule: CutRule | None) -> str:
    """Return the document, or the beginning of a long one up to a safe cut, whose tokens are a prefix."""
    if len(document) <= (_LONGEST_WHOLE_BYTES if rule is None else SAMPLE_BYTES):
        return document
    data = document[: SAMPLE_BYTES + CONTEXT_BYTES].encode()
    cut = find_cut(data, 0, len(data) - CONTEXT_BYTES, rule)
    if cut is None or cut.seam:
        return ""  # no prefix can be compared separately
    return data[: cut.position].decode()
