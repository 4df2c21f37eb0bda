"""Download one file from the hub: in parts, several at once, onto the disk, and check its hash at the end.

The parts are written in order, so that what is on the disk is always the beginning of the file: a download
that was interrupted goes on behind it. Whatever a crash may have left there, the hash decides.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fineweb_shards.sources.base import InputFile
from fineweb_shards.sources.hub.content_hash import Digest, is_git_hash, make_digest
from fineweb_shards.sources.hub.remote_file import RemoteFile
from fineweb_shards.system.background import in_background
from fineweb_shards.system.durable import lock_file, output_error
from fineweb_shards.system.own_files import is_plain_file, make_folder, open_own
from fineweb_shards.system.retry import Disk, Retrier, TransientError

PARTIAL_ENDING = ".part"
_SMALLEST_PART_BYTES, _LARGEST_PART_BYTES = 2**18, 2**22
_FEWEST_PARTS = 64  # of a large file, so that a download that is killed has something to go on with
_PARTS_AT_ONCE = 8


def download(file: InputFile, remote: RemoteFile, disk: Disk, retrier: Retrier) -> None:
    """Bring a file to its path, unless it is there. A full disk is waited for."""
    path = Path(file.path)
    if is_plain_file(path) and path.stat().st_size == file.size_bytes:
        return
    retrier.call(partial(_download_once, file, remote, disk))


def _download_once(file: InputFile, remote: RemoteFile, disk: Disk) -> None:
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
            for part in _parts(remote, done, file.size_bytes, part_bytes):
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


def _parts(remote: RemoteFile, start: int, stop: int, part_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `stop` in order, in parts that are fetched several at once."""
    waiting: deque[Future[memoryview]] = deque()
    while start < stop or waiting:
        while start < stop and len(waiting) < _PARTS_AT_ONCE:
            end = min(start + part_bytes, stop)
            waiting.append(in_background(partial(remote.fetch, start, end)))
            start = end
        yield waiting.popleft().result()


def _write(output: BinaryIO, data: memoryview, position: int, path: Path) -> None:
    """Write a part at its place; DiskFullError if there is no space. It can be repeated."""
    try:
        output.seek(position)
        while data:
            data = data[output.write(data) :]
    except OSError as error:
        raise output_error(path, error) from None
