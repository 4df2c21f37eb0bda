"""The independent reference: a plain single-threaded loop over tiktoken, and numpy.save.

Nothing here imports the code under test. tiktoken's own `r50k_base` is used as published (it checks the hash of the
ranks itself); only the download is replaced by the file that ships with the package.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import tiktoken

EOT = 50256
RANKS = Path(__file__).parent.parent.parent / "fineweb_shards" / "tokenizers" / "gpt2.tiktoken"
_RANKS_URL = "https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken"


@cache
def encoding() -> tiktoken.Encoding:
    """tiktoken's GPT-2 encoding, without a network."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(RANKS, Path(folder) / hashlib.sha1(_RANKS_URL.encode()).hexdigest())
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = folder
        try:
            return tiktoken.get_encoding("r50k_base")
        finally:
            os.environ.pop("TIKTOKEN_CACHE_DIR")
            if before is not None:
                os.environ["TIKTOKEN_CACHE_DIR"] = before


def encode(text: str) -> list[int]:
    """One call, one document."""
    return encoding().encode_ordinary(text)


def stream(documents: Iterable[str]) -> np.ndarray:
    """EOT in front of every document, as build-nanogpt's fineweb.py has it."""
    tokens: list[int] = []
    for document in documents:
        tokens.append(EOT)
        tokens.extend(encode(document))
    return np.array(tokens, dtype=np.uint16)


def shard_files(tokens: np.ndarray, shard_tokens: int) -> dict[str, bytes]:
    """The files that the original would leave behind: name to bytes."""
    files = {}
    for index, start in enumerate(range(0, len(tokens), shard_tokens)):
        buffer = io.BytesIO()
        np.save(buffer, tokens[start : start + shard_tokens])
        split = "val" if index == 0 else "train"
        files[f"edufineweb_{split}_{index:06d}.npy"] = buffer.getvalue()
    return files


def digests(files: dict[str, bytes]) -> dict[str, str]:
    """SHA-256 of every file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
