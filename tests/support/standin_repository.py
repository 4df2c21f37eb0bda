"""The dataset repositories that the stand-in hub serves: files, commits and who may read them."""

from __future__ import annotations

import functools
import hashlib
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

FINEWEB_EDU_COMMIT = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
LARGE_FILE_SUFFIXES = (".parquet", ".gz", ".zst", ".npy", ".bin", ".idx")  # what .gitattributes sends to LFS
LARGEST_GIT_FILE_BYTES = 2**20
Content = bytes | Path


@functools.lru_cache(maxsize=4096)
def _hash(content: Content, modified_ns: int = 0) -> str:
    """Hash a content once; the modification time is only there to notice a changed file."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class HubFile:
    """One file of a repository, in memory or on disk; a file on disk is never loaded whole."""

    path: str
    content: Content

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def sha256(self) -> str:
        if isinstance(self.content, bytes):
            return _hash(self.content)
        return _hash(self.content, self.content.stat().st_mtime_ns)

    @property
    def is_large(self) -> bool:
        """Whether it is in the large store, from which a CDN sends it: by its name, or because git would not take it
        (the real hub draws the line at 10 MB)."""
        return self.path.endswith(LARGE_FILE_SUFFIXES) or self.size > LARGEST_GIT_FILE_BYTES

    @property
    def git_hash(self) -> str:
        """What git calls a small file."""
        data = self.read(0, self.size)
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def etag(self) -> str:
        """SHA-256 of a large file, git's hash of a small one."""
        return self.sha256 if self.is_large else self.git_hash

    def describe(self) -> dict[str, Any]:
        """Return the entry that `tree` and `paths-info` show for this file."""
        oid = self.sha256[:40] if self.is_large else self.git_hash
        entry = {"type": "file", "path": self.path, "size": self.size, "oid": oid}
        large = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
        return {**entry, "lfs": large} if self.is_large else entry

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from start to stop."""
        if isinstance(self.content, bytes):
            return self.content[start:stop]
        with self.content.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def send(self, connection: socket.socket, start: int, stop: int) -> None:
        """Send the bytes from start to stop; the kernel copies those of a file, not this process."""
        if isinstance(self.content, bytes):
            connection.sendall(memoryview(self.content)[start:stop])
            return
        with self.content.open("rb") as file:
            connection.sendfile(file, start, stop - start)


def fineweb_edu_card(paths: Iterable[str]) -> bytes:
    """Write a README.md with FineWeb-Edu's `configs:`, as far as there are files for them.

    `default` comes first as in the original, because `datasets` also lists the files of the first config when it is
    asked for another one: every real start lists data/.
    """
    folders = sorted({str(PurePosixPath(path).parent) for path in paths})
    dumps = {folder[5:]: folder for folder in folders if folder.startswith("data/")}
    samples = {folder.replace("/", "-"): folder for folder in folders if folder[:7] == "sample/"}
    default = {"default": "data/*"} if dumps else {}
    configs = [
        f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {folder}/*\n"
        for name, folder in {**default, **samples, **dumps}.items()
    ]
    return f"---\nlicense: odc-by\nconfigs:\n{''.join(configs)}---\n# FineWeb-Edu\n".encode()


def many_files(contents: Sequence[Content], files: int = 2410, dumps: int = 110) -> dict[str, Content]:
    """Return FineWeb-Edu's `default`, data/CC-MAIN-*/*.parquet, with a few contents that all files share."""
    folders = [f"data/CC-MAIN-{2013 + number // 10}-{10 + 4 * (number % 10)}" for number in range(dumps)]
    names = []
    for number, folder in enumerate(folders):
        count = files // dumps + (number < files % dumps)
        names += [f"{folder}/train-{part:05d}-of-{count:05d}.parquet" for part in range(count)]
    return {name: contents[number % len(contents)] for number, name in enumerate(names)}


class Repository:
    """A dataset repository: an access rule, and commits of which the last one is `main`.

    Without a README.md it gets FineWeb-Edu's card. `token` opens a private or gated repository.
    """

    def __init__(
        self,
        repo_id: str,
        files: Mapping[str, Content],
        *,
        commit: str = FINEWEB_EDU_COMMIT,
        access: Literal["public", "private", "gated"] = "public",
        token: str | None = None,
    ) -> None:
        self.repo_id = repo_id
        self.access = access
        self.token = token
        self.head = commit
        contents = {"README.md": fineweb_edu_card(files), **files}
        self.commits = {commit: {path: HubFile(path, contents[path]) for path in contents}}

    def replace_file(self, path: str, content: Content, *, new_commit: bool = True) -> str:
        """Replace or add a file and return the commit that has it.

        A new commit is a push: the older commits stay as they are. Without one the bytes change under a pinned commit,
        which the hub promises not to do and a reader must notice.
        """
        files = {**self.commits[self.head], path: HubFile(path, content)}
        if new_commit:
            self.head = hashlib.sha1(f"{self.head} {path}".encode()).hexdigest()
        self.commits[self.head] = files
        return self.head

    def list_tree(self, commit: str, folder: str, *, recursive: bool) -> list[str]:
        """Return the files and folders below a folder, sorted; as in git there is no empty folder."""
        prefix = f"{folder}/" if folder else ""
        names = {path for path in self.commits[commit] if path.startswith(prefix)}
        folders = {path.rpartition("/")[0] for path in names}
        for name in folders:
            names.update(parent for parent in _with_parents(name) if parent.startswith(prefix))
        return sorted(name for name in names if recursive or "/" not in name[len(prefix) :])

    def describe(self, commit: str, name: str) -> dict[str, Any]:
        """Return the entry of a file or a folder."""
        file = self.commits[commit].get(name)
        if file is not None:
            return file.describe()
        return {"type": "directory", "path": name, "size": 0, "oid": _hash(name.encode())[:40]}


def _with_parents(folder: str) -> Iterator[str]:
    while folder:
        yield folder
        folder = folder.rpartition("/")[0]
