"""The manifest, `manifest.json`: what is finished, what it was made from, and where to go on.

It is the only checkpoint. A shard is durable before its record is, so the manifest never names a shard
that might be missing; a shard it does not name is made again. It never holds a path or a token of this
machine: a folder may be carried elsewhere and finished there.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fineweb_shards.errors import ChangedError, DamageError, OutputError
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import Layout, tokens_of
from fineweb_shards.layouts.numbering import Numbering
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.files import OutputFile, find_file, list_files
from fineweb_shards.store.manifest_checks import check_manifest
from fineweb_shards.store.manifest_vocabulary import check_dtype, vocabulary_of, vocabulary_to_json
from fineweb_shards.store.megatron_index import index_bytes, index_path
from fineweb_shards.stream.packer import Done
from fineweb_shards.stream.split import SplitRule, make_split_rule
from fineweb_shards.system.durable import LOCK_NAME, WORK_FOLDER, output_error, read_file, write_file
from fineweb_shards.system.json_values import expect, get, make, parse_object
from fineweb_shards.types import Counts, Cursor, Quarantined, ShardRecord
from fineweb_shards.vocabulary import GPT2, Vocabulary

FILE_NAME = "manifest.json"
FORMAT_VERSION = 3
# Manifests of these formats are read for good; a folder begun with one goes on, and is saved as the newest.
_READABLE_FORMATS = (2, FORMAT_VERSION)
_RENAMED_SINCE_2 = {"inside": "starts_mid_document", "wrong_claims": "token_count_mismatches"}
_FIELDS = (
    "checksum", "vocabulary", "settings", "commit", "versions", "totals", "effort", "quarantined", "shards",
    "files", "complete",
)  # fmt: skip


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
    digits: int = 0  # of the numbers in names: see numbering.py
    vocabulary: Vocabulary = GPT2  # without the bytes of its tokens

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
    def shard_format(self) -> ShardFormat:
        return ShardFormat(self.layout, self.vocabulary)

    @property
    def split_rule(self) -> SplitRule:
        settings = self.settings
        default = self.layout.default_split_rule(settings["shard_tokens"])
        return make_split_rule(settings["val_tokens"], settings["val_ratio"], settings["val_seed"], default)

    @property
    def numbering(self) -> Numbering:
        return Numbering(self.layout, self.settings["shard_tokens"], self.split_rule, self.digits)

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
            "vocabulary": vocabulary_to_json(self.shard_format),
            "settings": self.settings,
            "commit": self.commit,
            "digits": self.digits,
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
        text = json.dumps({"checksum": _checksum(data), **data}, indent=1, ensure_ascii=False) + "\n"
        # What is no valid text (half a surrogate in a file name) becomes JSON's own way of writing it.
        write_file(folder / FILE_NAME, text.encode("utf-8", "backslashreplace"), folder / WORK_FOLDER)


def load_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None where there is none. One that is damaged, or not ours, is refused."""
    path = folder / FILE_NAME
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise output_error(path, error) from error
    if not is_ours(folder, data):
        raise OutputError(
            f"{path}: this is not a manifest of fineweb-shards, but a file of another program.",
            "For a build, choose another --out. Nothing here was touched, and --fresh would not change that.",
        )
    try:
        return _manifest_from_json(path, parse_object(data))
    except ValueError as error:
        raise DamageError(
            f"{path}: the manifest is damaged: {error}.",
            "Restore it from a copy, or choose another --out. Nothing here was touched: without it "
            "nobody can say which files --fresh may delete.",
        ) from error


def require_manifest(folder: Path) -> Manifest:
    """The folder's manifest; where there is none, what to do about it."""
    manifest = load_manifest(folder)
    if manifest is None:
        raise nothing_built(folder)
    return manifest


def nothing_built(folder: Path) -> OutputError:
    """Why a folder has no manifest, and the next step."""
    if not folder.is_dir():
        here = (
            "this is a file, not a folder" if folder.exists() else "no such folder: nothing was built there"
        )
        return OutputError(f"{folder}: {here}.", "Name a folder made by `build`: what its --out says.")
    if (folder / WORK_FOLDER).is_dir():
        return OutputError(
            f"{folder}: nothing is built here yet: no run has come as far as its first {FILE_NAME}.",
            "Run the build command again, or wait if it was started a moment ago.",
        )
    return OutputError(
        f"{folder}: nothing is built here: there is no {FILE_NAME}.",
        f"Build something first: fineweb-shards build --input PATH --out {shlex.quote(str(folder))}",
    )


def is_ours(folder: Path, data: bytes) -> bool:
    """Whether a `manifest.json` is one of this program's, damaged perhaps: web applications and many others
    have a file of that name. Most of our fields are in it, or a run of ours has been at work here."""
    if sum(f'"{name}"'.encode() in data for name in _FIELDS) > len(_FIELDS) // 2:
        return True
    try:
        return any(path.name != LOCK_NAME for path in (folder / WORK_FOLDER).iterdir())
    except OSError:
        return False


def _manifest_from_json(path: Path, data: dict[str, Any]) -> Manifest:
    found = get(data, "format", int)
    if found not in _READABLE_FORMATS:
        raise ChangedError(
            f"{path}: format {found}; this version of fineweb-shards reads up to {FORMAT_VERSION}.",
            "Use the version that made it, or another --out.",
        )
    recorded = data.pop("checksum", None)  # not in manifests of the first versions
    if recorded is not None and recorded != _checksum(data):
        raise ValueError("its checksum does not fit; it was changed after it was written")
    if found == 2:
        data = _with_new_names(data)
    effort = expect("effort", data.get("effort", {}), dict)
    commit = data.get("commit")
    manifest = Manifest(
        settings=get(data, "settings", dict),
        files=get(data, "files", list),
        versions=get(data, "versions", dict),
        commit=None if commit is None else expect("commit", commit, str),
        shards=tuple(make(ShardRecord, record) for record in get(data, "shards", list)),
        complete=get(data, "complete", bool),
        totals=get(data, "totals", dict),
        quarantined=tuple(
            make(Quarantined, one) for one in expect("quarantined", data.get("quarantined", []), list)
        ),
        seconds=expect("seconds", effort.get("seconds", 0), float),
        peak_memory_bytes=expect("peak_memory_bytes", effort.get("peak_memory_bytes", 0), int),
        digits=expect("digits", data.get("digits", 0), int),
        vocabulary=vocabulary_of(data),
    )
    check_manifest(manifest)
    check_dtype(data, manifest.shard_format)
    return manifest


def _with_new_names(value: Any) -> Any:
    """What a manifest of format 2 says, in the words of today."""
    if isinstance(value, list):
        return [_with_new_names(one) for one in value]
    if isinstance(value, dict):
        return {_RENAMED_SINCE_2.get(name, name): _with_new_names(one) for name, one in value.items()}
    return value


def _checksum(data: dict[str, Any]) -> str:
    """Of the values, not of the white space between them."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def trim(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest up to the last checkpoint whose files are all there: the rest is made again."""
    whole = manifest.complete
    lost: list[ShardRecord] = []
    for file in list_files(manifest.shards):
        path = find_file(folder, file.name)
        size = path.stat().st_size if path else 0
        lost += [record for record in file.segments if record.offset + record.bytes > size]
        if size > file.end_bytes and not may_be_longer(manifest, file):
            lost.append(file.segments[-1])
        whole = whole and path == folder / file.name and _has_index(manifest, path, file.documents)
    # Records of one checkpoint have the same end: a cursor holds for all of them or for none.
    ends = [record.end for record in manifest.shards]
    kept = manifest.shards[: min((ends.index(record.end) for record in lost), default=len(ends))]
    if whole and len(kept) == len(ends):
        return manifest
    if manifest.settings["val_ratio"] and manifest.totals.get("dropped_tokens"):
        kept = ()  # what was dropped was in checkpoints, together with what was not
    return replace(manifest, shards=kept, complete=False, totals={})


def may_be_longer(manifest: Manifest, file: OutputFile) -> bool:
    """Whether the run may have written more of a file than the manifest knows of."""
    one_file = manifest.layout.one_file
    return not manifest.complete and (one_file or file.tokens % manifest.settings["shard_tokens"] != 0)


def _has_index(manifest: Manifest, path: Path, documents: int) -> bool:
    """Whether the index is there and as long as it must be; `verify` looks into it."""
    if not manifest.layout.has_index:
        return True
    index = index_path(path)
    return index.is_file() and index.stat().st_size == index_bytes(path, documents, manifest.shard_format)
