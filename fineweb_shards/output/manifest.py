"""The manifest of an output folder: the finished files, their input, and where a resume starts.

The manifest is the only checkpoint. A shard is durable before its record is, so the manifest never names a shard that
might be missing; an unnamed shard is made again. It contains no path or access token of this machine: a folder can be
moved to another machine and finished there.

`manifest.json` is human-readable JSON with a checksum of its values. manifest_file.py writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fineweb_shards.errors import ChangedError, DamageError, OutputError, UsageError
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import Layout, Numbering, ShardFormat, tokens_of
from fineweb_shards.layouts.sidecar import DocumentIndex, Sidecar
from fineweb_shards.output import manifest_checks as checks
from fineweb_shards.output.store import Store
from fineweb_shards.stream.mix import ALL_EXHAUSTED, MixRule
from fineweb_shards.stream.packer import PackedTotals
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.stream.split import SplitRule, make_split_rule
from fineweb_shards.system.durable import is_lock_name, output_error
from fineweb_shards.system.json_values import expect, get, make, parse_object
from fineweb_shards.system.own_files import WORK_FOLDER, read_file
from fineweb_shards.tokenizers.vocabulary_files import FILE_NAMES
from fineweb_shards.types import Counts, Cursor, Cursors, Quarantined, ShardRecord, Taken
from fineweb_shards.units import show_number_of
from fineweb_shards.vocabulary import GPT2, Vocabulary

FILE_NAME = "manifest.json"
MOST_BYTES = 256 * 2**20  # FineWeb-Edu's, for 2,410 files, ends at 7.5 MB; a million files fit
FORMAT_VERSION = 4
_MIX_FORMAT = 5  # with weights or epochs: an older program would continue with another stream
_SHUFFLE_FORMAT = 6  # with piles: an older program would not know where to continue
# Formats that can be read; a folder that was begun with an older one is saved in the newest.
_READABLE_FORMATS = (2, 3, FORMAT_VERSION, _MIX_FORMAT, _SHUFFLE_FORMAT)
_RENAMED_SINCE_2 = {"inside": "starts_mid_document", "wrong_claims": "token_count_mismatches"}
_FIELDS = (
    "checksum", "vocabulary", "settings", "commit", "versions", "totals", "effort", "quarantined", "shards",
    "files", "complete",
)  # fmt: skip
# The settings of one part of the input: where it comes from and how it is read.
PART_SETTINGS = (
    "format", "dataset", "name", "split", "revision", "text_column", "tokens_column", "template", "where",
    "sample", "sample_seed", "separator", "min_tokens", "max_document_tokens", "weight", "epochs",
)  # fmt: skip
_MOST_IDS = 2**31  # the most that a layout's tokens can hold
# These fields identify a vocabulary's file. They are saved only if they differ from GPT-2's.
GPT2_FIELDS = {"pattern": GPT2.pattern, "reference": GPT2.reference}


@dataclass(frozen=True)
class InputPart:
    """A part of the input: its files, and how they are read."""

    settings: dict[str, Any]  # those of PART_SETTINGS
    files: list[dict[str, Any]]
    commit: str | None = None  # of a dataset on the hub: a resume uses the same one

    @property
    def epochs(self) -> int:
        return self.settings.get("epochs") or 1

    @property
    def file_count(self) -> int:
        """The number of files read, counting each epoch."""
        return sum(1 if file.get("for_validation") else self.epochs for file in self.files)

    @property
    def label(self) -> str:
        if self.settings.get("dataset"):
            return f"{self.settings['dataset']} {self.settings.get('name') or ''}".strip()
        if self.settings.get("folder"):  # of finished shards
            return str(self.settings["folder"])
        return str(self.files[0]["name"]) if len(self.files) == 1 else show_number_of(len(self.files), "file")


@dataclass(frozen=True)
class Manifest:
    """The state of an output folder. Immutable: a change makes a new manifest, which is then saved."""

    settings: dict[str, Any]  # those that affect the output, without those of the parts
    parts: tuple[InputPart, ...]  # of the input
    versions: dict[str, str]  # of the packages that made the shards
    shards: tuple[ShardRecord, ...] = ()
    complete: bool = False
    totals: dict[str, Any] = field(default_factory=dict)
    quarantined: tuple[Quarantined, ...] = ()  # documents left out; a resume must leave them out, too
    seconds: float = 0.0  # of work on these shards, over all runs
    peak_memory_bytes: int = 0
    digits: int = 0  # of the numbers in file names: see layouts/base.py
    vocabulary: Vocabulary = GPT2  # without the bytes of its tokens
    index: bool = False  # files have the sidecar of --index, too
    piles: PileState | None = None  # the progress of a shuffle's first pass, which writes piles

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def shard_count(self) -> int:
        """The number of token files. A file that grows over several checkpoints has several records."""
        return len({record.name for record in self.shards})

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def counts(self) -> Counts:
        return sum((shard.counts for shard in self.shards), self.piles.counts if self.piles else Counts())

    @property
    def is_shuffled(self) -> bool:
        return self.settings.get("shuffle") is not None

    @property
    def pass_number(self) -> int:
        """The current or last pass of a shuffle, 1 or 2; 0 without a shuffle."""
        if not self.is_shuffled:
            return 0
        return 2 if self.piles and self.piles.ended else 1

    @property
    def piled_tokens(self) -> int:
        return sum(self.piles.tokens) if self.piles else 0

    @property
    def files(self) -> list[dict[str, Any]]:
        return [file for part in self.parts for file in part.files]

    @property
    def layout(self) -> Layout:
        return get_layout(self.settings["layout"])

    @property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """The sidecars that each file of a complete folder has."""
        return (*self.layout.sidecars, DocumentIndex()) if self.index else self.layout.sidecars

    @property
    def shard_format(self) -> ShardFormat:
        return ShardFormat(self.layout, self.vocabulary)

    @property
    def split_rule(self) -> SplitRule:
        default = self.layout.default_split_rule(self.settings["shard_tokens"])
        val_files = tuple(sum(file.get("for_validation", False) for file in part.files) for part in self.parts)
        if self.is_shuffled:  # their documents are in the first pile
            val_files = (int(any(val_files)),)
        return make_split_rule(self.settings, val_files, default)

    @property
    def numbering(self) -> Numbering:
        return Numbering(self.layout, self.settings["shard_tokens"], self.split_rule, self.digits)

    @property
    def done(self) -> PackedTotals:
        """The finished totals of each split, for the packer."""
        return PackedTotals(tokens_of(self.shards, "val"), tokens_of(self.shards, "train"), self.documents)

    @property
    def end(self) -> Cursors:
        """The place in the stream where the next shard begins; in a shuffle, a place in the piles."""
        if self.shards:
            return self.shards[-1].end
        return (Cursor(0, 0),) * (1 if self.is_shuffled else len(self.parts))

    @property
    def input_end(self) -> Cursors:
        """The place in the input where a resume starts reading."""
        if not self.is_shuffled:
            return self.end
        return self.piles.end if self.piles else (Cursor(0, 0),) * len(self.parts)

    @property
    def mix(self) -> MixRule | None:
        """How the parts are mixed; None: they follow one another."""
        weights = [part.settings.get("weight") for part in self.parts]
        if None in weights or "exported_from" in self.settings:
            return None
        return MixRule(tuple(filter(None, weights)), until_all=self.settings.get("mix_until") == ALL_EXHAUSTED)

    @property
    def taken(self) -> tuple[Taken, ...]:
        """How much a mix has taken of each part where the next shard begins; empty without a mix."""
        if self.shards:
            return self.shards[-1].taken
        return tuple(Taken() for _ in self.parts) if self.mix and not self.is_shuffled else ()

    @property
    def mixed(self) -> tuple[tuple[Taken, ...], Cursors]:
        """How much a mix has taken of each part of the input, and where it stopped."""
        return self.piles.taken if self.piles else self.taken, self.input_end

    @property
    def format(self) -> int:
        if self.is_shuffled:
            return _SHUFFLE_FORMAT
        return _MIX_FORMAT if self.mix or any(part.epochs > 1 for part in self.parts) else FORMAT_VERSION

    def append(self, *records: ShardRecord) -> Manifest:
        """Return a manifest with the records of one more checkpoint, which share an end."""
        return replace(self, shards=(*self.shards, *records))


def divide_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    common = {name: value for name, value in settings.items() if name not in PART_SETTINGS}
    return common, {name: settings[name] for name in PART_SETTINGS if name in settings}


def canonical_json(value: Any) -> bytes:
    """Return the JSON of a value that the checksum covers."""
    return json.dumps(value, sort_keys=True).encode()


# Reading


def load_manifest(folder: Path, location: str = "") -> Manifest | None:
    """Load the folder's manifest; None if there is none. `location` is the user's name for the folder, if it only has
    copies of another one's files. Raises DamageError if it is damaged, OutputError if it is another program's."""
    path = folder / FILE_NAME
    try:
        data = read_file(path, MOST_BYTES, follow_links=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise output_error(path, error) from error
    return parse_manifest(data, folder, location)


def find_manifest(store: Store) -> Manifest | None:
    """Load the manifest in the store's folder, which may be a copy; None if there is none."""
    return load_manifest(store.folder, store.location)


def is_ours(folder: Path, data: bytes) -> bool:
    """Return whether a `manifest.json` was made by this program, even if it is damaged. Web applications, for example,
    have files of that name. Ours has most of our fields, or is beside a work folder that a run has used."""
    try:
        return has_our_fields(data) or any(not is_lock_name(path.name) for path in (folder / WORK_FOLDER).iterdir())
    except OSError:
        return False


def has_our_fields(data: bytes) -> bool:
    """Return whether the content of a `manifest.json`, or its beginning, has most of our fields."""
    return sum(f'"{name}"'.encode() in data for name in _FIELDS) > len(_FIELDS) // 2


def parse_manifest(data: bytes, folder: Path, location: str = "") -> Manifest:
    """Parse the content of a folder's `manifest.json`. Raises the same errors as `load_manifest`."""
    path = f"{location}/{FILE_NAME}" if location else str(folder / FILE_NAME)
    if not is_ours(folder, data):
        raise OutputError(
            f"{path}: this is not a manifest of fineweb-shards, but a file of another program.",
            "For a build, choose another --out. Nothing here was touched, and --fresh would not change that.",
        )
    try:
        return _manifest_from_json(path, folder, parse_object(data))
    except ValueError as error:
        raise DamageError(
            f"{path}: the manifest is damaged: {error}.",
            "Restore it from a copy, or choose another --out. Nothing here was touched, because only the "
            "manifest lists the files that --fresh may delete.",
        ) from error


def _manifest_from_json(path: str, folder: Path, data: dict[str, Any]) -> Manifest:
    """Convert parsed JSON; ValueError if it is damaged, ChangedError if the format is unknown."""
    found = get(data, "format", int)
    if found not in _READABLE_FORMATS:
        *older, newest = map(str, _READABLE_FORMATS)
        raise ChangedError(
            f"{path}: format {found}; this version of fineweb-shards reads {', '.join(older)} and {newest}.",
            "Use the version that made it, or another --out.",
        )
    recorded = data.pop("checksum", None)  # early manifests have none
    if recorded is not None and recorded != hashlib.sha256(canonical_json(data)).hexdigest():
        raise ValueError("its checksum does not match; it was changed after it was written")
    if found == 2:
        data = _with_new_names(data)
    if found < 4:
        data = _with_one_part(data)
    effort = expect("effort", data.get("effort", {}), dict)
    quarantined = expect("quarantined", data.get("quarantined", []), list)
    manifest = Manifest(
        settings=get(data, "settings", dict),
        parts=tuple(_part_from_json(expect("a part", one, dict)) for one in get(data, "parts", list)),
        versions=get(data, "versions", dict),
        shards=tuple(make(ShardRecord, record) for record in get(data, "shards", list)),
        complete=get(data, "complete", bool),
        totals=get(data, "totals", dict),
        quarantined=tuple(make(Quarantined, one) for one in quarantined),
        seconds=expect("seconds", effort.get("seconds", 0), float),
        peak_memory_bytes=expect("peak_memory_bytes", effort.get("peak_memory_bytes", 0), int),
        digits=expect("digits", data.get("digits", 0), int),
        vocabulary=_vocabulary_from_json(data, folder / WORK_FOLDER),
        index=expect("index", data.get("index", False), bool),
        piles=make(PileState, data["piles"]) if data.get("piles") is not None else None,
    )
    _check(manifest)
    wanted = manifest.shard_format.dtype.name
    if "vocabulary" in data and (dtype := get(data["vocabulary"], "dtype", str)) != wanted:
        raise ValueError(f"its tokens are {dtype!r:.40}, but should be {wanted}")
    return manifest


def _part_from_json(data: dict[str, Any]) -> InputPart:
    commit = data.get("commit")
    commit = None if commit is None else expect("commit", commit, str)
    return InputPart(get(data, "settings", dict), get(data, "files", list), commit)


def _vocabulary_from_json(manifest: dict[str, Any], work_folder: Path) -> Vocabulary:
    """Return the vocabulary of a `manifest.json`, whose file is in `work_folder`. An early manifest names only a
    tokenizer, which is GPT-2."""
    if manifest.get("tokenizer") == GPT2.name:
        return GPT2
    data = get(manifest, "vocabulary", dict)
    size, eot = get(data, "size", int), get(data, "eot", int)
    if not 0 <= eot < size <= _MOST_IDS:
        raise ValueError(f"a vocabulary of {size:,} ids can't have the EOT {eot}")
    pattern, reference = (get(GPT2_FIELDS | data, name, str) for name in GPT2_FIELDS)
    if reference not in FILE_NAMES:
        raise ValueError(f"no tokenizer here is called {reference!r:.40}")
    name, sha256 = get(data, "name", str), get(data, "sha256", str)
    found = Vocabulary(name, sha256, size, eot, pattern, reference, folder=str(work_folder))
    return GPT2 if found == GPT2 else found


def _check(manifest: Manifest) -> None:
    checks.check_settings(manifest.settings, [part.settings for part in manifest.parts])
    checks.check_files([part.files for part in manifest.parts])
    for name, version in manifest.versions.items():
        expect(f"the version of {name}", version, str)
    try:
        numbering, shard_format = manifest.numbering, manifest.shard_format
    except UsageError as error:
        raise ValueError(error.message) from None
    checks.check_records(manifest.shards, numbering, shard_format)
    lengths = [part.file_count for part in manifest.parts]
    mixed = len(lengths) if manifest.mix else 0
    if manifest.piles is not None:
        checks.check_piles(manifest.piles, lengths, mixed)
    ends, taken = ([getattr(record, name) for record in manifest.shards] for name in ("end", "taken"))
    piles = len(manifest.piles.tokens) if manifest.piles else 0
    checks.check_cursors(ends, [piles] if manifest.is_shuffled else lengths)
    checks.check_taken(taken, 0 if manifest.is_shuffled else mixed)
    checks.check_quarantined(manifest.quarantined, lengths)
    if min(manifest.seconds, manifest.peak_memory_bytes, manifest.digits) < 0 or manifest.digits > 18:
        raise ValueError("seconds, peak_memory_bytes or digits is out of range")
    if manifest.complete:
        sums = {"shards": manifest.shard_count, "tokens": manifest.tokens, "documents": manifest.documents}
        checks.check_totals(manifest.totals, sums)


def _with_new_names(value: Any) -> Any:
    """Return a manifest of format 2 with its fields renamed for format 3."""
    if isinstance(value, list):
        return [_with_new_names(one) for one in value]
    if isinstance(value, dict):
        return {_RENAMED_SINCE_2.get(name, name): _with_new_names(one) for name, one in value.items()}
    return value


def _with_one_part(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a manifest of format 3, which had no parts, to format 4."""
    common, own = divide_settings(get(data, "settings", dict))
    part = {"settings": own, "files": get(data, "files", list), "commit": data.get("commit")}
    records = [expect("ShardRecord", record, dict) for record in get(data, "shards", list)]
    shards = [{**record, "end": [get(record, "end", dict)]} for record in records]
    return {**data, "settings": common, "parts": [part], "shards": shards}
