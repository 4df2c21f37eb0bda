"""Map the tokens of a manifest's record into memory. Pages are read when they are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.files import find_file
from fineweb_shards.types import ShardRecord, Tokens


def map_tokens(folder: Path, shard_format: ShardFormat, record: ShardRecord) -> Tokens:
    """Map a record's tokens; DamageError if the file is missing or too short. Hashes are not checked."""
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
