"""The tokens of a record of the manifest, mapped into memory: nothing is read until it is looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.base import Layout
from fineweb_shards.store.files import find_file
from fineweb_shards.types import ShardRecord, Tokens


def map_tokens(folder: Path, layout: Layout, record: ShardRecord) -> Tokens:
    """Raises DamageError where the file is not what the manifest says."""
    path = find_file(folder, record.name)
    if path is None:
        raise DamageError(f"{folder / record.name}: missing.")
    start = max(record.offset, layout.header_bytes)
    try:
        if path.stat().st_size < start + 2 * record.tokens:
            raise DamageError(f"{path}: its length is not what the manifest says.")
        return np.memmap(path, "<u2", "r", start, (record.tokens,))
    except OSError as error:
        raise DamageError(f"{path}: {error.strerror or error}.") from error
