"""Write small objects under a condition, in the form that the store understands.

S3, Google and Azure know conditions. Of the programs that speak S3, some refuse such a request (501), some
write without looking at the condition, and some refuse even a condition that holds, because they compare the
ETag without the quotes that they have sent: Ceph's RGW does (16.2, tried), and DigitalOcean's Spaces
(slatedb/slatedb#1818). versitygw had the same symptom (versity/versitygw#1710). What a store does is found
out by trying: store_probe.py.
"""

from __future__ import annotations

import secrets
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from fineweb_shards.errors import ChangedError
from fineweb_shards.events import Event
from fineweb_shards.storage.bucket_errors import (
    AnswerError,
    MissingError,
    PreconditionError,
    UnconditionalError,
)
from fineweb_shards.storage.bucket_requests import Connection, Ranges, Version, plain_etag
from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.system.own_files import SMALL_BYTES

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion
    from obstore.store import ObjectStore


DOES_NOT_HOLD = (PreconditionError, MissingError)


class Conditions(Enum):
    """How a store compares the ETag in the condition of a write."""

    QUOTED = "quoted"  # as it gives it, which is the rule
    UNQUOTED = "unquoted"
    NONE = "none"  # it does not, or wrongly

    def replacing(self, version: Version) -> UpdateVersion:
        """Return obstore's condition that an object still has this version; obstore wants no empty values."""
        condition: UpdateVersion = {}
        if version.etag is not None:
            condition["e_tag"] = plain_etag(version.etag) if self is Conditions.UNQUOTED else version.etag
        if version.version is not None:
            condition["version"] = version.version
        return condition


def read_object(
    connection: Connection, name: str, most_bytes: int = SMALL_BYTES
) -> tuple[bytes, Version] | None:
    """Return a small object and its version; None if there is none. A larger one is refused."""
    import obstore

    def get(store: ObjectStore, key: str) -> tuple[bytes, Version]:
        answer = obstore.get(store, key)
        if (size := answer.meta["size"]) > most_bytes:
            raise connection.refusal(
                f"{connection.address.child(name)}: {size:,} bytes long; an object of this name that "
                f"fineweb-shards wrote has at most {most_bytes:,}.",
                "Look where it came from, then move it away, or choose another address.",
            )
        data = bytes(answer.bytes())
        connection.retrier.observer.add_fetched(len(data))
        return data, Version.of(answer.meta)

    try:
        return connection.call(name, get, answers=MissingError)
    except MissingError:
        return None


def put(data: bytes, mode: PutMode, store: ObjectStore, key: str) -> Version:
    """Write an object in one request."""
    import obstore

    return Version.of(obstore.put(store, key, data, mode=mode, use_multipart=False))


def put_if(
    connection: Connection,
    name: str,
    data: bytes,
    mode: PutMode,
    answers: tuple[type[AnswerError], ...] = DOES_NOT_HOLD,
) -> Version:
    """Write an object under a condition; one of `answers` if the store refuses.

    If an answer is lost, the next try meets what the first one has written; so two writers must not write the
    same content.
    """
    tries = 0

    def try_to_put(store: ObjectStore, key: str) -> Version:
        nonlocal tries
        tries += 1
        return put(data, mode, store, key)

    try:
        return connection.call(name, try_to_put, answers=answers)
    except DOES_NOT_HOLD:
        found = read_object(connection, name, max(SMALL_BYTES, len(data))) if tries > 1 else None
        if found is None or found[0] != data:
            raise
        return found[1]  # it was written, and the answer was lost


# Find out, before anything depends on it, how a store answers conditions of writes and requests for ranges.
#
# Programs that speak S3 differ in both, and none says so. A condition tells by two writes: one whose
# condition holds must be done, one whose condition does not must be refused.

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
