"""Encode documents to blocks of tokens, with an engine, so that any document gives the reference's tokens.

- A long document is encoded in passages, cut where it does not change the tokens (passages.py, cuts.py,
  seams.py).
- An exception of the engine becomes an UnencodableError; the caller may then use `fallback`. So does a text
  that is too long to be encoded whole and has no place to cut.
- A seeded sample is encoded again with the reference, and any difference stops the run (sample_check.py).

Which documents are retried or left out is decided in `executors/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import ExactnessError
from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers.base import Engine, Ids, Reference
from fineweb_shards.tokenizers.cuts import LONGEST_UNCUT_BYTES
from fineweb_shards.tokenizers.eot_places import place_eots
from fineweb_shards.tokenizers.fastokens_engine import FastokensEngine
from fineweb_shards.tokenizers.gigatoken_engine import GigatokenEngine
from fineweb_shards.tokenizers.passages import cut_passages
from fineweb_shards.tokenizers.sample_check import check_sample
from fineweb_shards.tokenizers.seams import SeamMender
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.tokenizers.vocabulary_files import is_gpt2_text
from fineweb_shards.types import Counts, EncodedBlock, Places, TextChunk, Tokens, id_of
from fineweb_shards.vocabulary import Vocabulary

PASSAGE_BYTES = 256 * 1024
_PARTS_AT_ONCE = 128  # half of them documents: 250 KB of ids


@cache
def make_mender(vocabulary: Vocabulary) -> SeamMender:
    """Return the SeamMender of this process; threads may share it, because nothing in it changes."""
    known = load_token_bytes(vocabulary)
    reference = TiktokenEngine(known)
    encoder = Encoder(reference, reference, eot_first=True, seed=0)

    def encode(text: str) -> list[int]:
        # With an Encoder, because a window may grow to a length on which tiktoken alone panics.
        ids: list[int] = encoder.encode_documents(Texts.from_strings([text]))[0].tolist()
        return ids

    return SeamMender(encode, known.token_bytes)


class UnencodableError(Exception):
    """A text can't be encoded: the engine raised an exception, or it is too long to be encoded whole."""


class Encoder:
    """Encodes chunks for one worker with `engine`; `reference` checks the sample."""

    def __init__(self, engine: Engine, reference: Reference, *, eot_first: bool, seed: int) -> None:
        self.vocabulary = reference.vocabulary
        self._engine = engine
        self._reference = reference
        self._eot_first = eot_first
        self._seed = seed

    @cached_property
    def fallback(self) -> Encoder | None:
        """An encoder with another engine, for what this one can't encode; None if there is no other.

        Beside a reference it must be one that is known to give the same tokens without a test.
        """
        if not isinstance(self._engine, Reference):
            return self._with_engine(self._reference)
        if not is_gpt2_text(self.vocabulary):
            return None
        others = (one for one in (GigatokenEngine, FastokensEngine) if one.installed_version())
        other = next(others, None)
        return None if other is None else self._with_engine(other(self.vocabulary))

    def _with_engine(self, engine: Engine) -> Encoder:
        return Encoder(engine, self._reference, eot_first=self._eot_first, seed=self._seed)

    def encode(self, chunk: TextChunk, where: str) -> EncodedBlock:
        """Return the chunk's tokens with EOTs; `where` names the file in messages.

        Raises UnencodableError if one of the documents can't be encoded.
        """
        documents = self.encode_documents(chunk.texts)
        if not isinstance(self._engine, Reference):
            check_sample(chunk, documents, self._reference, self._engine.name, self._seed, where)
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        wrong = list(_token_count_mismatches(chunk, lengths, where))
        tokens, eots = self._join_with_eots(chunk, documents, lengths)
        return EncodedBlock(
            start=chunk.start,
            end=chunk.end,
            tokens=tokens,
            eots=eots,
            starts_at_seam=chunk.starts_at_seam,
            ends_at_seam=chunk.ends_at_seam,
            ends_mid_document=chunk.ends_mid_document,
            counts=chunk.counts + Counts(token_count_mismatches=len(wrong)) if wrong else chunk.counts,
            problems=(*chunk.problems, *wrong),
        )

    def encode_documents(self, texts: Texts) -> list[Ids]:
        """Encode each document exactly as the reference does in one call, whatever its length and content."""
        if texts.longest_bytes <= PASSAGE_BYTES:
            return self._call_engine(texts)
        passages = cut_passages(texts, PASSAGE_BYTES, self.vocabulary.cut_rule)
        self._check_length(passages.texts.longest_bytes)
        parts = iter(self._call_engine(passages.texts))
        return [self._join([(next(parts), seam) for seam in seams]) for seams in passages.seams]

    def _check_length(self, uncut_bytes: int) -> None:
        """Raise UnencodableError if a text is too long to be encoded without being cut."""
        if uncut_bytes > LONGEST_UNCUT_BYTES:
            raise UnencodableError(
                f"it has {uncut_bytes:,} bytes without a place where {self.vocabulary.name} allows a cut, "
                f"and at most {LONGEST_UNCUT_BYTES:,} are encoded at once; split it into several documents"
            )

    def _join(self, parts: list[tuple[Ids, bool]]) -> Ids:
        """Join the tokens of one document's passages, each with its `seam` flag, and repair them at seams."""
        joined = [parts[0][0]]
        whole = True  # whether joined[-1] begins where a piece begins
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

    def _call_engine(self, texts: Texts) -> list[Ids]:
        """Encode with the engine, and translate what it raises."""
        try:
            return self._engine.encode(texts)
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001, RUF100 - a Rust panic is a BaseException
            cause = f"{type(error).__name__}: {str(error)[:200]}"
            raise UnencodableError(f"{self._engine.name} raised {cause}") from error

    def _join_with_eots(
        self, chunk: TextChunk, documents: list[Ids], lengths: NDArray[np.int64]
    ) -> tuple[Tokens, Places]:
        """Return the tokens with an EOT before or after each document, and the positions of the EOTs."""
        skip_first = self._eot_first and chunk.starts_mid_document
        skip_last = not self._eot_first and chunk.ends_mid_document
        # A small id keeps the places of the EOTs, so that what is checked is what the engine made.
        place = np.full(1, int(self.vocabulary.eot == 0), np.uint32)
        parts: list[Ids] = [place] * (2 * len(documents))
        parts[int(self._eot_first) :: 2] = documents
        if documents and skip_first:
            del parts[0]
        if documents and skip_last:
            del parts[-1]
        tokens = self._narrow(parts)
        eots = place_eots(chunk, lengths, eot_first=self._eot_first)
        tokens[eots] = self.vocabulary.eot
        return tokens, eots

    def _narrow(self, parts: list[Ids]) -> Tokens:
        """Join ids in the vocabulary's width, some parts at a time: what was joined is still in the
        processor's cache when it is checked and copied, and no array of all ids takes new memory."""
        tokens = np.empty(sum(map(len, parts)), self.vocabulary.dtype)
        place = 0
        for first in range(0, len(parts), _PARTS_AT_ONCE):
            joined = np.concatenate(parts[first : first + _PARTS_AT_ONCE])
            self._check_range(joined)
            tokens[place : place + len(joined)] = joined
            place += len(joined)
        return tokens

    def _check_range(self, tokens: Ids) -> None:
        """Raise ExactnessError if one of the ids is no text's: narrowed, it would become another one."""
        vocabulary = self.vocabulary
        lowest = int(tokens.min(initial=0)) if tokens.dtype.kind == "i" else 0
        highest = int(tokens.max(initial=0))
        # Where EOT is not the last id, the largest one says nothing about it.
        has_eot = highest >= vocabulary.eot and vocabulary.count_eots(tokens) > 0
        if has_eot or not 0 <= lowest <= highest < vocabulary.size:
            wrong = vocabulary.eot if has_eot else highest
            raise ExactnessError(f"{self._engine.name} made token {wrong}, which no text can have.")


def _token_count_mismatches(chunk: TextChunk, lengths: NDArray[np.int64], where: str) -> Iterator[str]:
    """Yield a sentence for each document whose token_count in the source differs from its tokens."""
    for origin in chunk.origins:
        if origin.tokens is None:
            continue
        ours = lengths[origin.first : origin.first + origin.count]
        for i in np.flatnonzero((ours != origin.tokens) & (origin.tokens >= 0)).tolist():
            yield (
                f"{where}: document {id_of(chunk, origin.first + i)} has {ours[i]:,} tokens, "
                f"its token_count says {origin.tokens[i]:,}"
            )
