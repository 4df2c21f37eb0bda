"""Write small objects under a condition, in the form that the store understands.

S3, Google and Azure know conditions. Of the programs that speak S3, some refuse such a request (501), some
write without looking at the condition, and some refuse even a condition that holds, because they compare the
ETag without the quotes that they have sent: Ceph's RGW does (16.2, tried), and DigitalOcean's Spaces
(slatedb/slatedb#1818). versitygw had the same symptom (versity/versitygw#1710). What a store does is found
out by trying: store_probe.py.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fineweb_shards.buckets.connection import Connection
from fineweb_shards.buckets.errors import AnswerError, MissingError, PreconditionError
from fineweb_shards.buckets.objects import Version, plain_etag
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
