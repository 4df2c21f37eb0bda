"""A few documents out of finished shards, decoded: is this what should be trained on?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fineweb_shards.layouts.base import Layout
from fineweb_shards.reading.shard_tokens import map_tokens
from fineweb_shards.system.terminal import cut_at_word
from fineweb_shards.tokenizers.decoder import decode
from fineweb_shards.tokenizers.ranks import EOT, load_ranks, token_bytes
from fineweb_shards.types import ShardRecord, Tokens

_SEARCH_TOKENS = 2**18  # how far to look for the beginning of a document
_SHOWN_TOKENS = 250


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a document, and where it is."""

    shard: str
    token: int  # in the shard, where the document begins
    text: str
    cut: bool  # there is more of it


def take_samples(folder: Path, layout: Layout, records: Sequence[ShardRecord], count: int) -> list[Sample]:
    """Spread evenly over the shards; the same ones every time."""
    total = sum(record.tokens for record in records)
    places = [total * number // count for number in range(count)]
    samples: list[Sample] = []
    begin = 0
    for record in records:
        here = [place - begin for place in places if begin <= place < begin + record.tokens]
        if here:
            tokens = map_tokens(folder, layout, record)
            is_last = record is records[-1]
            found = [
                _sample_at(record.name, tokens, place, eot_first=layout.eot_first, is_last=is_last)
                for place in here
            ]
            samples += [sample for sample in found if sample is not None and sample not in samples]
        begin += record.tokens
    return samples


def _sample_at(shard: str, tokens: Tokens, place: int, *, eot_first: bool, is_last: bool) -> Sample | None:
    """The next document that begins at `place` or behind it, or else the last one before it. It may go on
    in the next shard, unless this is the last."""
    start = _find_start(tokens, place, eot_first)
    if start is None:
        return None
    shown = tokens[start : start + _SHOWN_TOKENS]
    ends = np.flatnonzero(shown == EOT)
    text = decode(shown[: ends[0]] if len(ends) else shown).decode("utf-8", "replace")
    cut = not len(ends) and (start + _SHOWN_TOKENS < len(tokens) or not is_last)
    return Sample(shard, start, cut_at_word(text) if cut else text, cut)


def _find_start(tokens: Tokens, place: int, eot_first: bool) -> int | None:
    if not eot_first and place == 0:
        return 0
    behind = np.flatnonzero(tokens[place : place + _SEARCH_TOKENS] == EOT)
    if len(behind) and place + behind[0] + 1 < len(tokens):
        return place + int(behind[0]) + 1
    first = max(0, place - _SEARCH_TOKENS)
    before = np.flatnonzero(tokens[first:place] == EOT)
    return first + int(before[-1]) + 1 if len(before) else None


def spell(token: int) -> str:
    """A single token, visibly: spaces and line ends have a sign, bytes that are no text their number."""
    text = _spelling()[token].decode("utf-8", "backslashreplace")
    signs = {" ": "␣", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(signs.get(char) or (char if char.isprintable() else f"U+{ord(char):04X}") for char in text)


@cache
def _spelling() -> list[bytes]:
    return token_bytes(load_ranks())
