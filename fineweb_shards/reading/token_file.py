"""Open files of tokens made by any program, on this machine or in a bucket: a NumPy array, one with the
header of a layout, or bare tokens.

Nothing in the file is trusted. A header must fit the file's length before tokens are read or mapped, and no
pickle is ever loaded. A file without a known header counts as bare tokens only if the caller says how wide
they are, if it has the name of such a layout, or begins with tokens of the vocabulary: a header must never be
read as tokens. Otherwise what is beside the file in its folder says how wide they are (our manifest, or
datatrove's metadata), or its name; a `.bin` that nothing is known of holds GPT-2's.
"""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeGuard

import numpy as np

from fineweb_shards.errors import InputError
from fineweb_shards.events import Observer
from fineweb_shards.layouts import LAYOUTS, automodel
from fineweb_shards.layouts.automodel import Automodel
from fineweb_shards.layouts.base import Layout, ShardFormat
from fineweb_shards.layouts.datatrove import METADATA_SUFFIX, Datatrove
from fineweb_shards.layouts.llm_c import HEADER_INTS, HEADERS, LlmC
from fineweb_shards.storage.bucket_address import is_url
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.manifest import FILE_NAME, Manifest, is_ours, parse_manifest
from fineweb_shards.store.opening import is_object, open_store_to_read
from fineweb_shards.store.shard_files import growing_path
from fineweb_shards.store.store import Store
from fineweb_shards.system.background import map_in_background
from fineweb_shards.types import Dtype, Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary, unsigned_dtype


class TokenFolder:
    """A store whose files may be anybody's."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store}  # a manifest may be large, and is read again where it is needed

    def __str__(self) -> str:
        return self.store.location

    def address(self, name: str) -> str:
        """Return what a user calls a file of the folder."""
        return f"{self.store.location}/{name}" if self.store.is_remote else str(self.store.folder / name)

    @cached_property
    def manifest(self) -> Manifest | None:
        """Our manifest; None if there is none, or another program's. A damaged one raises DamageError:
        guessing how wide tokens are would give wrong ones."""
        try:
            data = self.store.read_manifest()
        except OSError as error:
            raise InputError(
                f"{self.address(FILE_NAME)}: {error.strerror or error}.", "Check the folder."
            ) from error
        if data is None or not is_ours(self.store.folder, data):
            return None
        return parse_manifest(data, self.store.folder, self.store.location)


def is_folder(location: str | Path) -> bool:
    """Tell whether a path or an address is that of a folder. In a bucket, what is no object is a folder."""
    return not is_object(location) if is_address(location) else Path(location).is_dir()


def split_location(location: str | Path) -> tuple[str, str]:
    """Divide the path or address of a file into that of its folder, and its name."""
    if not is_address(location):
        return str(Path(location).parent), Path(location).name
    folder, _, name = location.rstrip("/").rpartition("/")
    return folder, name


def open_folder(location: str | Path) -> TokenFolder:
    """Open a folder by its path or its address."""
    if is_address(location):
        return TokenFolder(open_store_to_read(location, Observer(), refusal=InputError))
    return TokenFolder(FolderStore(Path(location)))


def is_address(location: str | Path) -> TypeGuard[str]:
    """Tell whether a location is an address, and not the path of something on this machine."""
    return isinstance(location, str) and is_url(location)


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
_REQUESTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens, and where in it the tokens are."""

    folder: TokenFolder
    name: str
    kind: str  # npy, raw (no header), or the layout whose header it has
    header_bytes: int
    tokens: int
    dtype: Dtype

    @property
    def address(self) -> str:
        """What a user calls it."""
        return self.folder.address(self.name)

    @property
    def end_bytes(self) -> int:
        """The byte after the last token."""
        return self.header_bytes + self.tokens * self.dtype.itemsize

    def map(self) -> Tokens:
        """Map the tokens of a file on this machine into memory; pages are read when they are used."""
        if not self.tokens:
            return np.empty(0, self.dtype)
        final = self.folder.store.folder / self.name
        # One that grows is in the work folder until it is renamed, which may happen between the attempts.
        for path in (final, growing_path(final)):
            with contextlib.suppress(OSError, ValueError):
                return np.memmap(path, self.dtype, "r", self.header_bytes, (self.tokens,))
        try:
            return np.memmap(final, self.dtype, "r", self.header_bytes, (self.tokens,))
        except (OSError, ValueError) as error:  # ValueError: it has become shorter
            raise _refused(self.address, f"can't be mapped ({error})") from error

    def blocks(self) -> Iterator[Tokens]:
        """Yield the tokens a block at a time, in constant memory."""
        width_bytes = self.dtype.itemsize
        store = self.folder.store
        try:
            with store.open(store.require(self.name)) as file:
                file.seek(self.header_bytes)
                left = self.tokens
                while left:
                    data = file.read(min(left, BLOCK_TOKENS) * width_bytes)
                    if len(data) < width_bytes:
                        raise _refused(self.address, "has become shorter while it was read")
                    block = np.frombuffer(data, self.dtype, len(data) // width_bytes)
                    left -= len(block)
                    yield block
        except OSError as error:
            raise _refused(self.address, error.strerror or str(error)) from error

    def read_last(self) -> Tokens:
        """Read the last token; no token if there is none."""
        begin = max(self.header_bytes, self.end_bytes - self.dtype.itemsize)
        store = self.folder.store
        try:
            data = store.read_range(store.require(self.name), begin, self.end_bytes)
        except OSError as error:
            raise _refused(self.address, error.strerror or str(error)) from error
        return np.frombuffer(data, self.dtype, len(data) // self.dtype.itemsize)


def open_token_file(location: str | Path, dtype: Dtype | None = None) -> TokenFile:
    """Open a file by its path or its address. Raises InputError like `open_file_in`."""
    folder, name = split_location(location)
    return open_file_in(open_folder(folder), name, dtype)


def open_file_in(folder: TokenFolder, name: str, dtype: Dtype | None = None) -> TokenFile:
    """Find out a file's kind and number of tokens; InputError if it is not a file of tokens.

    `dtype` is how wide its tokens are if they have no header, whatever its name; a header must say the same.
    """
    start, size = _read_start(folder, name)
    opened = _Opened(folder, name, start, size)
    file = _open_with_header(opened) or _open_bare(opened, dtype)
    if dtype is not None and file.dtype != dtype:
        raise InputError(
            f"{file.address}: its header or manifest says {file.dtype.name}, not {dtype.name}.",
            "Leave out the dtype.",
        )
    return file


def open_files_in(folder: TokenFolder, names: Iterable[str], dtype: Dtype | None = None) -> list[TokenFile]:
    """Open several files of a folder, in this order."""
    if not folder.store.is_remote:
        return [open_file_in(folder, name, dtype) for name in names]
    # Each takes a few requests.
    return list(map_in_background(lambda name: open_file_in(folder, name, dtype), names, _REQUESTS_AT_ONCE))


def token_names(folder: TokenFolder, split: str = "") -> list[str]:
    """Return the names of the token files of a folder, sorted: those of a split, or with `split` in their
    names, as build-nanogpt lists them. Raises OSError if it can't be listed."""
    store = folder.store
    if not store.is_remote and not store.folder.is_dir():
        store.folder.stat()  # says why
        raise NotADirectoryError(20, "Not a directory", store.location)
    names = (name for name in store.list_names() if PurePosixPath(name).suffix in SUFFIXES)
    return sorted(name for name in names if _is_of(name, split))


def _is_of(name: str, split: str) -> bool:
    """Return whether a file belongs to a split by its name, and is no sidecar."""
    layout = next((layout for layout in LAYOUTS.values() if layout.owns(name)), None)
    if layout is None:
        return split in name
    return layout.holds_tokens(name) and (split in name or split == layout.split_of(name))


def vocabulary_beside(file: TokenFile) -> Vocabulary | None:
    """Return the vocabulary in the manifest of a file's folder; None if there is no manifest of ours."""
    return file.folder.manifest.vocabulary if file.folder.manifest else None


def has_eot_first(file: TokenFile) -> bool:
    """Return whether EOT comes before documents, judged by the file's name, or else by its kind."""
    layout = _layout_of(file.name)
    return layout.eot_first if layout else file.kind != "raw"


def _layout_of(name: str) -> Layout | None:
    """Return the layout whose files have such a name; None if there is none."""
    return next((layout for layout in LAYOUTS.values() if layout.holds_tokens(name)), None)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is known of a file before anybody knows what is in it."""

    folder: TokenFolder
    name: str
    start: bytes
    size: int

    @property
    def address(self) -> str:
        return self.folder.address(self.name)

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def shard_format(self) -> ShardFormat | None:
        """The format in the manifest beside it."""
        manifest = self.folder.manifest
        return manifest.shard_format if manifest else None

    @property
    def vocabulary(self) -> Vocabulary:
        """That of the manifest beside it; GPT-2's if there is none."""
        return self.shard_format.vocabulary if self.shard_format else GPT2

    def with_tokens(self, kind: str, header_bytes: int, tokens: int, dtype: Dtype) -> TokenFile:
        return TokenFile(self.folder, self.name, kind, header_bytes, tokens, dtype)


def _read_start(folder: TokenFolder, name: str) -> tuple[bytes, int]:
    """Return the first bytes of a file, and its size; InputError if it can't be read."""
    store, address = folder.store, folder.address(name)
    try:
        found = store.find(name)
        if found is None or not found.named:  # a pipe is not found either: opening it could block for ever
            raise _refused(address, _why_missing(folder, name))
        return store.read_range(found, 0, min(found.size_bytes, _START_BYTES)), found.size_bytes
    except OSError as error:
        raise _refused(address, error.strerror or str(error)) from error


def _why_missing(folder: TokenFolder, name: str) -> str:
    """Say why there is no finished file of this name. Raises OSError."""
    if folder.store.is_remote:
        return "there is no such object" if folder.store.find(name) is None else "is not finished yet"
    path = folder.store.folder / name
    path.stat()
    return "is a folder" if path.is_dir() else "is not a regular file"


def _open_with_header(opened: _Opened) -> TokenFile | None:
    """Open a file that begins with a known header; None if it does not."""
    start = opened.start
    if start.startswith(_NPY_MAGIC):
        return _open_npy(opened, io.BytesIO(start))
    # The magic numbers are no tokens: they are outside GPT-2's vocabulary.
    for width_bytes, (magic, version) in HEADERS.items():
        if start.startswith(magic.to_bytes(4, "little")):
            return _open_int_header(opened, LlmC.name, version, width_bytes)
    if start.startswith(automodel.MAGIC.to_bytes(4, "little")):
        width_bytes = int.from_bytes(start[12:16], "little")
        return _open_int_header(opened, Automodel.name, automodel.VERSION, width_bytes)
    return None


def _open_npy(opened: _Opened, file: BinaryIO) -> TokenFile:
    """Read an NPY 1.0 header: magic, version, length of the header, a Python dictionary.

    It is not read with numpy, which raises half a dozen kinds of errors if it is damaged.
    """
    file.seek(len(_NPY_MAGIC))
    version, length = file.read(2), int.from_bytes(file.read(2), "little")
    if version != b"\1\0":
        raise _refused(opened.address, f"has the NPY version {'.'.join(map(str, version))}, not 1.0")
    if length > _LONGEST_NPY_HEADER or file.tell() + length > opened.size:
        raise _refused(opened.address, f"has a damaged NPY header ({length:,} bytes long)")
    try:
        header = ast.literal_eval(file.read(length).decode("latin-1").strip())
        dtype, (tokens,) = header["descr"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise _refused(opened.address, f"has a damaged NPY header, or is not {_ROW}") from error
    if not isinstance(dtype, str) or dtype not in _NPY_DTYPES or type(tokens) is not int or tokens < 0:
        raise _refused(opened.address, f"holds {dtype!r:.40} of shape {header['shape']!r:.40}, not {_ROW}")
    found = opened.with_tokens("npy", file.tell(), tokens, _NPY_DTYPES[dtype])
    return _with_right_size(found, opened.size)


def _open_int_header(opened: _Opened, kind: str, version: int, width_bytes: int) -> TokenFile:
    """Read a header of int32: a magic number, the version, the number of tokens."""
    header_bytes = 4 * HEADER_INTS
    header = np.frombuffer(opened.start[:header_bytes].ljust(header_bytes, b"\0"), "<i4").tolist()
    if header[1] != version:
        raise _refused(
            opened.address, f"has version {header[1]} in its header, not {version}: it can't be read"
        )
    if width_bytes not in HEADERS:
        raise _refused(opened.address, f"has tokens of {width_bytes:,} bytes, according to its header")
    found = opened.with_tokens(kind, header_bytes, header[2], unsigned_dtype(width_bytes))
    return _with_right_size(found, opened.size)


def _with_right_size(file: TokenFile, size: int) -> TokenFile:
    """Return the file if it is as long as its header says; otherwise raise InputError."""
    if file.tokens < 0 or file.end_bytes != size:
        raise _refused(file.address, f"is {size:,} bytes long, but its header says {file.tokens:,} tokens")
    return file


def _open_bare(opened: _Opened, dtype: Dtype | None) -> TokenFile:
    """Open a file of bare tokens, if the caller, its name or its first tokens say that it is one."""
    layout, start, size = _layout_of(opened.name), opened.start, opened.size
    if layout and layout.header_bytes:
        return _open_by_layout(opened, layout)
    for magic, what in _OTHER_FORMATS.items():
        if start.startswith(magic) and not layout and dtype is None:
            raise _refused(opened.address, what)
    known = _bare_dtype(opened, layout, dtype)
    if size % known.itemsize:
        raise _refused(opened.address, f"is not a file of {known.name} tokens ({size:,} bytes)")
    if not layout and dtype is None and opened.suffix == Layout.suffix:  # such a file can be anything
        tokens = np.frombuffer(start, known, len(start) // known.itemsize)
        vocabulary, highest = opened.vocabulary, int(tokens.max(initial=0))
        if highest >= vocabulary.size:
            raise InputError(
                f"{opened.address}: it has no known header, and {highest} among its first numbers is no "
                f"token of {vocabulary.name}.",
                f"If it holds nothing but tokens, say how wide they are: --dtype {known.name}",
            )
    return opened.with_tokens("raw", 0, size // known.itemsize, known)


def _open_by_layout(opened: _Opened, layout: Layout) -> TokenFile:
    """Open a file whose name says that it has a header of the layout's own."""
    shard_format = ShardFormat(layout, opened.vocabulary)
    tokens, rest = shard_format.tokens_in(opened.size)
    header = opened.start[: layout.header_bytes]
    if rest or tokens < 0 or header != layout.header(tokens, shard_format.dtype):
        raise _refused(
            opened.address, f"has no header, or a damaged one; with this name {layout.name} reads one"
        )
    return opened.with_tokens(layout.name, layout.header_bytes, tokens, shard_format.read_dtype)


def _bare_dtype(opened: _Opened, layout: Layout | None, dtype: Dtype | None) -> Dtype:
    """Return how wide tokens without a header are: `dtype` unless there is a manifest; InputError if nothing
    tells."""
    if found := opened.shard_format:
        return found.read_dtype
    if dtype:
        return dtype
    if layout and layout.bare_dtype:
        return layout.bare_dtype
    if opened.suffix == Datatrove.suffix and (dtype := _metadata_dtype(opened)):
        return dtype
    if opened.suffix == Layout.suffix:
        return GPT2.dtype
    if opened.suffix in SUFFIXES:
        raise InputError(
            f"{opened.address}: it has no header, and nothing says how wide its tokens are.",
            "If it holds nothing but tokens, say so: " + " or ".join(f"--dtype {name}" for name in DTYPES),
        )
    raise _refused(opened.address, "is no file of tokens by its name")


def _metadata_dtype(opened: _Opened) -> Dtype | None:
    """Return the dtype that datatrove's metadata beside a file names: `gpt2|2` in its first line."""
    store, name = opened.folder.store, opened.name + METADATA_SUFFIX
    try:
        found = store.find(name)
        first = store.read_range(found, 0, min(found.size_bytes, _START_BYTES)) if found else b""
    except OSError:
        return None
    widths = {str(dtype.itemsize).encode(): dtype for dtype in DTYPES.values()}
    return widths.get(first.partition(b"\n")[0].rpartition(b"|")[2].strip())


def _refused(address: str, why: str) -> InputError:
    return InputError(f"{address}: {why}.", "Name a .npy, .bin or .ds file of tokens, or a folder of them.")
