"""The address of a bucket, or of a folder in it: `s3://bucket/folder`.

An address with credentials in it is refused, and never shown.
"""

from __future__ import annotations

import glob
import re
import shlex
from dataclasses import dataclass, replace

from fineweb_shards.errors import UsageError, closest

SCHEMES = ("s3", "gs", "az")
WEB_SCHEMES = ("http", "https")  # files on any server, read-only
_EXAMPLE = "An address is like s3://bucket/folder, gs://bucket/folder or az://container/folder."
_OTHER_INPUT = "Input may also be hf://datasets/ORG/NAME/path or https://host/file; download others first."
# What other programs call the same stores.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("azure", "abfs", "abfss", "wasb", "wasbs", "adl"), "az"
)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://", re.ASCII)
_ALMOST = re.compile(rf"({'|'.join([*SCHEMES, *_OTHER_NAMES, *WEB_SCHEMES, 'hf'])}):", re.IGNORECASE | re.ASCII)
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._$-]*", re.ASCII)
# Parameters of signed addresses: they grant access, so they must not appear in a message or manifest.
_SIGNED = re.compile(r"[?&](X-Amz-|X-Goog-|AWSAccessKeyId=|Signature=|sig=|sv=)", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Return whether a text is an address with any scheme, not the path of a file."""
    return _URL.match(text) is not None


def check_path(text: str) -> None:
    """Raise UsageError for a mistyped address such as `s3:/bucket`, which would otherwise become a folder."""
    found = _ALMOST.match(text)
    if found and not is_url(text):
        scheme, rest = found[1].lower(), text[found.end() :].lstrip("/")
        meant = f"{_OTHER_NAMES.get(scheme, scheme)}://{rest}"
        hint = f"Did you mean {meant}? If it is a path, begin it with ./"
        raise UsageError(f"{text}: not a valid address.", hint)


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """A bucket, or a folder in it."""

    scheme: str
    bucket: str
    prefix: str = ""  # without slashes at its ends

    @classmethod
    def parse(cls, url: str) -> BucketAddress:
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
            raise UsageError(f"{url}: this address names no bucket.", _EXAMPLE)
        if not _BUCKET.fullmatch(bucket):
            raise UsageError(f"{url}: {bucket!r} is not a valid bucket name.", _EXAMPLE)
        if "?" in path:
            raise UsageError(f"{url}: an address can't have a part after a question mark.", _EXAMPLE)
        if prefix := path.strip("/"):
            _check_name(url, prefix)
        return cls(scheme, bucket, prefix)

    def child(self, name: str) -> BucketAddress:
        return replace(self, prefix=self.key(name))

    def key(self, name: str) -> str:
        """Return the key in the bucket of an object in this folder, or of the folder itself."""
        if name:
            _check_name(f"{self}/{name}", name)
        return "/".join(part for part in (self.prefix, name) if part)

    def name_of(self, key: str) -> str:
        """Return a key relative to this folder."""
        return key.removeprefix(f"{self.prefix}/") if self.prefix else key

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(part for part in (self.bucket, self.prefix) if part)}"


def split_glob(url: str) -> tuple[BucketAddress, tuple[str, ...]]:
    """Split an address into the folder before the first pattern, and the parts from there on."""
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
    """Raise UsageError for a name that object stores allow but file systems don't."""
    for part in name.split("/"):
        if part in ("", ".", ".."):
            hint = "Write the address without //, . and .. parts."
            raise UsageError(f"{url}: {part!r} can't be part of a name.", hint)


def copy_command(address: BucketAddress) -> tuple[str, str]:
    """Return a command of the store's own CLI that downloads a folder, and the name of the copy."""
    name = str(address).rpartition("/")[2]
    source, target = shlex.quote(str(address)), shlex.quote(name)
    if address.scheme == "s3":
        return f"aws s3 sync {source} {target}", name
    if address.scheme == "gs":
        return f"mkdir -p {target} && gcloud storage rsync --recursive {source} {target}", name
    # It creates folders for the whole name, and takes the account from AZURE_STORAGE_ACCOUNT.
    pattern = f" --pattern {shlex.quote(f'{address.prefix}/*')}" if address.prefix else ""
    download = f"az storage blob download-batch --source {shlex.quote(address.bucket)}"
    return f"{download}{pattern} --destination .", address.prefix or "."
