"""Show before a build how a text will be split into documents, by a sample of its beginning.

A wrong separator makes millions of documents out of a few, and every token of them is right: only a person
who sees some of the documents can notice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fineweb_shards.system.terminal import safe_text
from fineweb_shards.units import show_number_of

# Documents that are shorter than a sentence on average are seldom intended.
SENTENCE_BYTES = 100
_NAMES = {"blank": "a blank line", "line": "a line end", "none": "none: a file is a document"}
_SHOWN_CHARACTERS = 66  # in a terminal of 80 columns


@dataclass(frozen=True, slots=True)
class SeparatorPreview:
    """A sample of the text files of an input, and the separators found in them."""

    separators: tuple[str, ...]
    documents: int
    text_bytes: int
    first_documents: tuple[str, ...]

    @property
    def average_bytes(self) -> float:
        return self.text_bytes / max(1, self.documents)

    def rows(self) -> list[tuple[str, str]]:
        """Return name and text of every line to show, with a warning if the documents are very short."""
        rows = [("separator", ", ".join(_NAMES.get(name, repr(name)) for name in self.separators))]
        if self.documents:
            per_megabyte = max(1, round(1e6 / max(1.0, self.average_bytes)))
            documents = show_number_of(per_megabyte, "document")
            rows[0] = ("separator", f"{rows[0][1]} (about {documents} per MB of text)")
        rows += document_rows(self.first_documents)
        if self.documents > 1 and self.average_bytes < SENTENCE_BYTES and self.separators != ("none",):
            rows += _warning(self)
        return rows


def document_rows(documents: Iterable[str]) -> list[tuple[str, str]]:
    """Return rows with the beginnings of the first documents."""
    return [
        (f"document {number}", safe_text(text, _SHOWN_CHARACTERS)) for number, text in enumerate(documents, 1)
    ]


def _warning(separator_preview: SeparatorPreview) -> list[tuple[str, str]]:
    """Return the rows of the warning, in lines that fit 80 columns."""
    average = f"{separator_preview.average_bytes:.0f}"
    lines = [
        ("WARNING", f"a document has {average} bytes on average: less than a sentence."),
        ("", "If that is not what you want, stop and choose another --separator:"),
    ]
    if "line" in separator_preview.separators:
        lines.append(("", "  --separator blank            where blank lines separate them"))
    return [
        *lines,
        ("", "  --separator none             where every file is one document"),
        ("", "  --separator '<|endoftext|>'  or any string between documents"),
    ]
