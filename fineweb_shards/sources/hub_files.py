"""Turn the files of a dataset, from the hub's listing or a manifest, into input files.

A commit never changes, so a resume takes the files from the manifest without asking the hub. Reading a file checks its
hash. This module doesn't import the hub's clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import unquote

from fineweb_shards.errors import HubError, InputError, UsageError
from fineweb_shards.formats.registry import FORMATS, ROWS, TEXT, split_suffixes
from fineweb_shards.storage.hub_environment import is_git_hash
from fineweb_shards.storage.place import HUB, HUB_ON_DISK, InputFile
from fineweb_shards.units import show_number_of

DOWNLOAD_FOLDER = "downloads"  # in the work folder


@dataclass(frozen=True, slots=True)
class ListedFile:
    name: str  # its path in the dataset
    size_bytes: int
    content_hash: str  # empty for an entry that stands for all rows of a dataset that only `datasets` can read
    for_validation: bool = False  # named by --val-input


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a config and split, at one commit of a dataset."""

    dataset: str
    commit: str
    files: tuple[ListedFile, ...]

    @classmethod
    def from_manifest(cls, dataset: str, commit: str, files: Iterable[dict[str, Any]]) -> Self:
        listed = (
            ListedFile(one["name"], one["size_bytes"], one["content_hash"], one.get("for_validation", False))
            for one in files
        )
        return cls(dataset, commit, tuple(listed))

    def with_validation(self, patterns: Sequence[str]) -> Listing:
        """Return the listing with the files for validation first: those whose path or name matches a --val-input."""
        chosen: set[str] = set()
        for pattern in patterns:
            if not all(file.content_hash for file in self.files):
                raise InputError(
                    f"--val-input {pattern}: dataset {self.dataset} is read row by row, not by its files.",
                    "Choose validation by --val-documents or --val-ratio.",
                )
            paths = [(file.name, PurePosixPath(file.name).name) for file in self.files]
            matching = {path for path, name in paths if fnmatchcase(path, pattern) or fnmatchcase(name, pattern)}
            if not matching:
                raise InputError(
                    f"--val-input {pattern}: no file of dataset {self.dataset} has this name.",
                    f"With --dataset it names files of the dataset, by name or pattern; there are "
                    f"{show_number_of(len(self.files), 'file')}, from {paths[0][0]} to {paths[-1][0]}.",
                )
            chosen |= matching
        marked = [replace(file, for_validation=file.name in chosen) for file in self.files]
        return replace(self, files=tuple(sorted(marked, key=lambda file: not file.for_validation)))

    def input_files(self, folder: Path, *, download: bool, format_name: str = "") -> tuple[InputFile, ...]:
        """Return the files to read: by ranges or, with `download` and for formats that can't be read by ranges, as
        downloads in `folder`. `format_name` is the setting for files named by their paths."""
        found = []
        for index, file in enumerate(self.files):
            path, place = f"hf://datasets/{self.dataset}@{self.commit}/{file.name}", HUB
            kind, compression = split_suffixes(file.name)
            if format_name:
                kind = (kind or TEXT) if format_name == "auto" else format_name
                if compression and not FORMATS[kind].is_text:
                    raise InputError(f"{path}: compressed {kind} can't be read.", "Unpack it first.")
            # Without a CDN, each range would count towards the hub's rate limit.
            is_small = is_git_hash(file.content_hash)
            if not file.content_hash:
                kind = ROWS
            elif download or compression or is_small or kind is None or not FORMATS[kind].by_ranges:
                parts = PurePosixPath(file.name).parts
                if file.name.startswith("/") or ".." in parts or not parts:  # a manifest may be tampered with
                    raise HubError(f"dataset {self.dataset}: {file.name!r} is not a valid name in a dataset.")
                path, place = str(folder / file.name), HUB_ON_DISK
            if kind is None:
                raise HubError(f"dataset {self.dataset}: {file.name}: unknown file extension.")
            found.append(InputFile(
                index, path, file.name, kind, compression, file.size_bytes, 0, file.content_hash,
                for_validation=file.for_validation, place=place,
            ))  # fmt: skip
        return tuple(found)


# Addresses: `hf://datasets/ORG/NAME@REVISION/folder/*.parquet`. A path or pattern selects the files, instead of a
# config and split; otherwise such an input is recorded, pinned, fetched and resumed like that of --dataset.

_HUB_SCHEME = "hf://"
# As in huggingface_hub's HfFileSystem, only the hub's own revisions have a plain slash; in others it is %2F.
_HUB_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")
_HUB_EXAMPLE = "An address is like hf://datasets/ORG/NAME/folder/*.parquet, with @REVISION after NAME if need be."


def parse_hub_address(text: str) -> tuple[str, str, str] | None:
    """Return dataset, revision, and path or pattern (the last two may be empty); None for any other text."""
    found = _HUB_ADDRESS.fullmatch(text)
    return (found[1], unquote(found[2] or ""), (found[3] or "").strip("/")) if found else None


def refuse_hub_address(text: str) -> None:
    """Raise UsageError for an address of the hub that is not allowed here."""
    if not text.lower().startswith(_HUB_SCHEME):
        return
    if text.startswith("hf://buckets/"):
        raise UsageError(
            f"{text}: the hub's buckets must be read through their S3 gateway.",
            "Use s3://BUCKET/folder, with AWS_ENDPOINT_URL=https://s3.hf.co/NAMESPACE, AWS_REGION=us-east-1 and keys "
            "from the hub's page of access tokens (docs/input.md, Buckets).",
        )
    if parse_hub_address(text) is None:
        raise UsageError(f"{text}: on the hub only files of datasets can be read.", _HUB_EXAMPLE)
    raise UsageError(
        f"{text}: files of a dataset must be the only --input of their part, without --name, --split and --revision.",
        "Name each input by --part input=…, a revision by hf://datasets/ORG/NAME@REVISION/…, and files for validation "
        "by --val-input and their path in the dataset.",
    )
