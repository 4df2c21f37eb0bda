"""Open a file of tokens made by any program: a NumPy array, one with the header of a layout, or bare tokens.

Nothing in the file is trusted. A header must fit the file's length before tokens are read or mapped, and no
pickle is ever loaded. A file without a known header counts as bare tokens only if the caller says how wide
they are, if it has the name of such a layout, or begins with tokens of the vocabulary: a header must never be
read as tokens. Otherwise the manifest beside the file says how wide they are, or datatrove's metadata, or its
name; a `.bin` that nothing is known of holds GPT-2's.
"""

from __future__ import annotations

import ast
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fineweb_shards.errors import InputError
from fineweb_shards.layouts import LAYOUTS, automodel
from fineweb_shards.layouts.automodel import Automodel
from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.datatrove import METADATA_SUFFIX, Datatrove
from fineweb_shards.layouts.llm_c import HEADER_INTS, HEADERS, LlmC
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.store.manifest_file import FILE_NAME, is_ours, load_manifest
from fineweb_shards.system.durable import read_file
from fineweb_shards.types import Dtype, Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary, unsigned_dtype

SUFFIXES = {layout.suffix for layout in LAYOUTS.values()}
DTYPES = {unsigned_dtype(width_bytes).name: unsigned_dtype(width_bytes) for width_bytes in HEADERS}
_NPY_MAGIC = b"\x93NUMPY"
_NPY_DTYPES = {dtype.str: dtype for dtype in DTYPES.values()}
_ROW = "a row of " + " or ".join(DTYPES)
_LONGEST_NPY_HEADER = 4096
_START_BYTES = 8192  # checked at the beginning of a file, which may have an unknown header
_OTHER_FORMATS = {  # first bytes of other formats, some of which could pass for tokens
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
    kind: str  # npy, raw (no header), or the layout whose header it has
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


def open_token_file(path: Path, dtype: Dtype | None = None) -> TokenFile:
    """Find out a file's kind and number of tokens; InputError if it is not a file of tokens.

    `dtype` is how wide its tokens are if they have no header, whatever its name; a header must say the same.
    """
    start, size = _read_start(path)
    file = _open_with_header(path, start, size) or _open_bare(path, start, size, dtype)
    if dtype is not None and file.dtype != dtype:
        raise InputError(
            f"{path}: its header or manifest says {file.dtype.name}, not {dtype.name}.",
            "Leave out the dtype.",
        )
    return file


def token_files(folder: Path, split: str = "", dtype: Dtype | None = None) -> list[TokenFile]:
    """Open the token files of a folder, sorted: those of a split, or with `split` in their names, as
    build-nanogpt lists them."""
    paths = [path for path in folder.iterdir() if path.suffix in SUFFIXES and _is_of(path.name, split)]
    return [open_token_file(path, dtype) for path in sorted(paths)]


def _is_of(name: str, split: str) -> bool:
    """Return whether a file belongs to a split by its name, and is no sidecar."""
    layout = next((layout for layout in LAYOUTS.values() if layout.owns(name)), None)
    if layout is None:
        return split in name
    return layout.holds_tokens(name) and (split in name or split == layout.split_of(name))


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
    return next((layout for layout in LAYOUTS.values() if layout.holds_tokens(path.name)), None)


def _read_start(path: Path) -> tuple[bytes, int]:
    """Return the first bytes of a file, and its size; InputError if it can't be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe could block for ever
            raise _refused(path, "is a folder" if path.is_dir() else "is not a regular file")
        with open(path, "rb") as file:
            return file.read(_START_BYTES), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error


def _open_with_header(path: Path, start: bytes, size: int) -> TokenFile | None:
    """Open a file that begins with a known header; None if it does not."""
    if start.startswith(_NPY_MAGIC):
        return _open_npy(path, io.BytesIO(start), size)
    # The magic numbers are no tokens: they are outside GPT-2's vocabulary.
    for width_bytes, (magic, version) in HEADERS.items():
        if start.startswith(magic.to_bytes(4, "little")):
            return _open_int_header(path, LlmC.name, start, size, version, width_bytes)
    if start.startswith(automodel.MAGIC.to_bytes(4, "little")):
        width_bytes = int.from_bytes(start[12:16], "little")
        return _open_int_header(path, Automodel.name, start, size, automodel.VERSION, width_bytes)
    return None


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


def _open_int_header(
    path: Path, kind: str, start: bytes, size: int, version: int, width_bytes: int
) -> TokenFile:
    """Read a header of int32: a magic number, the version, the number of tokens."""
    header_bytes = 4 * HEADER_INTS
    header = np.frombuffer(start[:header_bytes].ljust(header_bytes, b"\0"), "<i4").tolist()
    if header[1] != version:
        raise _refused(path, f"has version {header[1]} in its header, not {version}: it can't be read")
    if width_bytes not in HEADERS:
        raise _refused(path, f"has tokens of {width_bytes:,} bytes, according to its header")
    found = TokenFile(path, kind, header_bytes, header[2], unsigned_dtype(width_bytes))
    return _with_right_size(found, size)


def _with_right_size(file: TokenFile, size: int) -> TokenFile:
    """Return the file if it is as long as its header says; otherwise raise InputError."""
    if file.tokens < 0 or file.header_bytes + file.tokens * file.dtype.itemsize != size:
        raise _refused(file.path, f"is {size:,} bytes long, but its header says {file.tokens:,} tokens")
    return file


def _open_bare(path: Path, start: bytes, size: int, dtype: Dtype | None) -> TokenFile:
    """Open a file of bare tokens, if the caller, its name or its first tokens say that it is one."""
    layout = _layout_of(path)
    if layout and layout.header_bytes:
        return _open_by_layout(path, layout, start, size)
    for magic, what in _OTHER_FORMATS.items():
        if start.startswith(magic) and not layout and dtype is None:
            raise _refused(path, what)
    known = _bare_dtype(path, layout, dtype)
    if size % known.itemsize:
        raise _refused(path, f"is not a file of {known.name} tokens ({size:,} bytes)")
    if not layout and dtype is None and path.suffix == Layout.suffix:  # such a file can be anything
        _check_first_tokens(path, np.frombuffer(start, known, len(start) // known.itemsize))
    return TokenFile(path, "raw", 0, size // known.itemsize, known)


def _check_first_tokens(path: Path, tokens: Tokens) -> None:
    """Raise InputError if the first numbers of a file are no tokens of its vocabulary."""
    vocabulary, highest = vocabulary_beside(path) or GPT2, int(tokens.max(initial=0))
    if highest >= vocabulary.size:
        raise InputError(
            f"{path}: it has no known header, and {highest} among its first numbers is no token of "
            f"{vocabulary.name}.",
            f"If it holds nothing but tokens, say how wide they are: --dtype {tokens.dtype.name}",
        )


def _open_by_layout(path: Path, layout: Layout, start: bytes, size: int) -> TokenFile:
    """Open a file whose name says that it has a header of the layout's own."""
    shard_format = ShardFormat(layout, vocabulary_beside(path) or GPT2)
    tokens, rest = shard_format.tokens_in(size)
    if rest or tokens < 0 or start[: layout.header_bytes] != layout.header(tokens, shard_format.dtype):
        raise _refused(path, f"has no header, or a damaged one; with this name {layout.name} reads one")
    return TokenFile(path, layout.name, layout.header_bytes, tokens, shard_format.read_dtype)


def _bare_dtype(path: Path, layout: Layout | None, dtype: Dtype | None) -> Dtype:
    """Return how wide tokens without a header are: `dtype` unless there is a manifest; InputError if nothing
    tells."""
    if found := _format_beside(path):
        return found.read_dtype
    if dtype:
        return dtype
    if layout and layout.bare_dtype:
        return layout.bare_dtype
    if path.suffix == Datatrove.suffix and (dtype := _metadata_dtype(path)):
        return dtype
    if path.suffix == Layout.suffix:
        return GPT2.dtype
    if path.suffix in SUFFIXES:
        raise InputError(
            f"{path}: it has no header, and nothing says how wide its tokens are.",
            "If it holds nothing but tokens, say so: " + " or ".join(f"--dtype {name}" for name in DTYPES),
        )
    raise _refused(path, "is no file of tokens by its name")


def _metadata_dtype(path: Path) -> Dtype | None:
    """Return the dtype that datatrove's metadata beside a file names: `gpt2|2` in its first line."""
    try:
        first = read_file(path.with_name(path.name + METADATA_SUFFIX)).partition(b"\n")[0]
    except OSError:
        return None
    widths = {str(dtype.itemsize).encode(): dtype for dtype in DTYPES.values()}
    return widths.get(first.rpartition(b"|")[2].strip())


def _refused(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}.", "Name a .npy, .bin or .ds file of tokens, or a folder of them.")
