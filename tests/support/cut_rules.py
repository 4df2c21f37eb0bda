"""Builds with GPT-2's tokens and another rule for cutting long documents, and small limits for those."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from fineweb_shards.formats import ranges, rows, text
from fineweb_shards.run import job
from fineweb_shards.tokenizers import encoder, resolve_engine
from fineweb_shards.tokenizers.definition import GPT2_DEFINITION
from fineweb_shards.tokenizers.encoder import Encoder
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.vocabulary import GPT2, CutRule, Vocabulary
from tests.support import runs


def with_rule(rule: CutRule | None) -> Vocabulary:
    return replace(GPT2, cut_rule=rule)


@cache
def make_encoder(engine: str, rule: CutRule | None, *, eot_first: bool = True) -> Encoder:
    vocabulary = with_rule(rule)
    return Encoder(resolve_engine(engine)(vocabulary), TiktokenEngine(vocabulary), eot_first=eot_first, seed=0)


def use_rule(patch: pytest.MonkeyPatch, rule: CutRule | None) -> None:
    """All builds in this process have it."""
    definition = replace(GPT2_DEFINITION, vocabulary=with_rule(rule))
    patch.setattr(job, "find_definition", lambda *settings: definition)

    def encoder_of(engine: str = "auto", seed: int = 0, *, eot_first: bool = True) -> Encoder:
        return make_encoder(engine, rule, eot_first=eot_first)

    patch.setattr(runs, "encoder", encoder_of)


def use_limits(patch: pytest.MonkeyPatch, uncut_bytes: int) -> None:
    """Documents are long, and too long, at a few kilobytes."""
    patch.setattr(encoder, "PASSAGE_BYTES", uncut_bytes // 8)
    patch.setattr(rows, "_LONG_CELL_BYTES", uncut_bytes // 4)
    for module in (encoder, rows, ranges):
        patch.setattr(module, "LONGEST_UNCUT_BYTES", uncut_bytes)
    patch.setattr(ranges, "FARTHEST_BYTES", 4 * uncut_bytes)
    patch.setattr(text, "FARTHEST_BYTES", 4 * uncut_bytes)
    patch.setattr(ranges, "_WINDOW_BYTES", 512)
    patch.setattr(ranges, "_FAR_WINDOW_BYTES", 700)
