"""Numbers as people write them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fineweb_shards.units import (
    as_typed,
    parse_bytes,
    parse_count,
    parse_ratio,
    parse_seconds,
    show_bytes,
    show_count,
    show_seconds,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100M", 100_000_000), ("1e8", 100_000_000), ("777_777", 777_777), ("1,000", 1000), ("1.5k", 1500),
        ("16.1k", 16_100), ("1.1M", 1_100_000), ("1e+16", 10**16), ("1,234,567", 1_234_567), (".5M", 500_000),
        ("9007199254740993", 9007199254740993), ("1.3T", 1_300_000_000_000),
    ],
)  # fmt: skip
def test_counts(text: str, number: int) -> None:
    """100M, 1e8 and 100_000_000 are one number."""
    assert parse_count(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("2GiB", 2**31), ("2G", 2**31), ("500MB", 500_000_000), ("64KiB", 65536), ("1024", 1024), ("1.5gib", 3 * 2**29)],
)
def test_sizes(text: str, number: int) -> None:
    """GiB, GB and plain bytes."""
    assert parse_bytes(text) == number


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not a number such as 8, 250_000, 100M or 1e8"),
        ("abc", "'abc' is not a number such as"),
        ("1.5", "'1.5' is not a whole number"),
        ("1e-3", "'1e-3' is not a whole number"),
        ("-3", "'-3' is below 0"),
        ("-1.5M", "'-1.5M' is below 0"),
        ("1e", "'1e' has the unknown unit 'e'; known are k, M, G, B, T"),
        ("10 apples", "'10 apples' has the unknown unit 'apples'"),
        ("1,5M", "'1,5M' is not a number"),
        ("1,00", "'1,00' is not a number"),
        ("1__0", "is not a number"),
        ("1_", "is not a number"),
        ("1.000.000", "is not a number"),
        ("0x10", "'0x10' is not a number"),
        ("nan", "is not a number"),
        ("inf", "is not a number"),
        ("1e400", "'1e400' is too large a number"),
        ("1e999999999", "'1e999999999' is too large a number"),
        ("9" * 5000, "is too large a number"),
        ("٣", "is not a number"),
        ("½", "is not a number"),
    ],
)
def test_what_is_no_whole_number_is_refused(text: str, words: str) -> None:
    """ValueError with the text in it, and what is wrong with it."""
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2GiBs", "unknown unit 'GiBs'; known are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"),
        ("1,5GiB", "'1,5GiB' is not a number"),
        ("0.3", "not a whole number"),
        ("much", "such as 2GiB, 500MB or 1048576"),
    ],
)
def test_what_is_no_size_is_refused(text: str, words: str) -> None:
    """With the units there are."""
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_bytes(text)


def test_times() -> None:
    """With the units that people write."""
    assert [parse_seconds(text) for text in ("90", "90s", "1.5h", "15min", "2d")] == [90, 90, 5400, 900, 172_800]
    with pytest.raises(ValueError, match=re.escape("unknown unit 'fortnights'; known are s, min, h, d")):
        parse_seconds("2fortnights")


@pytest.mark.parametrize(("text", "ratio"), [("0.0005", 0.0005), ("5e-4", 0.0005), ("0.05%", 0.0005), (".5", 0.5)])
def test_ratios(text: str, ratio: float) -> None:
    """Exactly what was written."""
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["", "nan", "inf", "x", "1e-999999999", "1e999999999", "5%%", "٠.٥", "1/0", "0,5"])
def test_what_is_no_ratio_is_refused(text: str) -> None:
    """At once, however large the exponent."""
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_ratio(text)


def test_showing() -> None:
    """Three digits are enough."""
    assert show_count(16_824_603) == "16.8M"
    assert show_count(999) == "999"
    assert show_bytes(33_649_206) == "33.6 MB"
    assert show_seconds(0.2) == "under 1 s"
    assert show_seconds(40) == "40 s"
    assert show_seconds(12_000) == "3 h 20 min"
    assert show_seconds(187_200) == "2 d 4 h"


@pytest.mark.parametrize("parse", [parse_count, parse_bytes, parse_seconds])
@pytest.mark.parametrize("value", [0, 1, 59, 60, 1000, 1024, 3600, 5400, 4 * 2**20, 10**8, 3 * 10**9])
def test_what_is_typed_for_a_number_is_read_as_that_number(parse: Callable[[str], int], value: int) -> None:
    """Whatever the unit, and with the largest one that is exact."""
    assert parse(as_typed(value, parse)) == value
    assert as_typed(3600, parse_seconds) == "1h"
    assert as_typed(4 * 2**20, parse_bytes) == "4MiB"
    assert as_typed(3 * 10**9, parse_count) == "3B"
