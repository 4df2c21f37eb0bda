"""Write small objects under a condition, and find out whether a store knows conditions.

S3, Google and Azure do. Of the programs that speak S3, some refuse such a request (501), and some write
without looking at the condition. The second kind is noticed only by trying.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from fineweb_shards.buckets.connection import Connection
from fineweb_shards.buckets.errors import MissingError, PreconditionError, UnconditionalError
from fineweb_shards.buckets.objects import Version
from fineweb_shards.events import Event
from fineweb_shards.system.durable import WORK_FOLDER

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore


# In the work folder, so that one that a killed run has left is known to be ours.
PROBE_PREFIX = f"{WORK_FOLDER}/probe-"
_ANSWERS = (PreconditionError, MissingError, UnconditionalError)


def put(data: bytes, mode: PutMode, store: ObjectStore, key: str) -> Version:
    """Write an object in one request."""
    import obstore

    return Version.of(obstore.put(store, key, data, mode=mode, use_multipart=False))


def knows_conditions(connection: Connection) -> bool:
    """Write an object of our own twice more, under conditions that don't hold; tell whether both writes are
    refused. The object is deleted afterwards."""
    name = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    impossible = Version('"00000000000000000000000000000000"', None).condition()
    try:
        connection.call(name, partial(put, b"probe", "create"), answers=_ANSWERS)
    except UnconditionalError:
        return False
    except PreconditionError:
        pass  # it was written, and the answer was lost: nobody else knows this name
    try:
        return _refuses(connection, name, "create") and _refuses(connection, name, impossible)
    finally:
        _delete(connection, name)


def _refuses(connection: Connection, name: str, mode: PutMode) -> bool:
    try:
        connection.call(name, partial(put, b"probe", mode), answers=_ANSWERS)
    except (PreconditionError, MissingError):
        return True
    except UnconditionalError:
        return False
    return False


def _delete(connection: Connection, name: str) -> None:
    import obstore

    try:
        connection.call(name, lambda store, key: obstore.delete(store, key), answers=MissingError)
    except MissingError:
        return
    except connection.refusal as error:
        # A bucket in which nothing may be deleted can be written all the same.
        url = connection.address.child(name)
        connection.retrier.observer.tell(Event("note", f"{url} is left behind: {error}"))
