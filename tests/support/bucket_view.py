"""What is in a bucket, seen by plain requests, past our own code and past doors; and what must be in it.

The state of a bucket changes by requests only. So whoever looks after every request that changes something has seen
every moment.
"""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3

from tests.support import reference
from tests.support.bucket_server import Door

_SUFFIXES = (".npy", ".bin", ".idx", ".gz", ".ds", ".index", ".metadata")
_WORK = ".fineweb-shards/"


class BucketView:
    """A folder of a bucket, with the environment's credentials."""

    def __init__(self, endpoint: str, url: str) -> None:
        self._bucket, _, folder = url.removeprefix("s3://").partition("/")
        self._prefix = f"{folder}/" if folder else ""
        self._client: Any = boto3.client("s3", endpoint_url=endpoint)

    def names(self) -> list[str]:
        found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix)
        return [one["Key"].removeprefix(self._prefix) for one in found.get("Contents", [])]

    def read(self, name: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read())

    def write(self, name: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def outputs(self) -> dict[str, bytes]:
        """Every file of any layout, and every index: name to bytes."""
        return {name: self.read(name) for name in self.names() if is_output(name)}

    def name_in(self, path: str) -> str | None:
        """The name in the folder of what a request is for."""
        key = urllib.parse.unquote(urllib.parse.urlsplit(path).path).removeprefix(f"/{self._bucket}/")
        return key.removeprefix(self._prefix) if key.startswith(self._prefix) else None


def is_output(name: str) -> bool:
    """Whether a name is one that a reader would open."""
    return not name.startswith(_WORK) and name.endswith(_SUFFIXES)


class Watcher:
    """Looks at what a request has changed, every time, before anybody hears of it. An object with a final name must be
    one of `allowed`: all of it, from its first moment to its last."""

    def __init__(self, view: BucketView, door: Door, *allowed: Mapping[str, bytes]) -> None:
        self.torn: list[str] = []
        self.changes = 0
        self._view = view
        self._allowed = [reference.digests(dict(files)) for files in allowed]
        self._lock = threading.Lock()
        door.on_answer = self.look

    def look(self, method: str, path: str) -> None:
        name = self._view.name_in(path)
        if method in ("GET", "HEAD") or name is None or not is_output(name):
            return
        with self._lock:
            self.changes += 1
            if name not in self._view.names():
                return  # nothing is visible of an unfinished upload, or of what was deleted
            found = self._view.read(name)
            digest = reference.digests({name: found})[name]
            if digest not in [files.get(name) for files in self._allowed]:
                self.torn.append(f"{name} after {method} {path}")


def check_finished(view: BucketView, scratch: Path, expected: Mapping[str, bytes]) -> None:
    """Exactly the expected files, and nothing of the run itself, in the bucket or on this machine."""
    names = view.names()
    assert reference.digests(view.outputs()) == reference.digests(dict(expected))
    assert "manifest.json" in names
    assert not [name for name in names if "/parts/" in name or "lock" in name or "probe" in name]
    assert [path.name for path in scratch.rglob("*.tmp")] == []
