"""Bring the files that define a vocabulary to a node: `Vocabulary.folder` is a folder of the driver's.

On the node they are in its folder for temporary files, once for all processes. GPT-2 needs none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.system.durable import write_quickly
from fineweb_shards.system.own_files import is_plain_file, read_file
from fineweb_shards.tokenizers.vocabulary_files import FILE_NAMES, MOST_BYTES, engine_file
from fineweb_shards.vocabulary import Vocabulary


def pack_vocabulary(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return the vocabulary's files, by name."""
    if not vocabulary.folder:
        return {}
    paths = [Path(vocabulary.folder, FILE_NAMES[vocabulary.reference]), engine_file(vocabulary)]
    return {path.name: read_file(path, MOST_BYTES) for path in paths if is_plain_file(path)}


def unpack_vocabulary(spec: WorkerSpec, files: dict[str, bytes]) -> WorkerSpec:
    """Return the spec with a vocabulary whose files are on this machine."""
    if not files:
        return spec
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in sorted(files.items())))
    folder = _own_folder() / digest.hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        _write_once(folder / name, data)
    shard_format = spec.shard_format
    vocabulary = replace(shard_format.vocabulary, folder=str(folder))
    return replace(spec, shard_format=replace(shard_format, vocabulary=vocabulary))


def _own_folder() -> Path:
    """Return a folder that nobody else can write to: engines believe what they load from it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir(), f"fineweb-shards-{user}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_private = os.name == "nt" or (status.st_uid == user and not status.st_mode & 0o077)
    if is_private and not folder.is_symlink():
        return folder
    return Path(tempfile.mkdtemp(prefix="fineweb-shards-"))


def _write_once(path: Path, data: bytes) -> None:
    """Write a file that other processes and threads may be reading, or writing as well."""
    if is_plain_file(path) and read_file(path, MOST_BYTES) == data:
        return
    write_quickly(path, data)
