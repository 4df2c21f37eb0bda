"""Parse and format numbers as people write them: `100M`, `1e8`, `2GiB`, `3 min`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

_COUNTS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_SIZES = {
    "": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SHORT_SIZES = {"k": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}  # `2G` is 2 GiB, as in other tools
_TIMES = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_LONG_TIMES = {"sec": 1, "m": 60, "hour": 3600, "hours": 3600, "day": 86400, "days": 86400}

_MOST_DIGITS = 30  # no count needs more, and exact arithmetic with them would be slow
_DIGITS = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(rf"((?:{_DIGITS})?(?:\.[0-9]*)?)(?:e([+-]?[0-9]+))?\s*([a-z%]*)", re.ASCII)


def parse_count(text: str) -> int:
    """Parse `100M`, `1e8`, `100_000_000` or `100000000`; ValueError for anything that is no whole number."""
    return _parse_whole(text, _COUNTS, {}, "8, 250_000, 100M or 1e8")


def parse_bytes(text: str) -> int:
    """Parse `2GiB`, `500MB`, `2G` (2 GiB, as in other tools) or a plain number of bytes."""
    return _parse_whole(text, _SIZES, _SHORT_SIZES, "2GiB, 500MB or 1048576")


def parse_seconds(text: str) -> int:
    """Parse a duration: `90` or `90s`, `15min`, `1h`."""
    return _parse_whole(text, _TIMES, _LONG_TIMES, "90s, 15min or 1h")


def parse_ratio(text: str) -> float:
    """Parse a share: `0.0005`, `5e-4` or `0.05%`."""
    return float(_parse_share(text, "0.0005, 5e-4 or 0.05%"))


def parse_weight(text: str) -> Fraction:
    """Parse a weight, exactly: `7`, `0.7` or `70%`."""
    return _parse_share(text, "7, 0.7 or 70%")


def _parse_share(text: str, examples: str) -> Fraction:
    number, unit = _parse_number(text, examples)
    if unit not in ("", "%"):
        raise ValueError(f"{text!r} is not a number such as {examples}")
    return number / 100 if unit else number


def _parse_whole(text: str, units: dict[str, int], more_units: dict[str, int], examples: str) -> int:
    """Multiply a number by its unit, exactly: `16.1k` is 16,100. Messages don't list `more_units`."""
    number, unit = _parse_number(text, examples)
    factors = {name.lower(): factor for name, factor in (units | more_units).items()}
    if unit not in factors:
        known = ", ".join(name for name in units if name)
        shown = text.strip()[-len(unit) :]
        raise ValueError(f"{text!r} has the unknown unit {shown!r}; known are {known}")
    value = number * factors[unit]
    if value < 0:
        raise ValueError(f"{text!r} is below 0")
    if value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def _parse_number(text: str, examples: str) -> tuple[Fraction, str]:
    """Return the number as an exact fraction, and its unit in lower case."""
    plain = text.strip().lower()
    sign = -1 if plain.startswith("-") else 1
    match = _NUMBER.fullmatch(plain.removeprefix("-"))
    if not match or match[1] in ("", "."):
        raise ValueError(f"{text!r} is not a number such as {examples}")
    digits, exponent = re.sub("[_,]", "", match[1]), match[2] or "0"
    if len(digits) > _MOST_DIGITS or len(exponent) > 3 or abs(int(exponent)) > _MOST_DIGITS:
        shown = text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}…"
        raise ValueError(f"{shown!r} is too {'small' if exponent.startswith('-') else 'large'} a number")
    return sign * Fraction(digits) * Fraction(10) ** int(exponent), match[3]


def as_typed(value: int, parse: Callable[[str], int]) -> str:
    """Return the shortest text that `parse` reads as this number: `1h`, `4MiB`, `100M`."""
    units = _SIZES if parse is parse_bytes else _TIMES if parse is parse_seconds else _COUNTS
    fitting = [(factor, unit) for unit, factor in units.items() if value and value % factor == 0]
    factor, unit = max(reversed(fitting), key=lambda pair: pair[0], default=(1, ""))
    return f"{value // factor}{unit}"


def show_count(count: float) -> str:
    """Format a count with three significant digits: `16.8M`."""
    for letter, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g}{letter}" if count < 999.5 * factor else f"{count:,.0f}"
    return f"{count:,.0f}"


def show_number_of(count: int, noun: str) -> str:
    """Format a count with its noun: `1 shard`, `3 shards`, `1,000 batches`."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def first_few(names: Sequence[str]) -> str:
    """Return the first three names, and an ellipsis if there are more."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def show_bytes(count: float) -> str:
    """Format a size in powers of ten, as disks are sold: `33.6 MB`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"


def show_seconds(seconds: float) -> str:
    """Format a duration: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
