"""A table of the report, and the format of times in it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts."""

    columns: Mapping[str, str]  # headings and their kinds: number, name, text, token or hash, see page.css
    rows: Sequence[Sequence[str]]
    heads: bool = False  # the first cell of a row names it


def show_moment(seconds: float) -> str:
    """Format seconds since 1970 as `2026-11-17 14:05:09`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
