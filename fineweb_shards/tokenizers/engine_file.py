"""Make the file that fast engines load, from the one that defines a vocabulary."""

from __future__ import annotations

import json
from typing import Any

from fineweb_shards.system.durable import write_file
from fineweb_shards.system.own_files import is_plain_file
from fineweb_shards.tokenizers.gigatoken_engine import BORDER
from fineweb_shards.tokenizers.patterns import get_pattern
from fineweb_shards.tokenizers.tokenizer_json import (
    is_byte_level,
    list_merges,
    ranks_to_json,
    special_token,
    without_special_tokens,
)
from fineweb_shards.tokenizers.vocabulary_files import (
    ENGINE_FILES,
    engine_file,
    load_definition,
    load_ranks,
)
from fineweb_shards.vocabulary import Vocabulary


def prepare_engine_file(vocabulary: Vocabulary) -> None:
    """Make the engine file beside the vocabulary's own, unless it is there from an earlier run."""
    path = engine_file(vocabulary)
    if is_plain_file(path):
        return
    write_file(path, _make(vocabulary).encode(), path.parent)
    for other in path.parent.glob(ENGINE_FILES):
        if other != path:
            other.unlink()


def _make(vocabulary: Vocabulary) -> str:
    border = [special_token(BORDER, vocabulary.size)]
    if vocabulary.reference == "tiktoken":
        ranks = load_ranks(vocabulary)
        return ranks_to_json(ranks, list_merges(ranks), get_pattern(vocabulary.pattern), border)
    tokenizer: dict[str, Any] = json.loads(load_definition(vocabulary))
    return without_special_tokens(tokenizer, border if is_byte_level(tokenizer) else [])
