"""The connections of this process to buckets: one obstore store for each bucket and use, opened when needed.

A request is tried once: retrying is ours (system/retry.py), so that a wait is seen. Only the parts of an
upload are retried by obstore, because it can't go on with an upload after a failed part.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from fineweb_shards.buckets.address import BucketAddress
from fineweb_shards.buckets.credentials import store_options
from fineweb_shards.errors import UsageError
from fineweb_shards.system.shell_commands import install_command

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CONNECT_SECONDS = 10
STALL_SECONDS = 30  # silence in the middle of an answer
ANSWER_SECONDS = 300  # for a whole range or part: a connection that trickles is given up then
_PART_RETRIES = 6

_stores: dict[tuple[str, str, bool], ObjectStore] = {}
_answered: set[tuple[str, str]] = set()  # buckets that have answered, so that credentials were found
_lock = threading.Lock()
_process: int | None = None  # that has used obstore first, also in those that were forked from it


def require_obstore(address: BucketAddress) -> None:
    """Raise UsageError if the optional package is not installed."""
    if importlib.util.find_spec("obstore") is None:
        raise UsageError(
            f"{address}: object stores need the package obstore.",
            f"Install it: {install_command('obstore')}",
        )


def get_store(address: BucketAddress, *, for_upload: bool = False) -> ObjectStore:
    """Return this process's store for a bucket."""
    global _process
    if was_forked():
        raise UsageError(
            f"{address}: this process was forked from one that has used an object store, and would hang.",
            "Start processes with the method spawn.",
        )
    key = (address.scheme, address.bucket, for_upload)
    with _lock:
        _process = os.getpid()
        if key not in _stores:
            _stores[key] = _open(address, for_upload)
        return _stores[key]


def was_forked() -> bool:
    """Tell whether this process was forked from one that has used obstore. Its threads are not here, so that
    every request would wait for them for ever."""
    return _process not in (None, os.getpid())


def forget_stores(address: BucketAddress) -> None:
    """Drop what is known of a bucket, so that its credentials are looked for again."""
    with _lock:
        for for_upload in (False, True):
            _stores.pop((address.scheme, address.bucket, for_upload), None)


def note_answer(address: BucketAddress) -> None:
    """Remember that a bucket has answered a request."""
    _answered.add((address.scheme, address.bucket))


def has_answered(address: BucketAddress) -> bool:
    """Tell whether a bucket has ever answered a request of this process."""
    return (address.scheme, address.bucket) in _answered


def _open(address: BucketAddress, for_upload: bool) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    client: dict[str, Any] = {
        "allow_http": True,  # only if the endpoint says http
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{ANSWER_SECONDS}s",
    }
    if not for_upload:  # there it would count the time in which a part is sent
        client["read_timeout"] = f"{STALL_SECONDS}s"
    options = store_options(address.scheme) | {
        "client_options": client,
        "retry_config": {"max_retries": _PART_RETRIES if for_upload else 0},
    }
    _check_endpoint(options.get("endpoint"))
    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    if address.scheme == "s3":
        options["disable_bulk_delete"] = True  # not every store that speaks S3 knows it
    try:
        store: ObjectStore = kinds[address.scheme](address.bucket, **options)
    except (BaseError, ValueError):  # its message may quote what is in the environment
        raise UsageError(
            f"{address}: the settings in the environment can't be used.", SETTINGS[address.scheme]
        ) from None
    return store


def _check_endpoint(of_profile: str | None) -> None:
    """Raise UsageError for an endpoint that is no address of the web; obstore panics."""
    names = (
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_ENDPOINT",
    )
    values = {name: os.environ.get(name) for name in names} | {"endpoint_url of the AWS profile": of_profile}
    for name, value in values.items():
        if value and not re.match(r"https?://[^/@\s]+(/|$)", value):
            raise UsageError(f"{name} is no address.", "It is like https://host or http://host:port.")


# Where the settings of each store come from.
SETTINGS = {
    "s3": "Check AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    "gs": "Check GOOGLE_APPLICATION_CREDENTIALS: it names the JSON file of a service account or of "
    "`gcloud auth application-default login`.",
    "az": "Check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN).",
}
