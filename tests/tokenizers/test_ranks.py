"""The vocabulary is the vocabulary."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from fineweb_shards.errors import ShardError
from fineweb_shards.tokenizers import vocabulary_files
from fineweb_shards.tokenizers.builtin_vocabularies import PATTERNS
from fineweb_shards.tokenizers.vocabulary_files import list_merges, load_gpt2_ranks, open_gpt2_ranks, ranks_to_json
from tests.support import reference
from tests.support.promises import Tries


def token_bytes(ranks: dict[bytes, int]) -> list[bytes]:
    return sorted(ranks, key=ranks.__getitem__)


def derive_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """For every token, the two tokens that it was merged from. Usually there is only one way to cut a token into two of
    lower rank; if there are several, it is the one that byte-pair encoding ends with."""
    merges = []
    for token in token_bytes(ranks):
        if len(token) > 1:
            rank = ranks[token]
            older = [
                (token[:i], token[i:])
                for i in range(1, len(token))
                if ranks.get(token[:i], rank) < rank and ranks.get(token[i:], rank) < rank
            ]
            merges.append(older[0] if len(older) == 1 else merge_until_two(token, ranks))
    return merges


def merge_until_two(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    parts = [token[i : i + 1] for i in range(len(token))]
    never = len(ranks)  # a rank above all others, for pairs that can't be merged
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], never))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


@pytest.mark.promise("the vocabulary is GPT-2's, token for token")
def test_every_token_round_trips() -> None:
    """All 50,256 ids have the bytes that tiktoken gives them."""
    found = token_bytes(load_gpt2_ranks())
    assert found == [reference.encoding().decode_single_token_bytes(i) for i in range(50256)]


@pytest.mark.promise("the vocabulary is GPT-2's, token for token")
def test_one_flipped_byte_is_refused(tries: Tries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged ranks are refused with both hashes, wherever the damage is."""
    good = reference.RANKS.read_bytes()
    monkeypatch.setattr(vocabulary_files.resources, "files", lambda _: tmp_path)
    for number in tries(5, 50):
        place = [0, len(good) - 1][number] if number < 2 else random.Random(number).randrange(len(good))
        data = bytearray(good)
        data[place] ^= 1
        (tmp_path / "gpt2.tiktoken").write_bytes(data)
        with pytest.raises(ShardError, match="damaged"):
            load_gpt2_ranks()
        with pytest.raises(ShardError, match="damaged"), open_gpt2_ranks():
            pass


@pytest.mark.full
def test_merges_lead_to_every_token() -> None:
    """Each joins two tokens into a third one, and replaying byte-pair encoding by the list arrives at the token itself;
    those that were learnt are among them."""
    ranks = load_gpt2_ranks()
    merges = list_merges(ranks)
    order = {pair: number for number, pair in enumerate(merges)}
    assert {*derive_merges(ranks)} <= {*merges}
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
    ranks = load_gpt2_ranks()
    data = json.loads(ranks_to_json(ranks, list_merges(ranks), PATTERNS["gpt2"], []))
    assert data["added_tokens"] == []
    assert len(data["model"]["vocab"]) == 50256
