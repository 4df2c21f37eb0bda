"""Parse `--template`: text with `{column}` in it, of which a document is made for each row. No I/O.

`{{` and `}}` are braces, as in Python's format strings; nothing else of these is understood.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

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
        """Return the document of the columns' texts; None if all of them are null. Otherwise a null is empty."""
        if all(text is None for text in texts):
            return None
        pairs = zip(self.literals, (*texts, None), strict=True)
        return b"".join([literal + text if text else literal for literal, text in pairs])


def parse_template(text: str) -> Template:
    """Parse a template; UsageError if it is malformed."""
    if not text:
        raise UsageError("--template is empty.", _EXAMPLE)
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"--template: {len(text):,} characters are too many; {MOST_CHARACTERS:,} are allowed.")
    shown = f"--template {text if len(text) <= 80 else text[:80] + '…'!r}"
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError:
        raise UsageError(f"{shown}: a brace has no other one.", "Write {column}, and {{ or }} for a brace.") from None
    columns: list[str] = []
    literals = [""]
    for literal, column, form, conversion in pieces:
        literals[-1] += literal
        if column is None:
            continue
        if form or conversion:
            typed = column + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise UsageError(f"{shown}: {{{typed}}} has a format, and text is not formatted.", f"Write {{{column}}}.")
        if not column:
            raise UsageError(f"{shown}: {{}} names no column.", "Write {column}, and {{}} for two braces.")
        if column in columns:  # otherwise a document could take many times the memory of its row
            raise UsageError(f"{shown}: {{{column}}} is in it twice.", "Name each column once.")
        columns.append(column)
        literals.append("")
    if not columns:
        raise UsageError(f"{shown}: no {{column}} is in it, so that all documents would be the same.", _EXAMPLE)
    return Template(tuple(columns), tuple(literal.encode() for literal in literals))
