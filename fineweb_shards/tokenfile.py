"""A file of tokens, whoever made it: a NumPy array, llm.c's header, or nothing but uint16.

Nothing in the file is trusted. A header must fit the file's length before anything is read or mapped,
and no pickle is ever loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from fineweb_shards.errors import InputError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.layouts.llm_c import HEADER_INTS, MAGIC, VERSION
from fineweb_shards.types import Tokens

SUFFIXES = (".npy", ".bin")
_MAGIC_UINT32 = 20240801  # llm.c's header for Llama 3
_NPY_MAGIC = b"\x93NUMPY"
_LONGEST_NPY_HEADER = 4096
BLOCK_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Where the tokens are in a file."""

    path: Path
    kind: Literal["npy", "llm.c", "raw"]
    header_bytes: int
    tokens: int

    def map(self) -> NDArray[np.uint16]:
        """The tokens, mapped into memory; pages are read as they are used."""
        if not self.tokens:
            return np.empty(0, "<u2")
        return np.memmap(self.path, "<u2", "r", self.header_bytes, (self.tokens,))

    def blocks(self) -> Iterator[Tokens]:
        """The tokens a block at a time, in constant memory."""
        with open(self.path, "rb") as file:
            file.seek(self.header_bytes)
            left = self.tokens
            while left and len(block := np.fromfile(file, "<u2", min(left, BLOCK_TOKENS))):
                left -= len(block)
                yield block


def open_token_file(path: Path) -> TokenFile:
    """What kind of file it is and how many tokens it holds, or why it can't be one."""
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            start = file.read(8)
            if start.startswith(_NPY_MAGIC):
                return _open_npy(path, file, size)
            if start[:4] == MAGIC.to_bytes(4, "little"):  # no tokens: 55432 is outside the vocabulary
                return _open_llm_c(path, file, size)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}.", "Name a file or a folder of shards."
        ) from error
    if start[:4] == _MAGIC_UINT32.to_bytes(4, "little"):
        raise _refused(path, "holds 32-bit tokens of another vocabulary")
    if path.suffix != ".bin" or size % 2:
        raise _refused(path, "is no file of uint16 tokens")
    return TokenFile(path, "raw", 0, size // 2)


def token_files(folder: Path, split: str = "") -> list[TokenFile]:
    """The files of tokens in a folder whose name contains `split`, sorted, as build-nanogpt lists them."""
    paths = [path for path in folder.iterdir() if path.suffix in SUFFIXES and split in path.name]
    return [open_token_file(path) for path in sorted(paths)]


def has_eot_first(path: Path) -> bool:
    """On which side of a document EOT stands, by the name of the file, or else by the kind of it."""
    known = [layout.eot_first for layout in LAYOUTS.values() if layout.owns(path.name)]
    return known[0] if known else open_token_file(path).kind != "raw"


def _open_npy(path: Path, file: BinaryIO, size: int) -> TokenFile:
    file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise _refused(path, f"has the NPY version {version[0]}.{version[1]}, not 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_LONGEST_NPY_HEADER)
    except ValueError as error:
        raise _refused(path, f"has a damaged NPY header ({error})") from error
    if dtype != np.dtype("<u2") or len(shape) != 1:
        raise _refused(path, f"holds {dtype} of shape {shape}, not a row of uint16")
    if file.tell() + 2 * shape[0] != size:
        raise _refused(path, f"is {size:,} bytes long, but its header says {shape[0]:,} tokens")
    return TokenFile(path, "npy", file.tell(), shape[0])


def _open_llm_c(path: Path, file: BinaryIO, size: int) -> TokenFile:
    file.seek(0)
    header = np.frombuffer(file.read(4 * HEADER_INTS).ljust(4 * HEADER_INTS, b"\0"), "<i4").tolist()
    if header[1] != VERSION:
        raise _refused(path, f"has version {header[1]} in its header, not {VERSION}: no uint16 tokens")
    if header[2] < 0 or 4 * HEADER_INTS + 2 * header[2] != size:
        raise _refused(path, f"is {size:,} bytes long, but its header says {header[2]:,} tokens")
    return TokenFile(path, "llm.c", 4 * HEADER_INTS, header[2])


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}.", "Name a .npy or .bin file of GPT-2 tokens, or a folder of them.")
