"""Take a few sample documents from finished shards and decode them, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.reading.shard_tokens import map_tokens
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
    folder: Path, shard_format: ShardFormat, records: Sequence[ShardRecord], count: int
) -> list[Sample]:
    """Return samples at `count` places spread evenly over the shards; always the same ones."""
    total = sum(record.tokens for record in records)
    places = [total * number // count for number in range(count)]
    samples: list[Sample] = []
    begin = 0
    for record in records:
        here = [place - begin for place in places if begin <= place < begin + record.tokens]
        if here:
            tokens = map_tokens(folder, shard_format, record)
            is_last = record is records[-1]
            found = [_sample_at(shard_format, record.name, tokens, place, is_last) for place in here]
            samples += [sample for sample in found if sample is not None and sample not in samples]
        begin += record.tokens
    return samples


def _sample_at(
    shard_format: ShardFormat, shard: str, tokens: Tokens, place: int, is_last: bool
) -> Sample | None:
    """Return the next document that begins after `place`, or else the last one that begins before it.

    Unless this is the last shard, the document may continue in the next one.
    """
    vocabulary = shard_format.vocabulary
    start = _find_start(shard_format, tokens, place)
    if start is None:
        return None
    shown = tokens[start : start + _SHOWN_TOKENS]
    ends = vocabulary.find_eots(shown)
    text = decode(shown[: ends[0]] if len(ends) else shown, vocabulary).decode("utf-8", "replace")
    cut = not len(ends) and (start + _SHOWN_TOKENS < len(tokens) or not is_last)
    return Sample(shard, start, cut_at_word(text) if cut else text, cut)


def _find_start(shard_format: ShardFormat, tokens: Tokens, place: int) -> int | None:
    """Return the position at which the nearest document begins; None if none is found nearby."""
    find_eots = shard_format.vocabulary.find_eots
    if not shard_format.layout.eot_first and place == 0:
        return 0
    behind = find_eots(tokens[place : place + _SEARCH_TOKENS])
    if len(behind) and place + behind[0] + 1 < len(tokens):
        return place + int(behind[0]) + 1
    first = max(0, place - _SEARCH_TOKENS)
    before = find_eots(tokens[first:place])
    return first + int(before[-1]) + 1 if len(before) else None


def spell(token: int, vocabulary: Vocabulary) -> str:
    """Return a token's text with visible signs for white space, and numbers for bytes that are not text."""
    text = load_token_bytes(vocabulary).token_bytes[token].decode("utf-8", "backslashreplace")
    signs = {" ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(signs.get(char) or (char if char.isprintable() else f"U+{ord(char):04X}") for char in text)
