"""Read some tokens of a manifest's record, wherever its file is."""

from __future__ import annotations

from fineweb_shards.errors import DamageError
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.store import Store
from fineweb_shards.types import ShardRecord, Tokens


def read_tokens(
    store: Store, shard_format: ShardFormat, record: ShardRecord, begin: int, most: int
) -> Tokens:
    """Read at most so many tokens of a record; DamageError if its file is missing or too short. Hashes are
    not checked."""
    count = max(0, min(most, record.tokens - begin))
    first = max(record.offset, shard_format.header_bytes)
    try:
        found = store.find(record.name)
        if found is None:
            raise DamageError(f"{record.name}: missing.")
        if found.size_bytes < first + shard_format.size_bytes(record.tokens):
            raise DamageError(f"{record.name}: its length is not what the manifest says.")
        start = first + shard_format.size_bytes(begin)
        data = store.read_range(found, start, start + shard_format.size_bytes(count))
    except OSError as error:
        raise DamageError(f"{record.name}: {error.strerror or error}.") from error
    return shard_format.from_bytes(data)
