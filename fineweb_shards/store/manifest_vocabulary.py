"""The vocabulary in `manifest.json`: enough to read the tokens, and to know the vocabulary again."""

from __future__ import annotations

from typing import Any

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.system.json_values import get
from fineweb_shards.vocabulary import GPT2, Vocabulary

_MOST_IDS = 2**31  # more fit into no layout's tokens


def vocabulary_to_json(shard_format: ShardFormat) -> dict[str, Any]:
    """With `dtype`, which is how a file has its tokens."""
    vocabulary = shard_format.vocabulary
    return {
        "name": vocabulary.name,
        "sha256": vocabulary.sha256,
        "size": vocabulary.size,
        "eot": vocabulary.eot,
        "dtype": shard_format.dtype.name,
    }


def vocabulary_of(manifest: dict[str, Any]) -> Vocabulary:
    """What a `manifest.json` says; before it said so there was GPT-2 only. ValueError with what is wrong."""
    if manifest.get("tokenizer") == GPT2.name:
        return GPT2
    data = get(manifest, "vocabulary", dict)
    size, eot = get(data, "size", int), get(data, "eot", int)
    if not 0 <= eot < size <= _MOST_IDS:
        raise ValueError(f"a vocabulary of {size:,} ids can't have the EOT {eot}")
    found = Vocabulary(get(data, "name", str), get(data, "sha256", str), size, eot)
    return GPT2 if found == GPT2 else found


def check_dtype(manifest: dict[str, Any], shard_format: ShardFormat) -> None:
    """ValueError where tokens are said to be other than the layout makes them."""
    wanted = shard_format.dtype.name
    if "vocabulary" in manifest and (found := get(manifest["vocabulary"], "dtype", str)) != wanted:
        raise ValueError(f"its tokens are {found!r:.40}, where they should be {wanted}")
