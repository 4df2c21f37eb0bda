"""Save the manifest of an output folder.

A run saves it after every shard, and its lists become long: serializing 2,410 files and 13,000 records takes a second.
So each item is serialized once and its text is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fineweb_shards.errors import OutputError
from fineweb_shards.output.manifest import FILE_NAME, GPT2_FIELDS, MOST_BYTES, InputPart, Manifest, canonical_json
from fineweb_shards.output.store import Store
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.types import ShardRecord
from fineweb_shards.units import show_number_of


@dataclass(frozen=True, slots=True)
class _Text:
    """A value's JSON for the hash (on one line, with sorted keys), and for the file."""

    hashed: bytes
    shown: bytes

    @classmethod
    def of(cls, value: Any, depth: int = 1) -> _Text:
        text = json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\n" + " " * depth)
        # A lone surrogate in a file name becomes a JSON escape, because UTF-8 can't encode it.
        return cls(canonical_json(value), text.encode("utf-8", "backslashreplace"))


class _ListText:
    """The text of a list of records or parts. If the list has grown, only its new items are serialized."""

    def __init__(self) -> None:
        self._items: list[ShardRecord | InputPart] = []
        self._texts: list[_Text] = []

    def update(self, items: Sequence[ShardRecord | InputPart]) -> _Text:
        if self._items != list(items[: len(self._items)]):  # quick, because most are the same objects
            self._items, self._texts = [], []
        self._texts += [_Text.of(_to_json(item), depth=2) for item in items[len(self._items) :]]
        self._items = list(items)
        if not items:
            return _Text(b"[]", b"[]")
        hashed, shown = (one.hashed for one in self._texts), (one.shown for one in self._texts)
        return _Text(b"[%b]" % b", ".join(hashed), b"[\n  %b\n ]" % b",\n  ".join(shown))


class ManifestFile:
    """Saves the manifest of a store repeatedly: usually only records were added."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parts = _ListText()
        self._shards = _ListText()

    def save(self, manifest: Manifest) -> None:
        """Replace the store's manifest durably."""
        effort = {
            "seconds": round(manifest.seconds, 3),
            "tokens_per_second": round(manifest.tokens / max(manifest.seconds, 1e-3)),
            "peak_memory_bytes": manifest.peak_memory_bytes,
            **({"run": self._store.run_id} if self._store.run_id else {}),
        }
        # What is needed to read tokens and to recognize the vocabulary, without the bytes of its tokens.
        known = manifest.vocabulary
        vocabulary = {name: getattr(known, name) for name in ("name", "sha256", "size", "eot")}
        others = {name: getattr(known, name) for name in GPT2_FIELDS}
        changed = {name: value for name, value in others.items() if value != GPT2_FIELDS[name]}
        vocabulary |= {"dtype": manifest.shard_format.dtype.name, **changed}
        fields = {
            "format": _Text.of(manifest.format),
            "vocabulary": _Text.of(vocabulary),
            **{
                name: _Text.of(getattr(manifest, name))
                for name in ("settings", "digits", "index", "versions", "totals")
            },
            "effort": _Text.of(effort),
            "quarantined": _Text.of([asdict(document) for document in manifest.quarantined]),
            "shards": self._shards.update(manifest.shards),
            "parts": self._parts.update(manifest.parts),
            **({"piles": _Text.of(_to_json(manifest.piles))} if manifest.piles else {}),
            "complete": _Text.of(manifest.complete),  # last, so that the end of the file shows it
        }
        hashed = b", ".join(b'"%b": %b' % (name.encode(), fields[name].hashed) for name in sorted(fields))
        fields = {"checksum": _Text.of(hashlib.sha256(b"{%b}" % hashed).hexdigest()), **fields}
        shown = b",\n".join(b' "%b": %b' % (name.encode(), one.shown) for name, one in fields.items())
        data = b"{\n%b\n}\n" % shown
        if len(data) > MOST_BYTES:  # it could not be read again
            files = show_number_of(len(manifest.files), "input file")
            raise OutputError(
                f"{self._store.location}/{FILE_NAME}: {len(data):,} bytes for {files} and "
                f"{show_number_of(manifest.shard_count, 'shard')}; the limit is {MOST_BYTES:,}.",
                "Join small input files, or raise --shard-tokens.",
            )
        self._store.save_manifest(data)


def _to_json(item: ShardRecord | InputPart | PileState) -> dict[str, Any]:
    values = asdict(item)
    if not values.get("taken", True):  # only a mix has it
        del values["taken"]
    return values


def save_manifest(manifest: Manifest, store: Store) -> None:
    ManifestFile(store).save(manifest)
