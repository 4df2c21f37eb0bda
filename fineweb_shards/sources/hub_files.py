"""Turn the files of a dataset, as the hub lists them or as a manifest records them, into input files.

A commit never changes: a resume takes the files from the manifest and does not ask the hub. Whether each is still the
one that was listed is checked when it is read, by its hash. The hub's clients are not needed here.
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
    """A file of a dataset. What is in it follows from its name."""

    name: str  # its path in the dataset
    size_bytes: int
    content_hash: str  # empty: it stands for all rows of a dataset that only `datasets` can read
    for_validation: bool = False  # named by --val-input


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a config and split, at one commit of a dataset."""

    dataset: str
    commit: str
    files: tuple[ListedFile, ...]

    @classmethod
    def from_manifest(cls, dataset: str, commit: str, files: Iterable[dict[str, Any]]) -> Self:
        """Return the listing that a manifest's files were made from."""
        listed = (
            ListedFile(one["name"], one["size_bytes"], one["content_hash"], one.get("for_validation", False))
            for one in files
        )
        return cls(dataset, commit, tuple(listed))

    def with_validation(self, patterns: Sequence[str]) -> Listing:
        """Return the listing with the files for validation first: those whose path in the dataset, or whose name,
        matches one of the patterns of --val-input."""
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
                    f"With --dataset it names files of the dataset, by name or pattern; it has "
                    f"{show_number_of(len(self.files), 'file')}, from {paths[0][0]} to {paths[-1][0]}.",
                )
            chosen |= matching
        marked = [replace(file, for_validation=file.name in chosen) for file in self.files]
        return replace(self, files=tuple(sorted(marked, key=lambda file: not file.for_validation)))

    def input_files(self, folder: Path, *, download: bool, format_name: str = "") -> tuple[InputFile, ...]:
        """Return the files to read: by ranges or, with `download` and where ranges can't be read by themselves, once
        they are in `folder`. `format_name` is the setting for files that were named by their paths."""
        found = []
        for index, file in enumerate(self.files):
            path, place = f"hf://datasets/{self.dataset}@{self.commit}/{file.name}", HUB
            kind, compression = split_suffixes(file.name)
            if format_name:
                kind = (kind or TEXT) if format_name == "auto" else format_name
                if compression and not FORMATS[kind].is_text:
                    raise InputError(f"{path}: compressed {kind} can't be read.", "Unpack it first.")
            # What the hub keeps in git comes without a CDN: each request for a part of it would be counted.
            is_small = is_git_hash(file.content_hash)
            if not file.content_hash:
                kind = ROWS
            elif download or compression or is_small or kind is None or not FORMATS[kind].by_ranges:
                parts = PurePosixPath(file.name).parts
                if file.name.startswith("/") or ".." in parts or not parts:  # a manifest may be tampered with
                    raise HubError(f"dataset {self.dataset}: {file.name!r} is no name of a file in a dataset.")
                path, place = str(folder / file.name), HUB_ON_DISK
            if kind is None:
                raise HubError(f"dataset {self.dataset}: {file.name}: the ending of this file is unknown.")
            found.append(InputFile(
                index, path, file.name, kind, compression, file.size_bytes, 0, file.content_hash,
                for_validation=file.for_validation, place=place,
            ))  # fmt: skip
        return tuple(found)


# Addresses: `hf://datasets/ORG/NAME@REVISION/folder/*.parquet`. Such an input is a dataset like that of --dataset, only
# that a path or pattern says which of its files are read, instead of a config and split. So it is recorded, pinned,
# fetched and resumed in the same way.

_HUB_SCHEME = "hf://"
# A revision with a slash is one of the hub's own, or has %2F for it: as in huggingface_hub's HfFileSystem.
_HUB_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")
_HUB_EXAMPLE = "An address is like hf://datasets/ORG/NAME/folder/*.parquet, with @REVISION after NAME if need be."


def parse_hub_address(text: str) -> tuple[str, str, str] | None:
    """Return dataset, revision and path or pattern, each but the first may be empty; None for any other text."""
    found = _HUB_ADDRESS.fullmatch(text)
    return (found[1], unquote(found[2] or ""), (found[3] or "").strip("/")) if found else None


def refuse_hub_address(text: str) -> None:
    """Raise UsageError for an address of the hub that can't be read where it is given."""
    if not text.lower().startswith(_HUB_SCHEME):
        return
    if text.startswith("hf://buckets/"):
        raise UsageError(
            f"{text}: buckets of the hub are read by their S3 gateway.",
            "As s3://BUCKET/folder, with AWS_ENDPOINT_URL=https://s3.hf.co/NAMESPACE, AWS_REGION=us-east-1 and the "
            "keys that the page of access tokens makes (docs/input.md, Buckets).",
        )
    if parse_hub_address(text) is None:
        raise UsageError(f"{text}: of the hub only files of datasets are read.", _HUB_EXAMPLE)
    raise UsageError(
        f"{text}: files of a dataset are the only --input of their part, without --name, --split and --revision.",
        "Name each input by --part input=…, a revision by hf://datasets/ORG/NAME@REVISION/…, and files for validation "
        "by --val-input and their path in the dataset.",
    )
