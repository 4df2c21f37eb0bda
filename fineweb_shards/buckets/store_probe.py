"""Find out, before anything depends on it, how a store answers conditions of writes and requests for ranges.

Programs that speak S3 differ in both, and none says so. A condition tells by two writes: one whose condition
holds must be done, one whose condition does not must be refused.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from fineweb_shards.buckets.conditional_writes import DOES_NOT_HOLD, Conditions, put, put_if
from fineweb_shards.buckets.connection import Connection
from fineweb_shards.buckets.errors import MissingError, UnconditionalError
from fineweb_shards.buckets.objects import Version, plain_etag
from fineweb_shards.buckets.ranges import Ranges
from fineweb_shards.errors import ChangedError
from fineweb_shards.events import Event
from fineweb_shards.system.durable import WORK_FOLDER

if TYPE_CHECKING:
    from obstore import PutMode

# In the work folder, so that one that a killed run has left is known to be ours.
PROBE_PREFIX = f"{WORK_FOLDER}/probe-"
_IMPOSSIBLE = Version('"00000000000000000000000000000000"', None)
_RANGE = (2, 5)
_ANSWERS = (*DOES_NOT_HOLD, UnconditionalError)


def probe_store(connection: Connection) -> Conditions:
    """Write an object of our own a few times, read a part of it, and delete it. Return how the store compares
    conditions. A refusal if it can't be read by ranges, which would come out after the first upload."""
    name = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    created = _try_to_put(connection, name, "create")
    try:
        conditions = _find_conditions(connection, name, created)
        _check_ranges(connection, name)
    except connection.refusal:  # and not after an outage, which would be waited for once more
        _delete(connection, name)
        raise
    _delete(connection, name)
    return conditions


def _find_conditions(connection: Connection, name: str, created: Version | None) -> Conditions:
    if created is None or created.etag is None or _try_to_put(connection, name, "create") is not None:
        return Conditions.NONE
    for conditions in (Conditions.QUOTED, Conditions.UNQUOTED):
        if _try_to_put(connection, name, conditions.replacing(_IMPOSSIBLE)) is not None:
            return Conditions.NONE
        if _try_to_put(connection, name, conditions.replacing(created)) is not None:
            return conditions
    return Conditions.NONE


def _try_to_put(connection: Connection, name: str, mode: PutMode) -> Version | None:
    """Write something new under a condition; None if the store refuses."""
    try:
        return put_if(connection, name, secrets.token_bytes(8), mode, _ANSWERS)
    except _ANSWERS:
        return None


def _check_ranges(connection: Connection, name: str) -> None:
    data = secrets.token_bytes(8)
    version = connection.call(name, partial(put, data, "overwrite"))
    begin, end = _RANGE
    try:
        is_right = Ranges(connection, name, plain_etag(version.etag)).fetch(begin, end) == data[begin:end]
    except ChangedError:  # the ETag is the one that it has just given
        is_right = False
    if not is_right:
        raise connection.refusal(
            f"{connection.address}: the store does not give the bytes of a range of an object.",
            "Check the address and any proxy on the way, or use another server.",
        )


def _delete(connection: Connection, name: str) -> None:
    import obstore

    try:
        connection.call(name, lambda store, key: obstore.delete(store, key), answers=MissingError)
    except MissingError:
        return
    except connection.refusal as error:
        # A bucket in which nothing may be deleted can be written all the same.
        url = connection.address.child(name)
        connection.retrier.observer.tell(Event("note", f"{url} is left over: {error}"))
