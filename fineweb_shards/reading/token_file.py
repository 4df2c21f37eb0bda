"""Open token files made by any program, on this machine or in a bucket (a NumPy array, a file with a layout's header,
or bare tokens), and find the documents in them.

Nothing in a file is trusted. A header must match the file's length before tokens are read or mapped, and no pickle is
ever loaded. A file without a known header counts as bare tokens only if it has the name of such a layout, because a
header must never be read as tokens. Their width comes from our manifest beside the file; without one, a `.bin` has
GPT-2's.

EOTs mark the documents. If EOT comes after documents, the first token of a file begins a document only if the previous
file ended with an EOT, or if there is none.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeGuard

import numpy as np

from fineweb_shards.errors import InputError
from fineweb_shards.events import Observer
from fineweb_shards.layouts import LAYOUTS, automodel
from fineweb_shards.layouts.base import Layout, ShardFormat
from fineweb_shards.layouts.llm_c import HEADER_INTS, HEADERS, LlmC
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import FILE_NAME, Manifest, is_ours, parse_manifest
from fineweb_shards.output.opening import open_store_to_read
from fineweb_shards.output.shard_files import growing_path
from fineweb_shards.output.store import Store
from fineweb_shards.storage.bucket_address import is_url
from fineweb_shards.system.background import map_in_background
from fineweb_shards.types import Dtype, Positions, Tokens
from fineweb_shards.vocabulary import GPT2, Vocabulary, unsigned_dtype

SUFFIXES = {layout.suffix for layout in LAYOUTS.values()}
BLOCK_TOKENS = 2**20
_NPY_MAGIC = b"\x93NUMPY"
_NPY_DTYPES = {unsigned_dtype(width_bytes).str: unsigned_dtype(width_bytes) for width_bytes in HEADERS}
_ROW = f"a row of {' or '.join(dtype.name for dtype in _NPY_DTYPES.values())}"
_LONGEST_NPY_HEADER = 4096
_START_BYTES = 8192  # of a file, with its header
_REQUESTS_AT_ONCE = 16
_Contents = tuple[str, int, int, Dtype]  # the last four fields of a TokenFile


@dataclass(eq=False)
class TokenFolder:
    """A store whose files any program may have made."""

    store: Store

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store}  # a manifest may be large, and is read again when needed

    def __str__(self) -> str:
        return self.store.location

    def address(self, name: str) -> str:
        """Return the user's name for a file of the folder."""
        return f"{self.store.location}/{name}" if self.store.is_remote else str(self.store.folder / name)

    @cached_property
    def manifest(self) -> Manifest | None:
        """Our manifest; None if there is none, or another program's. A damaged one raises DamageError, because guessing
        the width of tokens could give wrong ones."""
        try:
            data = self.store.read_manifest()
        except OSError as error:
            raise InputError(f"{self.address(FILE_NAME)}: {error.strerror or error}.", "Check the folder.") from error
        if data is None or not is_ours(self.store.folder, data):
            return None
        return parse_manifest(data, self.store.folder, self.store.location)


def is_address(location: str | Path) -> TypeGuard[str]:
    """Return whether a location is an address, not a path on this machine."""
    return isinstance(location, str) and is_url(location)


def split_location(location: str | Path) -> tuple[str, str]:
    if not is_address(location):
        return str(Path(location).parent), Path(location).name
    folder, _, name = location.rstrip("/").rpartition("/")
    return folder, name


def open_folder(location: str | Path) -> TokenFolder:
    if is_address(location):
        return TokenFolder(open_store_to_read(location, Observer(), refusal=InputError))
    return TokenFolder(FolderStore(Path(location)))


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A token file, and the place of the tokens in it."""

    folder: TokenFolder
    name: str
    kind: str  # npy, raw (no header), or the layout whose header it has
    header_bytes: int
    tokens: int
    dtype: Dtype

    @property
    def address(self) -> str:
        return self.folder.address(self.name)

    @property
    def end_bytes(self) -> int:
        return self.header_bytes + self.tokens * self.dtype.itemsize

    def map(self) -> Tokens:
        """Map the tokens of a file on this machine into memory; pages are read on use."""
        if not self.tokens:
            return np.empty(0, self.dtype)
        final = self.folder.store.folder / self.name
        why = ""
        # A growing file is in the work folder until it is renamed, perhaps between these attempts.
        with _refusing_errors(self.address):
            for path in (final, growing_path(final), final):
                try:
                    return np.memmap(path, self.dtype, "r", self.header_bytes, (self.tokens,))
                except (OSError, ValueError) as error:  # ValueError: it became shorter
                    why = f"can't be mapped ({error})"
            raise _NoTokensError(why)

    def blocks(self) -> Iterator[Tokens]:
        """Yield the tokens block by block, in constant memory."""
        width_bytes = self.dtype.itemsize
        store, left = self.folder.store, self.tokens
        with _refusing_errors(self.address), store.open(store.require(self.name)) as file:
            file.seek(self.header_bytes)
            while left:
                data = file.read(min(left, BLOCK_TOKENS) * width_bytes)
                if len(data) < width_bytes:
                    raise _NoTokensError("became shorter while it was read")
                block = np.frombuffer(data, self.dtype, len(data) // width_bytes)
                left -= len(block)
                yield block

    def ends_mid_document(self, vocabulary: Vocabulary) -> bool:
        """Return whether its last document continues in the next file, where EOT comes after documents."""
        begin = max(self.header_bytes, self.end_bytes - self.dtype.itemsize)
        store = self.folder.store
        with _refusing_errors(self.address):
            data = store.read_range(store.require(self.name), begin, self.end_bytes)
        last = np.frombuffer(data, self.dtype, len(data) // self.dtype.itemsize)
        return len(last) > 0 and int(last[0]) != vocabulary.eot


def open_token_file(location: str | Path) -> TokenFile:
    """Open a file by its path or address; InputError if it is not a token file."""
    folder, name = split_location(location)
    return open_file_in(open_folder(folder), name)


def open_file_in(folder: TokenFolder, name: str) -> TokenFile:
    """Determine a file's kind and number of tokens; InputError if it is not a token file."""
    with _refusing_errors(folder.address(name)):
        start, size = _read_start(folder, name)
        contents = _parse_header(start, size) or _find_bare_tokens(folder, name, start, size)
    return TokenFile(folder, name, *contents)


def open_files_in(folder: TokenFolder, names: Iterable[str]) -> list[TokenFile]:
    if not folder.store.is_remote:
        return [open_file_in(folder, name) for name in names]
    return list(map_in_background(lambda name: open_file_in(folder, name), names, _REQUESTS_AT_ONCE))


def token_names(folder: TokenFolder, split: str = "") -> list[str]:
    """Return the sorted names of a folder's token files: those of a split, or with `split` in their names, as
    build-nanogpt lists them. Raises OSError if the folder can't be listed."""
    store = folder.store
    if not store.is_remote and not store.folder.is_dir():
        store.folder.stat()  # raises the reason
        raise NotADirectoryError(20, "Not a directory", store.location)
    found = []
    for name in store.list_names():
        if PurePosixPath(name).suffix in SUFFIXES:
            layout = next((layout for layout in LAYOUTS.values() if layout.owns(name)), None)
            is_sidecar = layout is not None and not layout.holds_tokens(name)
            # torchtitan's training file is just called tokens.bin.
            is_train = layout is not None and split == "train" and "val" not in name
            if (split in name or is_train) and not is_sidecar:
                found.append(name)
    return sorted(found)


def vocabulary_beside(file: TokenFile) -> Vocabulary | None:
    """Return the vocabulary in the manifest of a file's folder; None without a manifest of ours."""
    return file.folder.manifest.vocabulary if file.folder.manifest else None


def has_eot_first(file: TokenFile) -> bool:
    """Return whether EOT comes before documents, judging by the file's name. A file without a layout's name has a
    header, and all known headers have EOT first."""
    layout = _layout_of(file.name)
    return layout is None or layout.eot_first


class TokenSequence(Protocol):
    """Tokens that are read in slices, such as an array."""

    def __len__(self) -> int: ...
    def __getitem__(self, wanted: slice, /) -> Tokens: ...


def document_starts(
    tokens: TokenSequence, vocabulary: Vocabulary, *, eot_first: bool, starts_mid_document: bool
) -> Positions:
    """Return the starts of documents: their EOT or, if EOT comes after them, their first token."""
    blocks = (tokens[begin : begin + BLOCK_TOKENS] for begin in range(0, len(tokens), BLOCK_TOKENS))
    found = [vocabulary.find_eots(block) + number * BLOCK_TOKENS for number, block in enumerate(blocks)]
    eots = np.concatenate([np.empty(0, np.int64), *found])
    if eot_first:
        return eots
    first = [] if starts_mid_document else [0]
    starts = np.concatenate([np.array(first, np.int64), eots + 1])
    return starts[starts < len(tokens)]


def file_before(file: TokenFile) -> TokenFile | None:
    """Open the previous file of the stream, found by name; None if there is none."""
    path = PurePosixPath(file.name)
    stem = path.stem.rstrip("0123456789")
    number = path.stem[len(stem) :]
    if number and not number.strip("0"):  # where both splits have a number 0, neither continues the other
        return None
    before = f"{int(number) - 1:0{len(number)}d}" if number else ""
    # The last is torchtitan's, whose training file is just called tokens.bin.
    for name in (f"{stem}{before}", f"{stem.replace('train', 'val')}{before}", f"val_{path.stem}"):
        previous = f"{name}{path.suffix}"
        found = file.folder.store.find(previous) if name != path.stem else None
        if found is not None and found.named:
            return open_file_in(file.folder, previous)
    return None


def _layout_of(name: str) -> Layout | None:
    return next((layout for layout in LAYOUTS.values() if layout.holds_tokens(name)), None)


class _NoTokensError(OSError):
    """Why a file is not a token file, or can't be read as one."""


@contextlib.contextmanager
def _refusing_errors(address: str) -> Iterator[None]:
    """Turn an OSError from reading a file into an InputError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        hint = "Name a token file as listed in docs/layouts.md, or a folder of them."
        raise InputError(f"{address}: {why}.", hint) from error


def _read_start(folder: TokenFolder, name: str) -> tuple[bytes, int]:
    store = folder.store
    found = store.find(name)
    if found is not None and found.named:
        return store.read_range(found, 0, min(found.size_bytes, _START_BYTES)), found.size_bytes
    if store.is_remote:
        raise _NoTokensError("there is no such object" if found is None else "is not finished yet")
    path = store.folder / name
    path.stat()  # raises the reason
    # The store doesn't find pipes either: opening one could block forever.
    raise _NoTokensError("is a folder" if path.is_dir() else "is not a regular file")


def _parse_header(start: bytes, size: int) -> _Contents | None:
    header_bytes = 4 * HEADER_INTS
    header = np.frombuffer(start[:header_bytes].ljust(header_bytes, b"\0"), "<i4").tolist()
    # The magic numbers can't be tokens: they are outside GPT-2's vocabulary.
    known = {magic: (LlmC.name, version, width) for width, (magic, version) in HEADERS.items()}
    known[automodel.MAGIC] = (automodel.Automodel.name, automodel.VERSION, header[3])
    if start.startswith(_NPY_MAGIC):
        contents = _parse_npy_header(start, size)
    elif header[0] in known:
        kind, version, width_bytes = known[header[0]]
        if header[1] != version:
            raise _NoTokensError(f"has version {header[1]} in its header, not {version}: it can't be read")
        if width_bytes not in HEADERS:
            raise _NoTokensError(f"has tokens of {width_bytes:,} bytes, according to its header")
        contents = kind, header_bytes, header[2], unsigned_dtype(width_bytes)
    else:
        return None
    _, first_byte, tokens, dtype = contents
    if tokens < 0 or first_byte + tokens * dtype.itemsize != size:
        raise _NoTokensError(f"is {size:,} bytes long, but its header says {tokens:,} tokens")
    return contents


def _parse_npy_header(start: bytes, size: int) -> _Contents:
    """Parse an NPY 1.0 header: magic, version, length of the header, a Python dictionary. NumPy's own parser raises
    half a dozen kinds of errors for a damaged one."""
    version, rest = start[len(_NPY_MAGIC) :][:2], start[len(_NPY_MAGIC) + 2 :]
    if version != b"\1\0":
        raise _NoTokensError(f"has the NPY version {'.'.join(map(str, version))}, not 1.0")
    length = int.from_bytes(rest[:2], "little")
    header_bytes = len(_NPY_MAGIC) + 4 + length
    if length > _LONGEST_NPY_HEADER or header_bytes > size:
        raise _NoTokensError(f"has a damaged NPY header ({length:,} bytes long)")
    try:
        header = ast.literal_eval(rest[2 : 2 + length].decode("latin-1").strip())
        dtype, (tokens,) = header["descr"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise _NoTokensError(f"has a damaged NPY header, or is not {_ROW}") from error
    if not isinstance(dtype, str) or dtype not in _NPY_DTYPES or type(tokens) is not int or tokens < 0:
        raise _NoTokensError(f"holds {dtype!r:.40} of shape {header['shape']!r:.40}, not {_ROW}")
    return "npy", header_bytes, tokens, _NPY_DTYPES[dtype]


def _find_bare_tokens(folder: TokenFolder, name: str, start: bytes, size: int) -> _Contents:
    """Treat a file with a layout's name but no known header as bare tokens, or as one with that layout's header."""
    layout, manifest = _layout_of(name), folder.manifest
    if layout is None:
        raise _NoTokensError("has neither a known header nor the name of a layout without headers")
    if layout.header_bytes:  # files with this name have the layout's own header
        shard_format = ShardFormat(layout, manifest.vocabulary if manifest else GPT2)
        tokens, rest = shard_format.tokens_in(size)
        if rest or tokens < 0 or start[: layout.header_bytes] != shard_format.header(tokens):
            raise _NoTokensError(f"has no header, or a damaged one; with this name {layout.name} reads one")
        return layout.name, layout.header_bytes, tokens, shard_format.read_dtype
    if manifest:
        dtype = manifest.shard_format.read_dtype
    elif layout.suffix == Layout.suffix:
        dtype = layout.bare_dtype or GPT2.dtype
    else:  # OLMo-core and datatrove read tokens of any width
        raise _NoTokensError("has no header, and no manifest of a build beside it gives the width of its tokens")
    if size % dtype.itemsize:
        raise _NoTokensError(f"is not a file of {dtype.name} tokens ({size:,} bytes)")
    return "raw", 0, size // dtype.itemsize, dtype
