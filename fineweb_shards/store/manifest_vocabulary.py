"""Write and read the vocabulary in `manifest.json`: what is needed to read tokens and recognize it again.

The bytes of the tokens are not in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.system.json_values import get
from fineweb_shards.tokenizers.vocabulary_files import FILE_NAMES
from fineweb_shards.vocabulary import GPT2, Vocabulary

_MOST_IDS = 2**31  # the most that a layout's tokens can hold
# What says what the file is. In a manifest only if it is another one: folders of GPT-2 stay as they were.
_GPT2_FIELDS = {"pattern": GPT2.pattern, "reference": GPT2.reference}


def vocabulary_to_json(shard_format: ShardFormat) -> dict[str, Any]:
    """Return the entry for `manifest.json`; its `dtype` is that of the tokens in the files."""
    vocabulary = shard_format.vocabulary
    return {
        "name": vocabulary.name,
        "sha256": vocabulary.sha256,
        "size": vocabulary.size,
        "eot": vocabulary.eot,
        "dtype": shard_format.dtype.name,
        **{
            name: value
            for name, usual in _GPT2_FIELDS.items()
            if (value := getattr(vocabulary, name)) != usual
        },
    }


def vocabulary_of(manifest: dict[str, Any], work_folder: Path) -> Vocabulary:
    """Return the vocabulary that a `manifest.json` names; ValueError if the entry is damaged. The file that
    defines it is in `work_folder`.

    An early manifest names only a tokenizer, which is GPT-2.
    """
    if manifest.get("tokenizer") == GPT2.name:
        return GPT2
    data = get(manifest, "vocabulary", dict)
    size, eot = get(data, "size", int), get(data, "eot", int)
    if not 0 <= eot < size <= _MOST_IDS:
        raise ValueError(f"a vocabulary of {size:,} ids can't have the EOT {eot}")
    pattern, reference = (get(_GPT2_FIELDS | data, name, str) for name in _GPT2_FIELDS)
    if reference not in FILE_NAMES:
        raise ValueError(f"no tokenizer here is called {reference!r:.40}")
    name, sha256 = get(data, "name", str), get(data, "sha256", str)
    found = Vocabulary(name, sha256, size, eot, pattern, reference, folder=str(work_folder))
    return GPT2 if found == GPT2 else found


def check_dtype(manifest: dict[str, Any], shard_format: ShardFormat) -> None:
    """Raise ValueError if the manifest's dtype is not the one that the layout uses."""
    wanted = shard_format.dtype.name
    if "vocabulary" in manifest and (found := get(manifest["vocabulary"], "dtype", str)) != wanted:
        raise ValueError(f"its tokens are {found!r:.40}, where they should be {wanted}")
