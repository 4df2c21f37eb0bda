"""The ledger, `manifest.json`: what is finished, what it was made from, and where to go on.

It is the only checkpoint. A shard is durable before its record is, so the ledger never names a shard
that might be missing; a shard it does not name is made again. It never holds a path or a token of this
machine: a folder may be carried elsewhere and finished there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fineweb_shards.durable import WORK_FOLDER, output_error, write_file
from fineweb_shards.errors import ChangedError, DamageError
from fineweb_shards.files import OutputFile, find_file, list_files
from fineweb_shards.index import index_bytes, index_path
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import Layout, tokens_of
from fineweb_shards.packer import Done
from fineweb_shards.split import Split, make_split
from fineweb_shards.types import Counts, Cursor, Quarantined, ShardRecord

FILE_NAME = "manifest.json"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class Manifest:
    """The state of an output folder. Changing it means saving another one."""

    settings: dict[str, Any]  # the ones that change bytes: config.fingerprint()
    files: list[dict[str, Any]]
    versions: dict[str, str]
    commit: str | None = None  # of a dataset on the hub: a resume goes on with the same one
    shards: tuple[ShardRecord, ...] = ()
    complete: bool = False
    totals: dict[str, Any] = field(default_factory=dict)
    quarantined: tuple[Quarantined, ...] = ()  # left out; a resume must leave them out again
    seconds: float = 0.0  # of work in these shards, over all runs
    peak_memory_bytes: int = 0

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def counts(self) -> Counts:
        return sum((shard.counts for shard in self.shards), Counts())

    @property
    def layout(self) -> Layout:
        return get_layout(self.settings["layout"])

    @property
    def split(self) -> Split:
        settings = self.settings
        default = self.layout.default_split(settings["shard_tokens"])
        return make_split(settings["val_tokens"], settings["val_ratio"], settings["val_seed"], default)

    @property
    def done(self) -> Done:
        """For the packer: how far each split is."""
        return Done(tokens_of(self.shards, "val"), tokens_of(self.shards, "train"), self.documents)

    @property
    def end(self) -> Cursor:
        """Where the next shard begins."""
        return self.shards[-1].end if self.shards else Cursor(0, 0)

    def append(self, *records: ShardRecord) -> Manifest:
        """With the records of a checkpoint, which all have the same end."""
        return replace(self, shards=(*self.shards, *records))

    def save(self, folder: Path) -> None:
        data = {
            "format": FORMAT_VERSION,
            "tokenizer": "gpt2",
            "settings": self.settings,
            "commit": self.commit,
            "versions": self.versions,
            "totals": self.totals,
            "effort": {
                "seconds": round(self.seconds, 3),
                "tokens_per_second": round(self.tokens / max(self.seconds, 1e-3)),
                "peak_memory_bytes": self.peak_memory_bytes,
            },
            "quarantined": [asdict(document) for document in self.quarantined],
            "shards": [asdict(shard) for shard in self.shards],
            "files": self.files,
            "complete": self.complete,  # last, so that the end of the file tells
        }
        write_file(
            folder / FILE_NAME,
            (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode(),
            folder / WORK_FOLDER,
        )


def load_manifest(folder: Path) -> Manifest | None:
    """The folder's ledger, or None where there is none."""
    path = folder / FILE_NAME
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise output_error(path, error) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, error) from error
    try:
        data = json.loads(text)
        found = data["format"]
        if found != FORMAT_VERSION:
            raise ChangedError(
                f"{path}: format {found}; this version of fineweb-shards reads {FORMAT_VERSION}.",
                "Use the version that made it, another --out, or --fresh.",
            )
        effort = data.get("effort", {})  # not in the first version's manifests
        return Manifest(
            settings=data["settings"],
            files=data["files"],
            versions=data["versions"],
            commit=data["commit"],
            shards=tuple(_record_from_json(record) for record in data["shards"]),
            complete=data["complete"],
            totals=data["totals"],
            quarantined=tuple(Quarantined(**document) for document in data.get("quarantined", ())),
            seconds=float(effort.get("seconds", 0)),
            peak_memory_bytes=int(effort.get("peak_memory_bytes", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def check_settings(manifest: Manifest, settings: dict[str, Any]) -> None:
    """Refuse to go on with settings that would give other bytes."""
    for name in sorted(manifest.settings.keys() | settings.keys()):
        old, new = manifest.settings.get(name), settings.get(name)
        if old != new:
            raise ChangedError(
                f"The setting {name} was {old!r} when this folder was begun and is {new!r} now."
            )


def trim(manifest: Manifest, folder: Path) -> Manifest:
    """The ledger up to the last checkpoint whose files are all there: the rest is made again."""
    whole = manifest.complete
    lost: list[ShardRecord] = []
    for file in list_files(manifest.shards):
        path = find_file(folder, file.name)
        size = path.stat().st_size if path else 0
        lost += [record for record in file.stretches if record.offset + record.bytes > size]
        if size > file.end_bytes and not _may_be_longer(manifest, file):
            lost.append(file.stretches[-1])
        whole = whole and path == folder / file.name and _has_index(manifest, path, file.documents)
    # Records of one checkpoint have the same end: a cursor holds for all of them or for none.
    ends = [record.end for record in manifest.shards]
    kept = manifest.shards[: min((ends.index(record.end) for record in lost), default=len(ends))]
    if whole and len(kept) == len(ends):
        return manifest
    if manifest.settings["val_ratio"] and manifest.totals.get("dropped_tokens"):
        kept = ()  # what was dropped was in checkpoints, together with what was not
    return replace(manifest, shards=kept, complete=False, totals={})


def _may_be_longer(manifest: Manifest, file: OutputFile) -> bool:
    """Whether the run may have written more of a file than the ledger knows of."""
    one_file = manifest.layout.one_file
    return not manifest.complete and (one_file or file.tokens % manifest.settings["shard_tokens"] != 0)


def _has_index(manifest: Manifest, path: Path, documents: int) -> bool:
    """Whether the index is there and long enough for the documents; `verify` looks into it."""
    if not manifest.layout.has_index:
        return True
    index = index_path(path)
    return index.is_file() and index.stat().st_size >= index_bytes(documents)


def _record_from_json(data: dict[str, Any]) -> ShardRecord:
    name = data["name"]
    if not isinstance(name, str) or name != Path(name).name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no file name")  # a ledger must not reach out of its folder
    return ShardRecord(
        name=name,
        split="val" if data["split"] == "val" else "train",
        offset=int(data["offset"]),
        tokens=int(data["tokens"]),
        documents=int(data["documents"]),
        bytes=int(data["bytes"]),
        sha256=str(data["sha256"]),
        end=Cursor(**data["end"]),
        counts=Counts(**data["counts"]),
    )


def _damaged(path: Path, error: Exception) -> DamageError:
    return DamageError(
        f"{path}: not a readable manifest ({type(error).__name__}: {error}).",
        "Restore it from a backup, or start over with --fresh.",
    )
