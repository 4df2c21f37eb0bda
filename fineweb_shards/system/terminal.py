"""Prepare text for a terminal: replace control characters, wrap or clip long lines. Detect notebooks."""

from __future__ import annotations

import bisect
import itertools
import os
import re
import textwrap
import unicodedata
from typing import TextIO

# Lines such as `input      3 files` are wrapped to the column of the value.
_LABEL = re.compile(r"(?:[A-Za-z][a-zA-Z ]{0,8}? {2,}|document \d )(?=\S)")
_LABEL_COLUMNS = 11
# Lines with a shell command stay whole, so that it can be pasted.
_COMMAND = re.compile(r"resume(?: with: | {5})")
# The space between a number and its unit, where lines must not break.
_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]?B|bytes|s|min|h|d|%|times)(?:\W|$))")
_GLUE = "\N{WORD JOINER}"
_CODE_INDENT = "    "
# Variables that commands in notebook cells inherit. Jupyter sets the first when it starts a kernel, but an editor that
# starts one does not; the kernel itself sets the last three (ipykernel, `init_environment`).
_NOTEBOOK_MARKS = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG")
_KERNEL_SETS = {"TERM": "xterm-color", "PAGER": "cat", "GIT_PAGER": "cat"}


def in_notebook() -> bool:
    is_kernel = all(os.environ.get(name) == value for name, value in _KERNEL_SETS.items())
    return is_kernel or any(os.environ.get(name) for name in _NOTEBOOK_MARKS)


def printable(text: str) -> str:
    """Replace everything but printable characters and line breaks with `·`."""
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)


def safe_text(text: str, width: int) -> str:
    """Return the beginning of `text` as one printable line of about `width` characters, cut between words."""
    words = " ".join(text[: 8 * width].split())
    line = "".join(char if char.isprintable() else "·" for char in words)
    return line if len(line) <= width else cut_at_word(line[:width]) + "…"


def cut_at_word(text: str) -> str:
    """Drop the last word of a truncated text; without spaces only a character, to leave space for `…`."""
    whole = re.match(r".*\S(?=\s)", text, re.S)
    return whole[0] if whole and len(whole[0]) > len(text) // 2 else text[:-1]


def shown_on(stream: TextIO, text: str) -> str:
    """Return the text in a form safe to write to `stream`: printable and, in a terminal, wrapped."""
    text = printable(text)
    if not stream.isatty():
        return text
    columns = terminal_size(stream).columns
    return "\n".join(piece for line in text.split("\n") for piece in wrap(line, columns))


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Return the size of the terminal of `stream`; COLUMNS and LINES take precedence."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # no terminal, or a closed one
        size = os.terminal_size((0, 0))
    texts = os.environ.get("COLUMNS", ""), os.environ.get("LINES", "")
    columns, lines = (int(text) if text.isdecimal() else 0 for text in texts)
    return os.terminal_size((columns or size.columns or 80, lines or size.lines or 24))


def wrap(line: str, columns: int, *, hang: int | None = None, break_words: bool = False) -> list[str]:
    """Wrap a line to `columns`, indenting later lines by `hang`. Longer words, such as paths, stay whole unless
    `break_words`; code and commands always do, so that they can be pasted."""
    is_code = line.startswith(_CODE_INDENT) and not break_words and hang is None
    if len(line) <= columns or is_code or _COMMAND.match(line):
        return [line]
    label = _LABEL.match(line)
    start = _LABEL_COLUMNS if label and label.end() == _LABEL_COLUMNS else len(line) - len(line.lstrip())
    hang = start if hang is None else hang
    pieces = textwrap.wrap(
        _UNIT.sub(_GLUE, line[start:]),
        max(1, columns),
        initial_indent=" " * start,
        subsequent_indent=" " * hang,
        break_long_words=break_words,
        break_on_hyphens=False,
    )
    pieces = [piece.replace(_GLUE, " ") for piece in pieces]
    return [line[:start] + pieces[0][start:], *pieces[1:]]


def cells(text: str) -> int:
    """Return the columns that a printable text takes: two for a Chinese character, none for an accent."""
    return sum(_cells_of(char) for char in text)


def clip(text: str, columns: int) -> str:
    """Cut the text to `columns`, with `…` at the end of a truncated one."""
    if cells(text) <= columns:
        return text
    ends = list(itertools.accumulate(_cells_of(char) for char in text))
    return text[: bisect.bisect_right(ends, columns - 1)] + "…"


def _cells_of(char: str) -> int:
    if char.isascii():
        return 1
    return 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
