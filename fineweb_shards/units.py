"""Numbers as people write and read them: `100M`, `1e8`, `2GiB`, `3 min`."""

from __future__ import annotations

import re
from fractions import Fraction

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_BINARY = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_DECIMAL = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_NUMBER = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e[0-9]+)?)\s*([a-z]*)")


def parse_count(text: str) -> int:
    """`100M`, `1e8`, `100_000_000` or `100000000`; ValueError for anything that is no whole count."""
    return _parse(text, _FACTORS)


def parse_bytes(text: str) -> int:
    """`2GiB`, `500MB`, `2G` (as GiB, like other tools) or a plain number of bytes."""
    short = {letter: 2 ** (10 * i) for i, letter in enumerate(["", "k", "m", "g", "t"])}
    return _parse(text, short | _DECIMAL | _BINARY)


def parse_seconds(text: str) -> int:
    """`90`, `90s`, `15min`, `1h`."""
    return _parse(text, {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400})


def parse_ratio(text: str) -> float:
    """`0.0005`, `5e-4` or `0.05%`."""
    number = text.strip().removesuffix("%")
    try:
        ratio = float(Fraction(number) / (100 if text.strip().endswith("%") else 1))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number") from None
    return ratio


def _parse(text: str, factors: dict[str, int]) -> int:
    match = _NUMBER.fullmatch(text.strip().lower())
    if not match or match[2] not in factors:
        raise ValueError(f"{text!r} is not a number")
    value = float(match[1].replace("_", "").replace(",", "")) * factors[match[2]]
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def show_count(count: float) -> str:
    """`16.8M`: three digits are enough to read."""
    for letter, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g}{letter}" if count < 999.5 * factor else f"{count:,.0f}"
    return f"{count:,.0f}"


def show_number_of(count: int, noun: str) -> str:
    """`1 shard`, `3 shards`, `1,000 batches`."""
    plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def show_bytes(count: float) -> str:
    """`33.6 MB`, in powers of ten like the disks."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"


def show_seconds(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
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
