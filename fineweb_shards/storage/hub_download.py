"""Files of the hub that are read from the disk: downloaded a few ahead of use, and deleted after use.

A file comes in parts, several at once, and its hash is checked at the end. The parts are written in order,
so that what is on the disk is always the beginning of the file: a download that was interrupted continues
after it. Whatever a crash may have left there, the hash decides.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from fineweb_shards.errors import HubError
from fineweb_shards.events import Observer
from fineweb_shards.storage.byte_source import ByteSource
from fineweb_shards.storage.hub_environment import Digest, is_git_hash, make_digest
from fineweb_shards.storage.hub_errors import translated_errors
from fineweb_shards.storage.hub_fetching import HubPlace
from fineweb_shards.storage.hub_session import open_session
from fineweb_shards.storage.local import LocalPlace
from fineweb_shards.storage.place import HubRef, InputFile
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import lock_file, output_error
from fineweb_shards.system.own_files import is_plain_file, make_folder, open_own
from fineweb_shards.system.retry import Disk, Retrier, TransientError

PARTIAL_ENDING = ".part"
_SMALLEST_PART_BYTES, _LARGEST_PART_BYTES = 2**18, 2**22
_FEWEST_PARTS = 64  # of a large file, so that a download that is killed has something to continue with
_PARTS_AT_ONCE = 8


class HubOnDiskPlace(LocalPlace):
    """Files of the hub that are fetched whole, one after the other, in the order in which they are expected;
    then they are files on this machine."""

    def __init__(
        self, hub: HubRef | None = None, max_outage_seconds: int = 0, observer: Observer | None = None
    ) -> None:
        super().__init__(hub, max_outage_seconds, observer)
        self._remote = HubPlace(hub, max_outage_seconds, observer)
        self._begun: dict[str, Future[None]] = {}
        self._turn = threading.Lock()  # one at a time, so that the first is there soonest
        self._released: set[str] = set()

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        self._wait_for(file)
        return super().open(file)

    def stream(self, file: InputFile) -> BinaryIO:
        self._wait_for(file)
        return super().stream(file)

    def expect(self, files: Sequence[InputFile]) -> None:
        """Begin to fetch files, if that has not begun."""
        before: Future[None] | None = None
        for file in files:
            if file.path not in self._begun:
                self._begun[file.path] = in_background(partial(self._download, file, before))
            before = self._begun[file.path]

    def has(self, file: InputFile) -> bool:
        begun = self._begun.get(file.path)
        return begun is not None and begun.done() and begun.exception() is None

    def _wait_for(self, file: InputFile) -> None:
        """Wait until a file is on the disk, and raise what went wrong."""
        self.expect([file])
        self._begun[file.path].result()

    def _download(self, file: InputFile, before: Future[None] | None) -> None:
        if before is not None:
            before.exception()  # waits for its turn
        with self._turn:
            if file.path in self._released:  # the run has ended before it came to this file
                return
            disk = Disk(Path(file.path).parent, self.max_outage_seconds, self.retrier.observer)
            source = ByteSource(self._remote.find(file).fetch, file.size_bytes)
            download(file, source, disk, self.retrier)

    def release(self, files: Sequence[InputFile]) -> None:
        """Delete files that will not be read again, unless they are to be kept."""
        if self.hub is None or self.hub.keep_downloads:
            return
        for path in {file.path for file in files} - self._released:
            self._released.add(path)
            Path(path).unlink(missing_ok=True)
            Path(path + PARTIAL_ENDING).unlink(missing_ok=True)


def download(file: InputFile, source: ByteSource, disk: Disk, retrier: Retrier) -> None:
    """Bring a file to its path, unless it is there. A full disk is waited for."""
    path = Path(file.path)
    if is_plain_file(path) and path.stat().st_size == file.size_bytes:
        return
    retrier.call(partial(_download_once, file, source, disk))


def _download_once(file: InputFile, source: ByteSource, disk: Disk) -> None:
    path = Path(file.path)
    partial_path = path.with_name(path.name + PARTIAL_ENDING)
    digest = make_digest(file.content_hash, file.size_bytes)
    try:
        make_folder(partial_path.parent)
        with open_own(partial_path, "r+b", create=True, buffering=0) as output:
            lock_file(output)
            if is_plain_file(path):  # another process has just finished it
                return
            done = _digest_beginning(output, digest, file.size_bytes)
            part_bytes = _choose_part_bytes(file)
            for part in _parts(source, done, file.size_bytes, part_bytes):
                disk.attempt(partial(_write, output, part, done, partial_path))
                digest.update(part)
                done += len(part)
            if digest.hexdigest() != file.content_hash:
                output.truncate(0)
                raise TransientError(f"{file.name}: other content than the hub lists")
            os.fsync(output.fileno())
            os.replace(partial_path, path)
    except OSError as error:
        raise output_error(partial_path, error) from None


def _digest_beginning(output: BinaryIO, digest: Digest, size_bytes: int) -> int:
    """Add what is on the disk already to the digest; return its length."""
    output.truncate(min(output.seek(0, os.SEEK_END), size_bytes))
    output.seek(0)
    done = 0
    while data := output.read(_LARGEST_PART_BYTES):
        digest.update(data)
        done += len(data)
    return done


def _choose_part_bytes(file: InputFile) -> int:
    """Return the size of a part; a small file comes from the hub itself, which counts requests, in one."""
    if is_git_hash(file.content_hash):
        return max(1, file.size_bytes)
    return min(max(file.size_bytes // _FEWEST_PARTS, _SMALLEST_PART_BYTES), _LARGEST_PART_BYTES)


def _parts(source: ByteSource, start: int, stop: int, part_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `stop` in order, in parts that are fetched several at once."""
    for begin in range(start, stop, part_bytes):
        source.forget_before(begin)
        for ahead in range(begin, min(stop, begin + _PARTS_AT_ONCE * part_bytes), part_bytes):
            source.prefetch(ahead, min(ahead + part_bytes, stop))
        yield source.read_range(begin, min(begin + part_bytes, stop))


def _write(output: BinaryIO, data: memoryview, position: int, path: Path) -> None:
    """Write a part at its place; DiskFullError if there is no space. It can be repeated."""
    try:
        output.seek(position)
        while data:
            data = data[output.write(data) :]
    except OSError as error:
        raise output_error(path, error) from None


def fetch_model_file(
    repository: str, revision: str, names: Sequence[str], retrier: Retrier
) -> tuple[bytes, str]:
    """Return the first file that a model has of `names`, and the commit that it is from."""
    open_session(retrier)
    for name in names:

        def fetch(name: str = name) -> Path | None:
            with translated_errors(f"model {repository}"):
                try:
                    return Path(hf_hub_download(repository, name, revision=revision or None))
                except LocalEntryNotFoundError:  # an outage: a kind of EntryNotFoundError, too
                    raise
                except EntryNotFoundError:
                    return None

        path = retrier.call(fetch)
        if path is not None:
            commit = str(path).removesuffix(name).rstrip("/\\").replace("\\", "/").rpartition("/")[2]
            return path.read_bytes(), commit
    raise HubError(
        f"model {repository}: it has no tokenizer that is known here.",
        f"Looked for: {', '.join(names)}. Download another file of it, and name that with --tokenizer.",
    )
