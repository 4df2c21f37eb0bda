"""The tokens of a finished shard, mapped into memory: nothing is read until it is looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import Layout
from fineweb_shards.types import ShardRecord, Tokens


def map_tokens(folder: Path, layout: Layout, record: ShardRecord) -> Tokens:
    """Raises DamageError where the file is not what the ledger says."""
    path = folder / record.name
    try:
        if path.stat().st_size != layout.header_bytes + 2 * record.tokens:
            raise DamageError(f"{path}: its length is not what the manifest says.")
        return np.memmap(path, "<u2", "r", layout.header_bytes, (record.tokens,))
    except OSError as error:
        raise DamageError(f"{path}: {error.strerror or error}.") from error
