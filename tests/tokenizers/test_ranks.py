"""The vocabulary is the vocabulary."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import reference
from promises import Tries

from fineweb_shards.errors import ShardError
from fineweb_shards.tokenizers.ranks import (
    derive_merges,
    load_gpt2_merges,
    load_ranks,
    parse_ranks,
    parse_splits,
    token_bytes,
    tokenizer_json,
)


@pytest.mark.promise(26)
def test_every_token_round_trips() -> None:
    """All 50,256 ids have the bytes that tiktoken gives them."""
    found = token_bytes(load_ranks())
    assert found == [reference.encoding().decode_single_token_bytes(i) for i in range(50256)]


@pytest.mark.promise(26)
def test_one_flipped_byte_is_refused(tries: Tries) -> None:
    """Damaged ranks are refused with both hashes, wherever the damage is."""
    good = reference.RANKS.read_bytes()
    for number in tries(5, 50):
        place = [0, len(good) - 1][number] if number < 2 else random.Random(number).randrange(len(good))
        data = bytearray(good)
        data[place] ^= 1
        with pytest.raises(ShardError, match="damaged"):
            parse_ranks(bytes(data))
    splits, ranks = bytearray((reference.RANKS.parent / "gpt2.splits").read_bytes()), load_ranks()
    parse_splits(bytes(splits), ranks)
    splits[len(splits) // 2] ^= 1
    with pytest.raises(ShardError, match=r"gpt2\.splits has SHA-256"):
        parse_splits(bytes(splits), ranks)


def test_merges_are_derived_from_ranks() -> None:
    """Each merge joins two older tokens into the one of its rank, and replaying byte-pair encoding by the
    merge list arrives at the token itself."""
    ranks = load_ranks()
    merges = derive_merges(ranks)
    order = {pair: number for number, pair in enumerate(merges)}
    assert [ranks[left + right] for left, right in merges] == list(range(256, 50256))
    assert load_gpt2_merges(ranks) == merges
    for token in token_bytes(ranks)[256::41]:
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: order.get(pair, len(order)))
            assert best in order, token
            i = pairs.index(best)
            parts[i : i + 2] = [best[0] + best[1]]
        assert parts == [token]


def test_tokenizer_json_has_no_special_token() -> None:
    """So that no text can become EOT."""
    ranks = load_ranks()
    data = json.loads(tokenizer_json(ranks, load_gpt2_merges(ranks)))
    assert data["added_tokens"] == []
    assert len(data["model"]["vocab"]) == 50256
