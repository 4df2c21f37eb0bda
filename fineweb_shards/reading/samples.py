"""Take a few sample documents from finished shards and decode them, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.reading.shard_tokens import read_tokens
from fineweb_shards.store.store import Store
from fineweb_shards.system.terminal import cut_at_word
from fineweb_shards.tokenizers.decoder import decode
from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.types import ShardRecord, Tokens
from fineweb_shards.vocabulary import Vocabulary

_SEARCH_TOKENS = 2**18  # how far to search for the beginning of a document
_SHOWN_TOKENS = 250


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a document, and its place in a shard."""

    shard: str
    token: int  # the position in the shard at which the document begins
    text: str
    cut: bool  # whether the document is longer than `text`


def take_samples(
    store: Store, shard_format: ShardFormat, records: Sequence[ShardRecord], count: int
) -> list[Sample]:
    """Return samples at `count` places spread evenly over the shards; always the same ones."""
    total = sum(record.tokens for record in records)
    places = [total * number // count for number in range(count)]
    samples: list[Sample] = []
    begin = 0
    for record in records:
        is_last = record is records[-1]
        for place in places:
            if begin <= place < begin + record.tokens:
                sample = _sample_at(store, shard_format, record, place - begin, is_last)
                samples += [sample] if sample is not None and sample not in samples else []
        begin += record.tokens
    return samples


def _sample_at(
    store: Store, shard_format: ShardFormat, record: ShardRecord, place: int, is_last: bool
) -> Sample | None:
    """Return the next document that begins after `place`, or else the last one that begins before it.

    Unless this is the last shard, the document may continue in the next one.
    """
    vocabulary = shard_format.vocabulary
    first = max(0, place - _SEARCH_TOKENS)
    tokens = read_tokens(store, shard_format, record, first, 2 * _SEARCH_TOKENS + 1 + _SHOWN_TOKENS)
    starts_here = place == 0 and not shard_format.layout.eot_first
    start = _find_start(vocabulary, tokens, place - first, starts_here=starts_here)
    if start is None:
        return None
    shown = tokens[start : start + _SHOWN_TOKENS]
    ends = vocabulary.find_eots(shown)
    text = decode(shown[: ends[0]] if len(ends) else shown, vocabulary).decode("utf-8", "replace")
    cut = not len(ends) and (first + start + _SHOWN_TOKENS < record.tokens or not is_last)
    return Sample(record.name, first + start, cut_at_word(text) if cut else text, cut)


def _find_start(vocabulary: Vocabulary, tokens: Tokens, place: int, *, starts_here: bool) -> int | None:
    """Return where among these tokens the document nearest to `place` begins; None if none is found."""
    if starts_here:
        return 0
    behind = vocabulary.find_eots(tokens[place : place + _SEARCH_TOKENS])
    if len(behind) and place + behind[0] + 1 < len(tokens):
        return place + int(behind[0]) + 1
    before = vocabulary.find_eots(tokens[:place])
    return int(before[-1]) + 1 if len(before) else None


def spell(token: int, vocabulary: Vocabulary) -> str:
    """Return a token's text with visible signs for white space, and numbers for bytes that are not text."""
    text = load_token_bytes(vocabulary).token_bytes[token].decode("utf-8", "backslashreplace")
    signs = {" ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(signs.get(char) or (char if char.isprintable() else f"U+{ord(char):04X}") for char in text)
