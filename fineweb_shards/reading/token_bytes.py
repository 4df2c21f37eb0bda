"""Write how many bytes of text every id stands for, by which a trainer computes bits per byte."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import UsageError
from fineweb_shards.system.durable import write_file
from fineweb_shards.system.own_files import ForeignFileError, read_file
from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.vocabulary import Vocabulary


def count_token_bytes(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return the number of bytes of every id; 0 for EOT and all others that no text has."""
    counts = np.zeros(vocabulary.size, np.int32)
    known = load_token_bytes(vocabulary).token_bytes
    counts[: len(known)] = [len(token) for token in known]
    return counts


def write_token_bytes(path: Path, vocabulary: Vocabulary) -> None:
    """Write them to a file for NumPy. UsageError if there is another file of that name: it may be a shard."""
    content = io.BytesIO()
    np.save(content, count_token_bytes(vocabulary))
    data = content.getvalue()
    try:
        is_free = read_file(path, len(data)) == data
    except FileNotFoundError:
        is_free = True
    except ForeignFileError:
        is_free = False
    if not is_free:
        raise UsageError(
            f"--token-bytes {path}: there is something else of this name.", "Name a file that does not exist."
        )
    write_file(path, data, path.parent)
