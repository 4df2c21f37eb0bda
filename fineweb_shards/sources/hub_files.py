"""Turn the files of a dataset, as the hub lists them or as a manifest records them, into input files.

A commit never changes: a resume takes the files from the manifest and does not ask the hub. Whether each is
still the one that was listed is checked when it is read, by its hash. The hub's clients are not needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Self

from fineweb_shards.errors import HubError, InputError
from fineweb_shards.formats.registry import FORMATS, ROWS, split_suffixes
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

    @property
    def is_small(self) -> bool:
        """Whether the hub keeps it in git, without a CDN: each request for a part of it would be counted."""
        return is_git_hash(self.content_hash)


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
            ListedFile(
                file["name"], file["size_bytes"], file["content_hash"], file.get("for_validation", False)
            )
            for file in files
        )
        return cls(dataset, commit, tuple(listed))

    def with_validation(self, patterns: Sequence[str]) -> Listing:
        """Return the listing with the files for validation first: those whose path in the dataset, or whose
        name, matches one of the patterns of --val-input."""
        for pattern in patterns:
            self._check_matches(pattern)
        marked = [
            replace(file, for_validation=any(_matches(file.name, pattern) for pattern in patterns))
            for file in self.files
        ]
        return replace(self, files=tuple(sorted(marked, key=lambda file: not file.for_validation)))

    def _check_matches(self, pattern: str) -> None:
        if not all(file.content_hash for file in self.files):
            raise InputError(
                f"--val-input {pattern}: dataset {self.dataset} is read row by row, not by its files.",
                "Choose validation by --val-documents or --val-ratio.",
            )
        if not any(_matches(file.name, pattern) for file in self.files):
            first, last = self.files[0].name, self.files[-1].name
            raise InputError(
                f"--val-input {pattern}: no file of dataset {self.dataset} has this name.",
                f"With --dataset it names files of the dataset, by name or pattern; it has "
                f"{show_number_of(len(self.files), 'file')}, from {first} to {last}.",
            )

    def input_files(self, folder: Path, *, download: bool) -> tuple[InputFile, ...]:
        """Return the files to read: by ranges or, with `download` and where ranges can't be read by
        themselves, once they are in `folder`."""
        return tuple(self._input_file(index, file, folder, download) for index, file in enumerate(self.files))

    def _input_file(self, index: int, file: ListedFile, folder: Path, download: bool) -> InputFile:
        path, place = f"hf://datasets/{self.dataset}@{self.commit}/{file.name}", HUB
        name, compression = split_suffixes(file.name)
        if not file.content_hash:
            name = ROWS
        elif download or compression or file.is_small or name is None or not FORMATS[name].by_ranges:
            path, place = str(folder / self._safe_name(file)), HUB_ON_DISK
        if name is None:
            raise HubError(f"dataset {self.dataset}: {file.name}: the ending of this file is unknown.")
        return InputFile(
            index, path, file.name, name, compression, file.size_bytes, 0, file.content_hash,
            for_validation=file.for_validation, place=place,
        )  # fmt: skip

    def _safe_name(self, file: ListedFile) -> str:
        """Return a file's name if it stays inside a folder; a manifest may have been tampered with."""
        parts = PurePosixPath(file.name).parts
        if file.name.startswith("/") or ".." in parts or not parts:
            raise HubError(f"dataset {self.dataset}: {file.name!r} is no name of a file in a dataset.")
        return file.name


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(PurePosixPath(name).name, pattern)
