"""Write and read the vocabulary in `manifest.json`: what is needed to read tokens and recognize it again.

The bytes of the tokens are not in it.
"""

from __future__ import annotations

from typing import Any

from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.system.json_values import get
from fineweb_shards.vocabulary import GPT2, Vocabulary

_MOST_IDS = 2**31  # the most that a layout's tokens can hold


def vocabulary_to_json(shard_format: ShardFormat) -> dict[str, Any]:
    """Return the entry for `manifest.json`; its `dtype` is that of the tokens in the files."""
    vocabulary = shard_format.vocabulary
    return {
        "name": vocabulary.name,
        "sha256": vocabulary.sha256,
        "size": vocabulary.size,
        "eot": vocabulary.eot,
        "dtype": shard_format.dtype.name,
    }


def vocabulary_of(manifest: dict[str, Any]) -> Vocabulary:
    """Return the vocabulary that a `manifest.json` names; ValueError if the entry is damaged.

    An early manifest names only a tokenizer, which is GPT-2.
    """
    if manifest.get("tokenizer") == GPT2.name:
        return GPT2
    data = get(manifest, "vocabulary", dict)
    size, eot = get(data, "size", int), get(data, "eot", int)
    if not 0 <= eot < size <= _MOST_IDS:
        raise ValueError(f"a vocabulary of {size:,} ids can't have the EOT {eot}")
    found = Vocabulary(get(data, "name", str), get(data, "sha256", str), size, eot)
    return GPT2 if found == GPT2 else found


def check_dtype(manifest: dict[str, Any], shard_format: ShardFormat) -> None:
    """Raise ValueError if the manifest's dtype is not the one that the layout uses."""
    wanted = shard_format.dtype.name
    if "vocabulary" in manifest and (found := get(manifest["vocabulary"], "dtype", str)) != wanted:
        raise ValueError(f"its tokens are {found!r:.40}, where they should be {wanted}")
