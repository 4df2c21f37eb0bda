"""Addresses of files on the Hugging Face hub: `hf://datasets/ORG/NAME@REVISION/folder/*.parquet`.

Such an input is a dataset like that of --dataset, only that a path or pattern says which of its files are read, instead
of a config and split. So it is recorded, pinned, fetched and resumed in the same way.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from fineweb_shards.errors import UsageError

_SCHEME = "hf://"
# A revision with a slash is one of the hub's own, or has %2F for it: as in huggingface_hub's HfFileSystem.
_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")
_EXAMPLE = "An address is like hf://datasets/ORG/NAME/folder/*.parquet, with @REVISION after NAME if need be."


def parse_hub_address(text: str) -> tuple[str, str, str] | None:
    """Return dataset, revision and path or pattern, each but the first may be empty; None for any other text."""
    found = _ADDRESS.fullmatch(text)
    return (found[1], unquote(found[2] or ""), (found[3] or "").strip("/")) if found else None


def refuse_hub_address(text: str) -> None:
    """Raise UsageError for an address of the hub that can't be read where it is given."""
    if not text.lower().startswith(_SCHEME):
        return
    if text.startswith("hf://buckets/"):
        raise UsageError(
            f"{text}: buckets of the hub are read by their S3 gateway.",
            "As s3://BUCKET/folder, with AWS_ENDPOINT_URL=https://s3.hf.co/NAMESPACE, AWS_REGION=us-east-1 and the "
            "keys that the page of access tokens makes (docs/input.md, Buckets).",
        )
    if parse_hub_address(text) is None:
        raise UsageError(f"{text}: of the hub only files of datasets are read.", _EXAMPLE)
    raise UsageError(
        f"{text}: files of a dataset are the only --input of their part, without --name, --split and --revision.",
        "Name each input by --part input=…, a revision by hf://datasets/ORG/NAME@REVISION/…, and files for validation "
        "by --val-input and their path in the dataset.",
    )
