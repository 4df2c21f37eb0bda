"""The tokens of a record of the manifest, mapped into memory: nothing is read until it is looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.files import find_file
from fineweb_shards.types import ShardRecord, Tokens


def map_tokens(folder: Path, shard_format: ShardFormat, record: ShardRecord) -> Tokens:
    """Raises DamageError where the file is not what the manifest says."""
    path = find_file(folder, record.name)
    if path is None:
        raise DamageError(f"{folder / record.name}: missing.")
    start = max(record.offset, shard_format.header_bytes)
    try:
        if path.stat().st_size < start + shard_format.size_bytes(record.tokens):
            raise DamageError(f"{path}: its length is not what the manifest says.")
        return np.memmap(path, shard_format.read_dtype, "r", start, (record.tokens,))
    except OSError as error:
        raise DamageError(f"{path}: {error.strerror or error}.") from error
