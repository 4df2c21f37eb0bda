"""Files on web servers: `https://host/folder/file.jsonl.zst`. They are read like the objects of a bucket, by ranges.

A server has no list of its files, so each is named by itself. Not every server knows conditions, and one with a weak
ETag refuses them: so the version is compared in every answer (bucket_requests.py).
"""

from __future__ import annotations

import glob
import re
from urllib.parse import unquote

from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.events import Observer
from fineweb_shards.storage.bucket import Bucket, BucketPlace
from fineweb_shards.storage.bucket_address import WEB_SCHEMES, BucketAddress
from fineweb_shards.storage.bucket_credentials import SETTINGS
from fineweb_shards.storage.bucket_requests import ObjectInfo, content_hash
from fineweb_shards.storage.place import InputFile

_EXAMPLE = "Name a single file, such as https://host/folder/file.jsonl.zst."
_ADDRESS = re.compile(r"(https?)://([^/?#@]+)/([^?#]+)", re.IGNORECASE)


def is_web(text: str) -> bool:
    """Tell whether an input is on a web server."""
    return text.lower().startswith(tuple(f"{scheme}://" for scheme in WEB_SCHEMES))


def parse_address(url: str) -> BucketAddress:
    """Take the address of a file apart; UsageError if it can't be one."""
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0] or "?" in rest:
        raise UsageError(
            f"The {scheme}:// address holds a password or a part after a question mark, which may be a signature: "
            "both end up in logs and manifests.",
            "Leave it out; or download the file first (curl -LO ADDRESS), and name the file.",
        )
    found = _ADDRESS.fullmatch(url)
    if found is None or url.endswith("/") or glob.has_magic(url):
        raise UsageError(f"{url}: a web server has files only, no folders and no patterns.", _EXAMPLE)
    address = BucketAddress(found[1].lower(), found[2])
    return address.child(unquote(found[3]))


class WebServer(Bucket):
    """A web server, as far as it can be used like a bucket: files are looked at and read by ranges."""

    @staticmethod
    def parse(url: str) -> BucketAddress:
        address = parse_address(url)
        return BucketAddress(address.scheme, address.bucket)

    def head(self, name: str) -> ObjectInfo | None:
        """Return what is known of a file, and try whether a part of it is sent; None if there is none."""
        info = super().head(name)
        if info is not None and not info.etag and not info.modified_seconds:
            problem = "the server tells neither an ETag nor a date of this file, so no change could be noticed"
            raise InputError(f"{self.address.child(name)}: {problem}.", SETTINGS[self.address.scheme])
        if info is not None and info.size_bytes:
            self.fetch(name, content_hash(info), 0, 1)
        return info


def open_remote(url: str, max_outage_seconds: float = 3600, observer: Observer | None = None) -> Bucket:
    """Open the bucket, or the web server, of an address."""
    return (WebServer if is_web(url) else Bucket)(url, max_outage_seconds, observer)


class WebPlace(BucketPlace):
    """Files on web servers."""

    def _find(self, file: InputFile) -> tuple[Bucket, ObjectInfo]:
        server = WebServer(file.path, self.max_outage_seconds, self.retrier.observer)
        return server, ObjectInfo(parse_address(file.path).prefix, file.size_bytes, file.content_hash, 0.0)
