"""Turn the files of a dataset, as the hub lists them or as a manifest records them, into input files.

A commit never changes: a resume takes the files from the manifest and does not ask the hub. Whether each is
still the one that was listed is checked when it is read, by its hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from fineweb_shards.errors import HubError
from fineweb_shards.sources.base import InputFile
from fineweb_shards.sources.files import split_suffixes
from fineweb_shards.sources.formats import FORMATS

DOWNLOAD_FOLDER = "downloads"  # in the work folder


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a dataset. What is in it follows from its name."""

    name: str  # its path in the dataset
    size_bytes: int
    content_hash: str  # empty: it stands for all rows of a dataset that only `datasets` can read


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a config and split, at one commit of a dataset."""

    dataset: str
    commit: str
    files: tuple[ListedFile, ...]

    @classmethod
    def from_manifest(cls, dataset: str, commit: str, files: Iterable[dict[str, Any]]) -> Self:
        """Return the listing that a manifest's files were made from."""
        listed = (ListedFile(file["name"], file["size_bytes"], file["content_hash"]) for file in files)
        return cls(dataset, commit, tuple(listed))

    def input_files(self, folder: Path, *, download: bool) -> tuple[InputFile, ...]:
        """Return the files to read: by ranges or, with `download` and where ranges can't be read by
        themselves, once they are in `folder`."""
        return tuple(self._input_file(index, file, folder, download) for index, file in enumerate(self.files))

    def _input_file(self, index: int, file: ListedFile, folder: Path, download: bool) -> InputFile:
        path = f"hf://datasets/{self.dataset}@{self.commit}/{file.name}"
        kind, compression = split_suffixes(file.name)
        if not file.content_hash:
            form = "hub-rows"
        elif download or compression or f"hub-{kind}" not in FORMATS:
            path, form = str(folder / self._safe_name(file)), f"download-{kind}"
        else:
            form = f"hub-{kind}"
        return InputFile(index, path, file.name, form, compression, file.size_bytes, 0, file.content_hash)

    def _safe_name(self, file: ListedFile) -> str:
        """Return a file's name if it stays inside a folder; a manifest may have been tampered with."""
        parts = PurePosixPath(file.name).parts
        if file.name.startswith("/") or ".." in parts or not parts:
            raise HubError(f"dataset {self.dataset}: {file.name!r} is no name of a file in a dataset.")
        return file.name
