"""A local file on its way into a bucket: how large its parts are, and what went wrong while it was read."""

from __future__ import annotations

import errno
import importlib.util
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, BinaryIO, TypeVar

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Observer
from fineweb_shards.storage.bucket_address import BucketAddress
from fineweb_shards.system.background import in_background

_SMALLEST_PART_BYTES = 8 * 2**20
_MOST_PARTS = 10_000  # S3's limit
UPLOAD_MEMORY_BYTES = 64 * 2**20  # for the parts on their way, unless a single one is larger
_MIB = 2**20
_SILENT_SECONDS = 30.0  # without a part that was taken: shown as a wait
_LOOK_SECONDS = 1.0

Result = TypeVar("Result")


def part_bytes_for(size_bytes: int) -> int:
    """Return the size of the parts: whole MiB, and as small as 10,000 parts allow."""
    needed = -(-size_bytes // _MOST_PARTS)
    return max(_SMALLEST_PART_BYTES, -(-needed // _MIB) * _MIB)


def parts_at_once(part_bytes: int) -> int:
    """Return how many parts are on their way at once."""
    return max(1, UPLOAD_MEMORY_BYTES // part_bytes - 1)  # one more is being read


class UploadFile:
    """A file of `size_bytes` that obstore reads: all of them, or an error, because what obstore has read to
    its end is published, however short it is. Remembers what was raised by a read, a signal's exception for
    example: obstore turns every exception into an OSError."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self.last_read = time.monotonic()
        self.failure: BaseException | None = None

    def read(self, size: int = -1) -> bytes:
        self.last_read = time.monotonic()
        left = self._size_bytes - self._file.tell()
        wanted = left if size < 0 else min(size, left)
        try:
            data = self._file.read(wanted)
            if len(data) < wanted:
                raise OSError(errno.EIO, "it has become shorter while it was uploaded")  # noqa: TRY301
        except BaseException as error:
            self.failure = error
            raise
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def wait_for_upload(
    upload: Callable[[], Result], source: UploadFile, address: object, observer: Observer
) -> Result:
    """Return what an upload of `source` returns. If it makes no progress for long, the observer hears of it:
    obstore would tell of a silent server only after minutes, because a part may take as long to be sent."""
    uploaded = in_background(upload)
    is_told = False
    try:
        while futures.wait([uploaded], _LOOK_SECONDS).not_done:
            is_silent = time.monotonic() - source.last_read > _SILENT_SECONDS
            if is_silent != is_told:
                is_told = is_silent
                since = time.strftime("%H:%M", time.localtime(time.time() - _SILENT_SECONDS))
                text = f"waiting for the network since {since} ({address}: an upload makes no progress)"
                observer.set_wait("network", text if is_silent else None)
    finally:
        if is_told:
            observer.set_wait("network", None)
    return uploaded.result()


# Give up uploads that a killed run has left unfinished. obstore can't list them, so this is for boto3.

# Nothing depends on it, so it waits for no outage.
_LIMITS: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 10, "retries": {"total_max_attempts": 3}}


def abort_abandoned_uploads(
    address: BucketAddress, is_ours: Callable[[str], bool], refusal: type[ShardError]
) -> int | None:
    """Give up the unfinished uploads into a folder of an S3 bucket whose names are ours; return their number.
    None if it is no S3 bucket, or boto3 is not installed."""
    if address.scheme != "s3" or importlib.util.find_spec("boto3") is None:
        return None
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    aborted = 0
    try:
        client = boto3.client("s3", config=Config(**_LIMITS))
        pages = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=address.bucket, Prefix=f"{address.prefix}/" if address.prefix else ""
        )
        found = [upload for page in pages for upload in page.get("Uploads", [])]
        for upload in [one for one in found if is_ours(address.name_of(one["Key"]))]:
            client.abort_multipart_upload(
                Bucket=address.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )
            aborted += 1
    except (BotoCoreError, ClientError) as error:
        raise refusal(
            f"{address}: unfinished uploads can't be given up ({type(error).__name__}).",
            "Let the bucket do it, by a lifecycle rule (AbortIncompleteMultipartUpload).",
        ) from None
    return aborted
