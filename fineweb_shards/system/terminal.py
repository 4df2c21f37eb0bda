"""Prepare text for a terminal: remove control characters, and break or clip lines that are too long. Tell whether
a terminal can redraw them."""

from __future__ import annotations

import bisect
import itertools
import os
import re
import textwrap
import unicodedata
from typing import TextIO

# Lines such as `input      3 files` continue in the column of the value.
_LABEL = re.compile(r"(?:[A-Za-z][a-zA-Z ]{0,8}? {2,}|document \d )(?=\S)")
_LABEL_COLUMNS = 11
# Lines with a shell command, which is left whole so that it can be pasted.
_COMMAND = re.compile(r"resume(?: with: | {5})")
# The space between a number and its unit, where no line is broken.
_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]?B|bytes|s|min|h|d|%|times)(?:\W|$))")
_GLUE = "\N{WORD JOINER}"
_CODE_INDENT = "    "
# What a kernel sets for the commands of its cells. The first is set by Jupyter, which starts the kernel, and not by an
# editor that starts one itself; the last three by the kernel (ipykernel, `init_environment`).
_NOTEBOOK_MARKS = ("JPY_PARENT_PID", "COLAB_RELEASE_TAG")
_KERNEL_SETS = {"TERM": "xterm-color", "PAGER": "cat", "GIT_PAGER": "cat"}


def can_redraw(stream: TextIO) -> bool:
    """Tell whether lines of the output to `stream` can be replaced afterwards. Notebooks and some CI services run
    commands in a terminal of their own, so that `isatty` alone does not tell."""
    is_dumb, is_ci = os.environ.get("TERM") == "dumb", os.environ.get("CI", "").lower() not in ("", "0", "false")
    return stream.isatty() and not is_dumb and not is_ci and not in_notebook()


def in_notebook() -> bool:
    """Tell whether this is a command in a cell of a notebook."""
    is_kernel = all(os.environ.get(name) == value for name, value in _KERNEL_SETS.items())
    return is_kernel or any(os.environ.get(name) for name in _NOTEBOOK_MARKS)


def printable(text: str) -> str:
    """Replace everything but printable characters and line breaks by `·`, also in file names and keys."""
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)


def safe_text(text: str, width: int) -> str:
    """Return the beginning of `text` on one line of at most about `width` characters, cut between words if it has any;
    unprintable characters become `·`."""
    words = " ".join(text[: 8 * width].split())
    line = "".join(char if char.isprintable() else "·" for char in words)
    return line if len(line) <= width else cut_at_word(line[:width]) + "…"


def cut_at_word(text: str) -> str:
    """Drop the last word of a text that was cut off, because it may be half a word. Text without spaces loses one
    character, which leaves space for `…`."""
    whole = re.match(r".*\S(?=\s)", text, re.S)
    return whole[0] if whole and len(whole[0]) > len(text) // 2 else text[:-1]


def shown_on(stream: TextIO, text: str) -> str:
    """Return the text as it is safe to write to `stream`: printable and, in a terminal, wrapped."""
    text = printable(text)
    if not stream.isatty():
        return text
    columns = terminal_size(stream).columns
    return "\n".join(piece for line in text.split("\n") for piece in wrap(line, columns))


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Return the size of the terminal of `stream`; the variables COLUMNS and LINES have precedence."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # no terminal, or a closed one
        size = os.terminal_size((0, 0))
    texts = os.environ.get("COLUMNS", ""), os.environ.get("LINES", "")
    columns, lines = (int(text) if text.isdecimal() else 0 for text in texts)
    return os.terminal_size((columns or size.columns or 80, lines or size.lines or 24))


def wrap(line: str, columns: int, *, hang: int | None = None, break_words: bool = False) -> list[str]:
    """Break a line between words into lines of at most `columns`; the later ones are indented by `hang`. A longer word,
    such as a path, stays whole unless `break_words`. Code and commands are not broken, so that they can be pasted."""
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
    """Count the columns that a printable text takes: two for a Chinese character, none for an accent."""
    return sum(_cells_of(char) for char in text)


def clip(text: str, columns: int) -> str:
    """Cut the text to `columns`, with `…` at the end if something is missing."""
    if cells(text) <= columns:
        return text
    ends = list(itertools.accumulate(_cells_of(char) for char in text))
    return text[: bisect.bisect_right(ends, columns - 1)] + "…"


def _cells_of(char: str) -> int:
    if char.isascii():
        return 1
    return 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
