"""Encode documents to blocks of tokens, with an engine, so that any document gives tiktoken's tokens.

- A lone surrogate becomes U+FFFD, as in tiktoken.
- A long document is encoded in passages, cut where it does not change the tokens (cuts.py, seams.py):
  memory stays bounded, and no engine gets a text that it can't handle (tiktoken panics on a million
  spaces, tiktoken#400).
- An exception of the engine becomes an UnencodableError; the caller may then use `fallback`.
- A seeded sample is encoded again with tiktoken, and any difference stops the run.

Which documents are retried or left out is decided in `executors/`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from fineweb_shards.errors import ExactnessError
from fineweb_shards.tokenizers.base import Engine, Ids, Offsets
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, find_cut
from fineweb_shards.tokenizers.fastokens_engine import FastokensEngine
from fineweb_shards.tokenizers.seams import SeamMender
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.types import Counts, Cursor, EncodedBlock, Places, TextChunk, Tokens, id_of
from fineweb_shards.vocabulary import Vocabulary

PASSAGE_BYTES = 256 * 1024
_CUT_WINDOW_BYTES = 64 * 1024
# One in this many documents is encoded again, and only the beginning of a long one: tiktoken is about
# 16 times slower, and this way the check takes well under 3 % of the time.
SAMPLE_ONE_IN = 1024
SAMPLE_BYTES = 16 * 1024


@cache
def make_mender(vocabulary: Vocabulary) -> SeamMender:
    """Return the SeamMender of this process; threads may share it, because nothing in it changes."""
    reference = TiktokenEngine(load_token_bytes(vocabulary))
    encoder = Encoder(reference, reference, eot_first=True, seed=0)

    def encode(text: str) -> list[int]:
        # With an Encoder, because a window may grow to a length on which tiktoken alone panics.
        ids: list[int] = encoder.encode_documents([text])[0].tolist()
        return ids

    return SeamMender(encode, reference.vocabulary.token_bytes)


def replace_surrogates(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD, as tiktoken does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class UnencodableError(Exception):
    """The engine raised an exception for a text; another engine may be able to encode it."""

    def __init__(self, engine: str, error: BaseException) -> None:
        super().__init__(f"{engine} raised {type(error).__name__}: {str(error)[:200]}")


@dataclass(frozen=True, slots=True)
class _Passage:
    """A part of a long document."""

    text: str
    seam: bool  # the cut before it is a seam


class Encoder:
    """Encodes chunks for one worker with `engine`; `reference` has the vocabulary and checks the sample."""

    def __init__(self, engine: Engine, reference: TiktokenEngine, *, eot_first: bool, seed: int) -> None:
        self.vocabulary = reference.vocabulary
        self._engine = engine
        self._reference = reference
        self._eot_first = eot_first
        self._seed = seed

    @cached_property
    def fallback(self) -> Encoder | None:
        """An encoder with the other engine, for what this one can't encode; None if it is not installed."""
        if not isinstance(self._engine, TiktokenEngine):
            engine: Engine = self._reference
        elif FastokensEngine.installed_version():
            engine = FastokensEngine(self.vocabulary)
        else:
            return None
        return Encoder(engine, self._reference, eot_first=self._eot_first, seed=self._seed)

    def encode(self, chunk: TextChunk, where: str) -> EncodedBlock:
        """Return the chunk's tokens with EOTs; `where` names the file in messages.

        Raises UnencodableError if the engine raises an exception for one of the documents.
        """
        tokens, offsets = self.encode_documents(chunk.documents)
        self._check_sample(chunk, tokens, offsets, where)
        wrong = list(_token_count_mismatches(chunk, offsets, where))
        block, eots = self._with_eots(chunk, tokens, offsets)
        return EncodedBlock(
            start=chunk.start,
            end=chunk.end,
            tokens=block,
            eots=eots,
            starts_at_seam=chunk.starts_at_seam,
            ends_at_seam=chunk.ends_at_seam,
            counts=chunk.counts + Counts(token_count_mismatches=len(wrong)),
            problems=(*chunk.problems, *wrong),
        )

    def encode_documents(self, documents: list[str]) -> tuple[Ids, Offsets]:
        """Encode each document exactly as tiktoken's `encode_ordinary`, whatever its length and content."""
        if not self.vocabulary.cut_rule or all(len(document) <= PASSAGE_BYTES for document in documents):
            return self._encode_texts(documents)
        passages = [_passages(document) for document in documents]
        tokens, borders = self._encode_texts([p.text for parts in passages for p in parts])
        if not any(p.seam for parts in passages for p in parts):
            firsts = np.zeros(len(documents) + 1, np.int64)
            np.cumsum([len(parts) for parts in passages], out=firsts[1:])
            return tokens, borders[firsts]
        parts = iter(np.split(tokens, borders[1:-1]))
        whole = [self._join([(next(parts), p.seam) for p in group]) for group in passages]
        offsets = np.zeros(len(whole) + 1, np.int64)
        np.cumsum([len(part) for part in whole], out=offsets[1:])
        return np.concatenate(whole), offsets

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
        return np.concatenate(joined)

    def _encode_texts(self, texts: list[str]) -> tuple[Ids, Offsets]:
        """Call the engine: replace lone surrogates, translate exceptions, and check the range of the ids."""
        try:
            tokens, offsets = self._engine.encode(texts)
        except UnicodeEncodeError:
            return self._encode_texts([replace_surrogates(text) for text in texts])
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001, RUF100 - a Rust panic is a BaseException
            raise UnencodableError(self._engine.name, error) from error
        if len(tokens) and int(tokens.max()) >= len(self.vocabulary.token_bytes):
            raise ExactnessError(
                f"{self._engine.name} made token {int(tokens.max())}, which no text can have."
            )
        return tokens, offsets

    def _with_eots(self, chunk: TextChunk, tokens: Ids, offsets: Offsets) -> tuple[Tokens, Places]:
        """Return the tokens with an EOT before or after each document, and the positions of the EOTs.

        A document that continues from the previous chunk, or in the next, has no EOT on that side.
        """
        documents = len(chunk.documents)
        starts, ends = offsets[:-1], offsets[1:]
        if self._eot_first:
            places = starts[1:] if chunk.starts_mid_document and documents else starts
        else:
            places = ends[:-1] if chunk.ends_mid_document and documents else ends
        # Each document moves right by the number of EOTs before it: copy whole documents, not single tokens.
        block = np.empty(len(tokens) + len(places), self.vocabulary.dtype)
        previous = 0
        for shift, place in enumerate(places.tolist()):
            block[previous + shift : place + shift] = tokens[previous:place]
            previous = place
        block[previous + len(places) :] = tokens[previous:]
        eots = places + np.arange(len(places))
        block[eots] = self.vocabulary.eot
        return block, eots

    def _check_sample(self, chunk: TextChunk, tokens: Ids, offsets: Offsets, where: str) -> None:
        """Encode a sample of the documents with tiktoken; raise ExactnessError if any token differs."""
        if isinstance(self._engine, TiktokenEngine):
            return
        chooser = random.Random(f"{self._seed} {where} {chunk.start}")  # noqa: S311, RUF100
        for i in _sample(len(chunk.documents), chooser):
            document = replace_surrogates(chunk.documents[i])
            text = _sample_passage(document) if self.vocabulary.cut_rule else document
            expected = self._reference.encoding.encode_ordinary(text)
            begin = int(offsets[i])
            # Of a long document only a prefix is compared; see _sample_passage.
            found = tokens[begin : min(begin + len(expected), int(offsets[i + 1]))].tolist()
            if len(text) == len(document):
                found = tokens[begin : int(offsets[i + 1])].tolist()
            if found != expected:
                raise ExactnessError(
                    f"{self._engine.name} and {self.vocabulary.reference} disagree about document {i + 1} of "
                    f"{where} ({_describe(chunk.start)}), which begins {text[:60]!r}."
                )


def _token_count_mismatches(chunk: TextChunk, offsets: Offsets, where: str) -> Iterator[str]:
    """Yield a sentence for each document whose token_count in the source differs from its tokens."""
    lengths = np.diff(offsets)
    for origin in chunk.origins:
        if origin.tokens is None:
            continue
        ours = lengths[origin.first : origin.first + origin.count]
        for i in np.flatnonzero((ours != origin.tokens) & (origin.tokens >= 0)).tolist():
            yield (
                f"{where}: document {id_of(chunk, origin.first + i)} has {ours[i]:,} tokens, "
                f"its token_count says {origin.tokens[i]:,}"
            )


def _sample(documents: int, chooser: random.Random) -> list[int]:
    """Choose the indices of the documents to check, each with the same small probability."""
    expected, chosen = documents / SAMPLE_ONE_IN, set[int]()
    count = int(expected) + (chooser.random() < expected % 1)
    while len(chosen) < count:
        chosen.add(chooser.randrange(documents))
    return sorted(chosen)


def _sample_passage(document: str) -> str:
    """Return the document, or the beginning of a long one up to a safe cut: its tokens are then a prefix."""
    if len(document) <= SAMPLE_BYTES:
        return document
    data = document[: SAMPLE_BYTES + CONTEXT_BYTES].encode()
    cut = find_cut(data, 0, len(data) - CONTEXT_BYTES)
    if cut is None or cut.seam:
        return ""  # no prefix that can be compared on its own
    return data[: cut.position].decode()


def _passages(document: str) -> list[_Passage]:
    """Cut a document into passages of at most PASSAGE_BYTES; if no cut is found, the last one is longer."""
    if len(document) <= PASSAGE_BYTES:
        return [_Passage(document, seam=False)]
    try:
        data = document.encode()
    except UnicodeEncodeError:
        data = replace_surrogates(document).encode()
    passages, position, seam = [], 0, False
    while len(data) - position > PASSAGE_BYTES:
        end = position + PASSAGE_BYTES
        offset = max(position, end - _CUT_WINDOW_BYTES - CONTEXT_BYTES)
        window = data[offset : end + CONTEXT_BYTES]
        cut = find_cut(window, CONTEXT_BYTES, end - offset)
        if cut is None:
            break
        passages.append(_Passage(data[position : offset + cut.position].decode(), seam))
        position, seam = offset + cut.position, cut.seam
    passages.append(_Passage(data[position:].decode(), seam))
    return passages


def _describe(start: Cursor | None) -> str:
    return f"position {start.position}" if start else "in the middle of a batch"
