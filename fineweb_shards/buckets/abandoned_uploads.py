"""Give up uploads that a killed run has left unfinished. obstore can't list them, so this is for boto3."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from fineweb_shards.buckets.address import BucketAddress
from fineweb_shards.errors import ShardError

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
