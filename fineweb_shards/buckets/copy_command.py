"""The command of each store's own program that copies a folder from a bucket to this machine."""

from __future__ import annotations

import shlex

from fineweb_shards.buckets.address import BucketAddress


def copy_command(address: BucketAddress) -> tuple[str, str]:
    """Return a command that copies a folder of a bucket into the current folder, and the name of the copy."""
    name = str(address).rpartition("/")[2]
    source, target = shlex.quote(str(address)), shlex.quote(name)
    if address.scheme == "s3":
        return f"aws s3 sync {source} {target}", name
    if address.scheme == "gs":
        return f"mkdir -p {target} && gcloud storage rsync --recursive {source} {target}", name
    # It makes folders for the whole name, and finds the account in AZURE_STORAGE_ACCOUNT.
    pattern = f" --pattern {shlex.quote(f'{address.prefix}/*')}" if address.prefix else ""
    command = (
        f"az storage blob download-batch --source {shlex.quote(address.bucket)}{pattern} --destination ."
    )
    return command, address.prefix or "."
