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
    bars: Sequence[float] = ()  # of each row, drawn beside its last cell; 1 is the longest

    def without_last_column(self) -> Table:
        return Table(dict(list(self.columns.items())[:-1]), [row[:-1] for row in self.rows], self.heads)


def scale_bars(values: Sequence[float]) -> list[float]:
    """Return the lengths of bars for these values."""
    longest = max(values, default=0)
    return [value / longest if longest else 0.0 for value in values]


def show_moment(seconds: float) -> str:
    """Format seconds since 1970 as `2026-11-17 14:05:09`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
