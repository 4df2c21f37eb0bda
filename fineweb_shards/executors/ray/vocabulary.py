"""Bring the files that define a vocabulary to a node: `Vocabulary.folder` is a folder of the driver's.

On the node they are files only while an engine loads them, in a folder of that process. So nothing stays on
the node after a run, and no process believes what another user has put there. GPT-2 needs none.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.system.own_files import is_plain_file, read_file
from fineweb_shards.tokenizers.vocabulary_files import FILE_NAMES, MOST_BYTES, engine_file
from fineweb_shards.vocabulary import Vocabulary

_PREFIX = "fineweb-shards-tokenizer-"
_LEFT_AFTER_SECONDS = 3600.0  # loading takes seconds: whoever made an older folder was killed meanwhile


def pack_vocabulary(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return the vocabulary's files, by name."""
    if not vocabulary.folder:
        return {}
    paths = [Path(vocabulary.folder, FILE_NAMES[vocabulary.reference]), engine_file(vocabulary)]
    return {path.name: read_file(path, MOST_BYTES) for path in paths if is_plain_file(path)}


@contextlib.contextmanager
def unpacked(spec: WorkerSpec, files: Mapping[str, bytes]) -> Iterator[WorkerSpec]:
    """Have the vocabulary's files on this machine for a while, and the spec with a vocabulary that finds
    them there."""
    if not files:
        yield spec
        return
    _remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:  # nobody else can write there
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        vocabulary = replace(spec.shard_format.vocabulary, folder=folder)
        yield replace(spec, shard_format=replace(spec.shard_format, vocabulary=vocabulary))


def _remove_leftovers(parent: Path) -> None:
    """Remove the folders of processes that were killed while they loaded an engine."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or another process removes it now
            if folder.lstat().st_mtime < time.time() - _LEFT_AFTER_SECONDS:
                shutil.rmtree(folder)
