"""Open a file of tokens made by any program: a NumPy array, one with llm.c's header, or bare tokens.

Nothing in the file is trusted. A header must fit the file's length before tokens are read or mapped, and no
pickle is ever loaded. A file without a known header counts as bare tokens only if it has the name of such a
layout, or begins with tokens of the vocabulary: a header must never be read as tokens. The manifest beside
such a file says how wide its tokens are; without a manifest they are GPT-2's.
"""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fineweb_shards.errors import InputError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.llm_c import HEADER_INTS, HEADERS
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.manifest_file import FILE_NAME, is_ours, load_manifest
from fineweb_shards.system.durable import read_file
from fineweb_shards.types import Dtype, Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary, unsigned_dtype

SUFFIXES = (".npy", ".bin")
_NPY_MAGIC = b"\x93NUMPY"
_NPY_DTYPES = {unsigned_dtype(width_bytes).str: unsigned_dtype(width_bytes) for width_bytes in HEADERS}
_ROW = "a row of " + " or ".join(dtype.name for dtype in _NPY_DTYPES.values())
_LONGEST_NPY_HEADER = 4096
_START_BYTES = 4096  # checked at the beginning of a file, which may have an unknown header
_OTHER_FORMATS = {  # first bytes of other formats, some of which could pass for tokens
    (278895051).to_bytes(4, "little"): "has the header of NeMo Automodel, which is not read here",
    (20240522).to_bytes(4, "little"): "is an evaluation file of llm.c",
    (20240326).to_bytes(4, "little"): "is a model of llm.c",
    b"MMIDIDX\0\0": "is an index of Megatron; name the .bin beside it",
    b"PAR1": "is a parquet file",
    b"PK\3\4": "is a zip archive",
    b"\x1f\x8b": "is compressed (gzip)",
    b"\x28\xb5\x2f\xfd": "is compressed (zstd)",
    b"\x89HDF": "is an HDF5 file",
    b"GGUF": "is a GGUF model",
}
BLOCK_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens, and where in it the tokens are."""

    path: Path
    kind: str  # npy, llm.c, raw (no header), or the layout whose header it has
    header_bytes: int
    tokens: int
    dtype: Dtype

    def map(self) -> Tokens:
        """Map the tokens into memory; pages are read when they are used."""
        if not self.tokens:
            return np.empty(0, self.dtype)
        try:
            return np.memmap(self.path, self.dtype, "r", self.header_bytes, (self.tokens,))
        except (OSError, ValueError) as error:  # ValueError: it has become shorter
            raise _refused(self.path, f"can't be mapped ({error})") from error

    def blocks(self) -> Iterator[Tokens]:
        """Yield the tokens a block at a time, in constant memory."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.header_bytes)
                left = self.tokens
                while left:
                    block = np.fromfile(file, self.dtype, min(left, BLOCK_TOKENS))
                    if not len(block):
                        raise _refused(self.path, "has become shorter while it was read")
                    left -= len(block)
                    yield block
        except OSError as error:
            raise _refused(self.path, error.strerror or str(error)) from error


def open_token_file(path: Path) -> TokenFile:
    """Find out a file's kind and number of tokens; InputError if it is not a file of tokens."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe could block for ever
            raise _refused(path, "is a folder" if path.is_dir() else "is not a regular file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_START_BYTES)
            if start.startswith(_NPY_MAGIC):
                return _open_npy(path, file, size)
            for width_bytes, (magic, _) in HEADERS.items():
                if start.startswith(magic.to_bytes(4, "little")):  # no tokens: outside GPT-2's vocabulary
                    return _open_llm_c(path, start, size, width_bytes)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    return _open_bare(path, start, size)


def token_files(folder: Path, split: str = "") -> list[TokenFile]:
    """Open the token files of a folder whose names contain `split`, sorted, as build-nanogpt lists them."""
    paths = [path for path in folder.iterdir() if path.suffix in SUFFIXES and split in path.name]
    return [open_token_file(path) for path in sorted(paths)]


def vocabulary_beside(path: Path) -> Vocabulary | None:
    """Return the vocabulary in the manifest of a file's folder; None if there is no manifest of ours."""
    found = _format_beside(path)
    return found.vocabulary if found else None


def _format_beside(path: Path) -> ShardFormat | None:
    """Return the format in the manifest of a file's folder; None if there is no manifest of ours."""
    try:
        state = (path.parent / FILE_NAME).stat()
    except OSError:
        return None
    return _read_format(path.parent, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read_format(folder: Path, mtime_ns: int, size_bytes: int) -> ShardFormat | None:
    """Read the format in a folder's manifest; None if the manifest is another program's.

    Cached for all files of a folder, until the manifest's time or size changes. A damaged manifest raises
    DamageError: guessing the width would give wrong tokens.
    """
    try:
        ours = is_ours(folder, read_file(folder / FILE_NAME))
    except OSError as error:
        raise _refused(folder / FILE_NAME, error.strerror or str(error)) from error
    manifest = load_manifest(folder) if ours else None  # otherwise it is another program's
    return manifest.shard_format if manifest else None


def has_eot_first(file: TokenFile) -> bool:
    """Return whether EOT comes before documents, judged by the file's name, or else by its kind."""
    layout = _layout_of(file.path)
    return layout.eot_first if layout else file.kind != "raw"


def _layout_of(path: Path) -> Layout | None:
    """Return the layout whose files have such a name; None if there is none."""
    return next((layout for layout in LAYOUTS.values() if layout.owns(path.name)), None)


def _open_npy(path: Path, file: BinaryIO, size: int) -> TokenFile:
    """Read an NPY 1.0 header: magic, version, length of the header, a Python dictionary.

    It is not read with numpy, which raises half a dozen kinds of errors if it is damaged.
    """
    file.seek(len(_NPY_MAGIC))
    version, length = file.read(2), int.from_bytes(file.read(2), "little")
    if version != b"\1\0":
        raise _refused(path, f"has the NPY version {'.'.join(map(str, version))}, not 1.0")
    if length > _LONGEST_NPY_HEADER or file.tell() + length > size:
        raise _refused(path, f"has a damaged NPY header ({length:,} bytes long)")
    try:
        header = ast.literal_eval(file.read(length).decode("latin-1").strip())
        dtype, (tokens,) = header["descr"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise _refused(path, f"has a damaged NPY header, or is not {_ROW}") from error
    if not isinstance(dtype, str) or dtype not in _NPY_DTYPES or type(tokens) is not int or tokens < 0:
        raise _refused(path, f"holds {dtype!r:.40} of shape {header['shape']!r:.40}, not {_ROW}")
    found = TokenFile(path, "npy", file.tell(), tokens, _NPY_DTYPES[dtype])
    return _with_right_size(found, size)


def _open_llm_c(path: Path, start: bytes, size: int, width_bytes: int) -> TokenFile:
    """Read the header of llm.c."""
    header_bytes, version = 4 * HEADER_INTS, HEADERS[width_bytes][1]
    header = np.frombuffer(start[:header_bytes].ljust(header_bytes, b"\0"), "<i4").tolist()
    if header[1] != version:
        raise _refused(path, f"has version {header[1]} in its header, not {version}: it can't be read")
    found = TokenFile(path, "llm.c", header_bytes, header[2], unsigned_dtype(width_bytes))
    return _with_right_size(found, size)


def _with_right_size(file: TokenFile, size: int) -> TokenFile:
    """Return the file if it is as long as its header says; otherwise raise InputError."""
    if file.tokens < 0 or file.header_bytes + file.tokens * file.dtype.itemsize != size:
        raise _refused(file.path, f"is {size:,} bytes long, but its header says {file.tokens:,} tokens")
    return file


def _open_bare(path: Path, start: bytes, size: int) -> TokenFile:
    """Open a file of bare tokens, if its name or its first tokens say that it is one."""
    layout = _layout_of(path)
    if layout and layout.header_bytes:
        return _open_by_layout(path, layout, start, size)
    for magic, what in _OTHER_FORMATS.items():
        if start.startswith(magic) and not layout:
            raise _refused(path, what)
    vocabulary, dtype = _bare_tokens(path)
    if path.suffix != ".bin" or size % dtype.itemsize:
        raise _refused(path, f"is not a file of {dtype.name} tokens ({size:,} bytes)")
    start_tokens = len(start) // dtype.itemsize
    highest = int(np.frombuffer(start, dtype, start_tokens).max(initial=0))
    if highest >= vocabulary.size and not layout:
        raise InputError(
            f"{path}: it has no known header, and {highest} among its first numbers is no token of "
            f"{vocabulary.name}.",
            f"If it holds nothing but {dtype.name}, call it train.bin, val.bin or train_shard_0000.bin.",
        )
    return TokenFile(path, "raw", 0, size // dtype.itemsize, dtype)


def _open_by_layout(path: Path, layout: Layout, start: bytes, size: int) -> TokenFile:
    """Open a file whose name says that it has a header of the layout's own."""
    shard_format = ShardFormat(layout, vocabulary_beside(path) or GPT2)
    tokens, rest = shard_format.tokens_in(size)
    if rest or tokens < 0 or start[: layout.header_bytes] != layout.header(tokens, shard_format.dtype):
        raise _refused(path, f"has no header, or a damaged one; with this name {layout.name} reads one")
    return TokenFile(path, layout.name, layout.header_bytes, tokens, shard_format.read_dtype)


def _bare_tokens(path: Path) -> tuple[Vocabulary, Dtype]:
    """Return vocabulary and dtype of tokens without a header: the manifest's, or else GPT-2's."""
    found = _format_beside(path)
    return (found.vocabulary, found.read_dtype) if found else (GPT2, GPT2.dtype)


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}.", "Name a .npy or .bin file of tokens, or a folder of them.")
