"""The address of a bucket, or of a folder in it: `s3://bucket/folder`.

An address holds no credentials. One that does is refused, and never shown.
"""

from __future__ import annotations

import glob
import re
import shlex
from dataclasses import dataclass, replace

from fineweb_shards.errors import UsageError, closest

SCHEMES = ("s3", "gs", "az")
WEB_SCHEMES = ("http", "https")  # files on any server, which are only read (web.py)
_EXAMPLE = "An address is like s3://bucket/folder, gs://bucket/folder or az://container/folder."
_OTHER_INPUT = "Input may also be hf://datasets/ORG/NAME/path or https://host/file; download others first."
# What other programs call the same stores.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("azure", "abfs", "abfss", "wasb", "wasbs", "adl"), "az"
)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
_ALMOST = re.compile(rf"({'|'.join([*SCHEMES, *_OTHER_NAMES, *WEB_SCHEMES, 'hf'])}):", re.IGNORECASE | re.ASCII)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._$-]*", re.ASCII)
# Parameters of signed addresses: whoever has one may read, so it belongs in no message and no manifest.
_SIGNED = re.compile(r"[?&](X-Amz-|X-Goog-|AWSAccessKeyId=|Signature=|sig=|sv=)", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Tell whether a text is an address with a scheme, known or not, and not the path of a file."""
    return _URL.match(text) is not None


def check_path(text: str) -> None:
    """Raise UsageError for a path that is meant to be an address: `s3:/bucket`. It would become a folder."""
    found = _ALMOST.match(text)
    if found and not is_url(text):
        scheme, rest = found[1].lower(), text[found.end() :].lstrip("/")
        meant = f"{_OTHER_NAMES.get(scheme, scheme)}://{rest}"
        hint = f"Did you mean {meant}? If it is a path, begin it with ./"
        raise UsageError(f"{text}: this is no address.", hint)


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A bucket, and the folder in it (none if `prefix` is empty)."""

    scheme: str
    bucket: str
    prefix: str = ""  # without slashes at its ends

    @classmethod
    def parse(cls, url: str) -> BucketAddress:
        """Take an address apart; UsageError if it can't be one."""
        found = _URL.match(url)
        scheme = found[1].lower() if found else ""
        if scheme not in SCHEMES:
            shown = f"{scheme}://" if scheme else "An address without a scheme"
            known = SCHEMES if scheme in WEB_SCHEMES else SCHEMES + WEB_SCHEMES
            meant = _OTHER_NAMES.get(scheme) or closest(scheme, known)
            hint = f"Did you mean {meant}://? {_EXAMPLE}" if meant else f"{_EXAMPLE} {_OTHER_INPUT}"
            raise UsageError(f"{shown}: no known object store.", hint)
        rest = url[len(scheme) + len("://") :]
        bucket, _, path = rest.partition("/")
        _refuse_secrets(scheme, bucket, rest)
        if not bucket:
            raise UsageError(f"{url}: there is no bucket in this address.", _EXAMPLE)
        if not _BUCKET.fullmatch(bucket):
            raise UsageError(f"{url}: {bucket!r} can't be the name of a bucket.", _EXAMPLE)
        if "?" in path:
            raise UsageError(f"{url}: an address has no part after a question mark.", _EXAMPLE)
        if prefix := path.strip("/"):
            _check_name(url, prefix)
        return cls(scheme, bucket, prefix)

    def child(self, name: str) -> BucketAddress:
        """Return the address of something in this folder."""
        return replace(self, prefix=self.key(name))

    def key(self, name: str) -> str:
        """Return the full name in the bucket of something in this folder, or of the folder itself."""
        if name:
            _check_name(f"{self}/{name}", name)
        return "/".join(part for part in (self.prefix, name) if part)

    def name_of(self, key: str) -> str:
        """Return the name in this folder of what has a full name in the bucket."""
        return key.removeprefix(f"{self.prefix}/") if self.prefix else key

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(part for part in (self.bucket, self.prefix) if part)}"


def split_glob(url: str) -> tuple[BucketAddress, tuple[str, ...]]:
    """Divide an address into the folder before the first part that is a pattern, and the parts from there."""
    found = _URL.match(url)
    rest = url[found.end() :] if found else ""
    bucket, *parts = rest.split("/")
    _refuse_secrets(found[1] if found else "", bucket, rest)
    fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    folder = BucketAddress.parse(url[: len(url) - len(rest)] + "/".join([bucket, *parts[:fixed]]))
    return folder, tuple(parts[fixed:])


def _refuse_secrets(scheme: str, bucket: str, rest: str) -> None:
    """Raise UsageError, without the address, if it holds credentials."""
    if "@" in bucket or ":" in bucket or _SIGNED.search(rest):
        raise UsageError(
            f"The {scheme}:// address holds credentials or a signature, which end up in logs and manifests.",
            "Leave them out, and set them in the environment (AWS_ACCESS_KEY_ID, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY …) or in a profile.",
        )


def _check_name(url: str, name: str) -> None:
    """Raise UsageError for a name that object stores allow, but that no folder could hold."""
    for part in name.split("/"):
        if part in ("", ".", ".."):
            hint = "Write the address without //, . and .. parts."
            raise UsageError(f"{url}: {part!r} can't be a part of a name.", hint)


def copy_command(address: BucketAddress) -> tuple[str, str]:
    """Return a command of the store's own program that copies a folder here, and the name of the copy."""
    name = str(address).rpartition("/")[2]
    source, target = shlex.quote(str(address)), shlex.quote(name)
    if address.scheme == "s3":
        return f"aws s3 sync {source} {target}", name
    if address.scheme == "gs":
        return f"mkdir -p {target} && gcloud storage rsync --recursive {source} {target}", name
    # It makes folders for the whole name, and finds the account in AZURE_STORAGE_ACCOUNT.
    pattern = f" --pattern {shlex.quote(f'{address.prefix}/*')}" if address.prefix else ""
    download = f"az storage blob download-batch --source {shlex.quote(address.bucket)}"
    return f"{download}{pattern} --destination .", address.prefix or "."
