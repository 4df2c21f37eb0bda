"""Text from documents, made safe to show: no escape sequence, no bidi trick, no line break survives."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` without anything but printable characters and line breaks: file names and keys are data
    too."""
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)


def safe_text(text: str, width: int) -> str:
    """At most `width` characters of `text` on one line; what is not plainly printable becomes `·`."""
    words = " ".join(text[: 8 * width].split())
    line = "".join(char if char.isprintable() else "·" for char in words)
    return line if len(line) <= width else line[: width - 1] + "…"
