"""Turn the documents that a Python program passes to `build` into JSON lines, and explain mistakes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, TypeGuard

from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.storage.place import STANDARD_INPUT

Documents = Iterable[str | Mapping[str, Any]]

# Lines are passed on together when they have this many characters, or after this time: a slow iterator must not delay
# the events of the build for long.
_MOST_CHARACTERS = 1 << 20
_MOST_SECONDS = 1.0


def is_documents(value: object) -> TypeGuard[Documents]:
    """Tell whether `input` is documents (else it names files); UsageError if it is neither."""
    paths = list(value) if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(path, (str, PathLike)) for path in paths):
        if any(str(path) == STANDARD_INPUT for path in paths):
            raise UsageError(
                f"input={STANDARD_INPUT!r}: standard input belongs to your program.",
                "Pass documents, such as input=iter(sys.stdin) for one per line.",
            )
        if not paths:
            raise UsageError("input is an empty list.", "Name files, or leave it out.")
        return False
    kind = type(value).__name__
    if hasattr(value, "columns"):
        raise UsageError(
            f"input is a {kind}, which iterates over its columns, not over documents.",
            'Pass its rows as mappings: frame.to_dict("records") in pandas, frame.iter_rows(named=True) in Polars.',
        )
    if isinstance(value, Mapping):
        raise UsageError(
            f"input is a {kind}, which iterates over its keys, not over documents.",
            "Pass a list of documents, each a text or a mapping; of a dataset's splits, one.",
        )
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise UsageError(
            f"input is {value!r:.100} ({kind}).", "Pass a path, a list of paths, or an iterable of texts or mappings."
        )
    return True


def json_lines(documents: Documents, key: str | None) -> Iterator[str]:
    """Yield documents as JSON lines, many at a time. A text becomes a document with this key; with None it is an
    error."""
    lines: list[str] = []
    size, due = 0, time.monotonic() + _MOST_SECONDS
    for number, document in enumerate(documents):
        try:
            lines.append(_json_line(document, key))
        except UsageError as error:
            raise InputError(f"Document {number:,} of input {error.message}.", error.hint) from error
        size += len(lines[-1])
        if size >= _MOST_CHARACTERS or time.monotonic() >= due:
            yield "".join(lines)
            lines, size, due = [], 0, time.monotonic() + _MOST_SECONDS
    yield "".join(lines)


def _json_line(document: object, key: str | None) -> str:
    kind = type(document).__name__
    if isinstance(document, str):
        if key is None:
            raise UsageError(
                "is a text, without keys", "Pass mappings with the keys that template or tokens_column names."
            )
        document = {key: document}
    if isinstance(document, PathLike):
        raise UsageError(f"is a path, {kind}", "For files pass a list of paths: input=list(paths).")
    if not isinstance(document, Mapping):
        wanted = "mappings" if key is None else f"texts, or mappings whose key {key!r} holds the text"
        raise UsageError(f"is {document!r:.100} ({kind})", f"Pass {wanted}.")
    try:
        return json.dumps(dict(document), default=_to_plain) + "\n"
    except (TypeError, ValueError) as error:
        name, value = next((name, value) for name, value in document.items() if not _fits(name, value))
        raise UsageError(
            f"has {name!r}: {value!r:.100} ({type(value).__name__}), which JSON can't hold",
            "Leave the key out if the build does not need it, or convert the value, for example with str().",
        ) from error


def _to_plain(value: Any) -> Any:
    """Convert NumPy scalars and arrays to what JSON can hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(type(value).__name__)


def _fits(name: object, value: object) -> bool:
    try:
        json.dumps({name: value}, default=_to_plain)
    except (TypeError, ValueError):
        return False
    return True
