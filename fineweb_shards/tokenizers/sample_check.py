"""Check, during a run, that the engine agrees with the reference: a sample is encoded twice."""

from __future__ import annotations

import random

from fineweb_shards.errors import ExactnessError
from fineweb_shards.tokenizers.base import Reference
from fineweb_shards.tokenizers.cuts import CONTEXT_BYTES, find_cut
from fineweb_shards.tokenizers.joined_ids import JoinedIds
from fineweb_shards.types import Cursor, TextChunk
from fineweb_shards.vocabulary import CutRule

# One in this many documents is encoded again, and only the beginning of a long one: tiktoken is about
# 20 times slower, and this way the check takes well under 3 % of the time.
SAMPLE_ONE_IN = 1024
SAMPLE_BYTES = 16 * 1024
# Where there is no rule for cutting, whole documents are encoded again: as many bytes in all, but up to this
# many at once.
_LONGEST_WHOLE_BYTES = 2**20


def check_sample(
    chunk: TextChunk, tokens: JoinedIds, reference: Reference, engine: str, seed: int, where: str
) -> None:
    """Encode a sample of a chunk's documents with the reference; ExactnessError if any token differs."""
    chooser = random.Random(f"{seed} {where} {chunk.start}")  # noqa: S311, RUF100
    for i in choose_documents(len(chunk.documents), chooser):
        document = chunk.texts[i]
        text = _comparable(document, reference.vocabulary.cut_rule)
        expected = reference.encode_text(text)
        # Of a long document only a prefix is compared; see _comparable.
        whole = len(text) == len(document)
        found = (tokens.of_text(i) if whole else tokens.of_text(i)[: len(expected)]).tolist()
        if found != expected:
            raise ExactnessError(
                f"{engine} and {reference.vocabulary.reference} disagree about document {i + 1} of "
                f"{where} ({_describe(chunk.start)}), which begins {text[:60]!r}."
            )


def choose_documents(documents: int, chooser: random.Random) -> list[int]:
    """Choose the indices of the documents to check, each with the same small probability."""
    expected, chosen = documents / SAMPLE_ONE_IN, set[int]()
    count = int(expected) + (chooser.random() < expected % 1)
    while len(chosen) < count:
        chosen.add(chooser.randrange(documents))
    return sorted(chosen)


def _comparable(document: str, rule: CutRule | None) -> str:
    """Return the document, or the beginning of a long one up to a safe cut: its tokens are then a prefix."""
    if len(document) <= (_LONGEST_WHOLE_BYTES if rule is None else SAMPLE_BYTES):
        return document
    data = document[: SAMPLE_BYTES + CONTEXT_BYTES].encode()
    cut = find_cut(data, 0, len(data) - CONTEXT_BYTES, rule)
    if cut is None or cut.seam:
        return ""  # no prefix that can be compared on its own
    return data[: cut.position].decode()


def _describe(start: Cursor | None) -> str:
    return f"position {start.position}" if start else "in the middle of a batch"
