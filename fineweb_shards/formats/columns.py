"""Choose the columns that make a document: a single one by name, or several by `--template`. No I/O.

`a.b` is the column or key of that name or, without one, the field `b` of the struct `a`, to any depth. A field of a
null struct is null. Lists and maps have no fields.

A template is text with `{column}` in it. `{{` and `}}` are braces, as in Python's format strings; their other features
are not supported.
"""

from __future__ import annotations

import string
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from fineweb_shards.errors import UsageError

MOST_CHARACTERS = 10_000
_EXAMPLE = r"For example: --template '{title}\n\n{text}'"


@dataclass(frozen=True, slots=True)
class Template:
    """The columns of a document, each once, and the text around them."""

    columns: tuple[str, ...]
    literals: tuple[bytes, ...]  # before each column, and after the last one

    @property
    def literal_bytes(self) -> int:
        return sum(map(len, self.literals))

    def fill(self, texts: Sequence[bytes | None]) -> bytes | None:
        """Return the document for the columns' texts; None if all are null. A single null counts as empty."""
        if all(text is None for text in texts):
            return None
        pairs = zip(self.literals, (*texts, None), strict=True)
        return b"".join([literal + text if text else literal for literal, text in pairs])


def parse_template(text: str) -> Template:
    if not text:
        raise UsageError("--template is empty.", _EXAMPLE)
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"--template: {len(text):,} characters are too many; {MOST_CHARACTERS:,} are allowed.")
    shown = f"--template {text if len(text) <= 80 else text[:80] + '…'!r}"
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError:
        raise UsageError(f"{shown}: unmatched brace.", "Write {column}, and {{ or }} for a brace.") from None
    columns: list[str] = []
    literals = [""]
    for literal, column, form, conversion in pieces:
        literals[-1] += literal
        if column is None:
            continue
        if form or conversion:
            typed = column + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise UsageError(f"{shown}: {{{typed}}} has a format, which text can't have.", f"Write {{{column}}}.")
        if not column:
            raise UsageError(f"{shown}: {{}} names no column.", "Write {column}, and {{}} for two braces.")
        if column in columns:  # otherwise a document could take many times the memory of its row
            raise UsageError(f"{shown}: {{{column}}} occurs twice.", "Name each column once.")
        columns.append(column)
        literals.append("")
    if not columns:
        raise UsageError(f"{shown}: without a {{column}} all documents would be the same.", _EXAMPLE)
    return Template(tuple(columns), tuple(literal.encode() for literal in literals))


def find_value(row: Any, name: str, default: Any = None) -> Any:
    """Return a value of a JSON object; `default` if there is no such key."""
    if not isinstance(row, dict):
        return default
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    if not dot or outer not in row:
        return default
    return None if row[outer] is None else find_value(row[outer], inner, default)


def outer_name(names: Container[str], name: str) -> str:
    """Return the name of a column or, for a field, that of the column it belongs to."""
    return name if name in names else name.partition(".")[0]


def take_column(rows: Any, name: str) -> Any:
    """Return a column of a RecordBatch by its exact name: pyarrow also finds `a` for `a.b`."""
    import pyarrow as pa  # here: the command line parses templates without it

    names = rows.schema.names
    if name in names:
        return rows.column(names.index(name))
    outer, _, inner = name.partition(".")
    struct = rows.column(names.index(outer))
    # `flatten` makes the fields of a null struct null.
    return take_column(pa.RecordBatch.from_arrays(struct.flatten(), [field.name for field in struct.type]), inner)
