"""Documents that a Python program gives to a build, for the library: as JSON lines, with mistakes named."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, TypeGuard

from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.storage.place import STANDARD_INPUT

Documents = Iterable[str | Mapping[str, Any]]

# They are passed on when they are this many, or when the first of them is this old: a slow iterator must not hide for
# long what the build has to say.
_MOST_CHARACTERS = 1 << 20
_MOST_SECONDS = 1.0


def is_documents(value: object) -> TypeGuard[Documents]:
    """Tell whether `input` is documents; else it names files. UsageError if it is neither."""
    paths = list(value) if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(path, (str, PathLike)) for path in paths):
        if any(str(path) == STANDARD_INPUT for path in paths):
            raise UsageError(
                f"input={STANDARD_INPUT!r}: standard input belongs to your program.",
                "Pass documents, such as input=iter(sys.stdin) for one in each line.",
            )
        if not paths:
            raise UsageError("input is an empty list.", "Name files, or leave it out.")
        return False
    kind = type(value).__name__
    if hasattr(value, "columns"):
        raise UsageError(
            f"input is a {kind}, which iterates over its columns, and not over documents.",
            'Pass its rows, as mappings: frame.to_dict("records") of pandas, frame.iter_rows(named=True) of Polars.',
        )
    if isinstance(value, Mapping):
        raise UsageError(
            f"input is a {kind}, which iterates over its keys, and not over documents.",
            "Pass a list of documents, each a text or a mapping; of several splits one.",
        )
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise UsageError(
            f"input is {value!r:.100} ({kind}).", "Pass a path, a list of paths, or an iterable of texts or mappings."
        )
    return True


def json_lines(documents: Documents, key: str | None) -> Iterator[str]:
    """Yield documents as JSON lines, many at a time; a text is a document with this key, and with None an error."""
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
                "is a text, without keys", "Pass mappings, with the keys that template or tokens_column names."
            )
        document = {key: document}
    if isinstance(document, PathLike):
        raise UsageError(f"is a path, {kind}", "For files pass a list of paths: input=list(paths).")
    if not isinstance(document, Mapping):
        wanted = "" if key is None else f"texts, or mappings whose key {key!r} holds the text"
        raise UsageError(f"is {document!r:.100} ({kind})", f"Pass {wanted or 'mappings'}.")
    try:
        return json.dumps(dict(document), default=_to_plain) + "\n"
    except (TypeError, ValueError) as error:
        name, value = next((name, value) for name, value in document.items() if not _fits(name, value))
        raise UsageError(
            f"has {name!r}: {value!r:.100} ({type(value).__name__}), which JSON can't hold",
            "Leave the key out if the build needs no such value, or convert it, for example with str().",
        ) from error


def _to_plain(value: Any) -> Any:
    """Return what JSON can hold of a scalar or an array of NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(type(value).__name__)


def _fits(name: object, value: object) -> bool:
    try:
        json.dumps({name: value}, default=_to_plain)
    except (TypeError, ValueError):
        return False
    return True
