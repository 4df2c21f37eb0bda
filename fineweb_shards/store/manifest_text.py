"""Write a manifest as JSON that a person can read, with a checksum of its values.

A run saves its manifest after every shard, and the lists in it become long: 2,410 files and 13,000 records, a
second of work each time. So the text of an item is made once and kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_vocabulary import vocabulary_to_json
from fineweb_shards.types import ShardRecord

FORMAT_VERSION = 3


class ManifestText:
    """The text of a manifest that changes from one save to the next, mostly by more records."""

    def __init__(self) -> None:
        self._files = _ListText()
        self._shards = _ListText()

    def make(self, manifest: Manifest, run_id: str = "") -> bytes:
        """Return the text of `manifest.json`, with the run that has written it, if it has a name."""
        effort = {
            "seconds": round(manifest.seconds, 3),
            "tokens_per_second": round(manifest.tokens / max(manifest.seconds, 1e-3)),
            "peak_memory_bytes": manifest.peak_memory_bytes,
            **({"run": run_id} if run_id else {}),
        }
        parts = {
            "format": _text_of(FORMAT_VERSION),
            "vocabulary": _text_of(vocabulary_to_json(manifest.shard_format)),
            "settings": _text_of(manifest.settings),
            "commit": _text_of(manifest.commit),
            "digits": _text_of(manifest.digits),
            "index": _text_of(manifest.index),
            "versions": _text_of(manifest.versions),
            "totals": _text_of(manifest.totals),
            "effort": _text_of(effort),
            "quarantined": _text_of([asdict(document) for document in manifest.quarantined]),
            "shards": self._shards.update(manifest.shards),
            "files": self._files.update(manifest.files),
            "complete": _text_of(manifest.complete),  # last, so that the end of the file shows it
        }
        hashed = b", ".join(b'"%b": %b' % (name.encode(), parts[name].hashed) for name in sorted(parts))
        checksum = hashlib.sha256(b"{%b}" % hashed).hexdigest()
        parts = {"checksum": _text_of(checksum), **parts}
        shown = b",\n".join(b' "%b": %b' % (name.encode(), part.shown) for name, part in parts.items())
        return b"{\n%b\n}\n" % shown


def checksum_of(data: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest's values, which does not depend on white space."""
    return hashlib.sha256(_hashed(data)).hexdigest()


@dataclass(frozen=True, slots=True)
class _Text:
    """A value as it is hashed (on one line, with sorted keys), and as it is shown."""

    hashed: bytes
    shown: bytes


class _ListText:
    """The text of a list. If the list has grown, only its new items are serialized."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._items: list[Any] = []
        self._hashed = bytearray()
        self._shown = bytearray()

    def update(self, items: Sequence[Any]) -> _Text:
        """Return the text of these items."""
        if self._items != list(items[: len(self._items)]):  # quick, because most are the same objects
            self._clear()
        for item in items[len(self._items) :]:
            self._add(item)
        if not items:
            return _Text(b"[]", b"[]")
        return _Text(b"".join((b"[", self._hashed, b"]")), b"".join((b"[\n", self._shown, b"\n ]")))

    def _add(self, item: Any) -> None:
        value = asdict(item) if isinstance(item, ShardRecord) else item
        self._hashed += (b", " if self._items else b"") + _hashed(value)
        self._shown += (b",\n  " if self._items else b"  ") + _shown(value, depth=2)
        self._items.append(item)


def _text_of(value: Any) -> _Text:
    return _Text(_hashed(value), _shown(value, depth=1))


def _hashed(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _shown(value: Any, depth: int) -> bytes:
    text = json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\n" + " " * depth)
    # A lone surrogate (in a file name) is written as a JSON escape, because it has no UTF-8.
    return text.encode("utf-8", "backslashreplace")
