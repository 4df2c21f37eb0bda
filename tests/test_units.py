"""Numbers as people write them."""

from __future__ import annotations

import pytest

from fineweb_shards.units import parse_bytes, parse_count, show_bytes, show_count, show_seconds


@pytest.mark.parametrize(
    ("text", "number"),
    [("100M", 100_000_000), ("1e8", 100_000_000), ("777_777", 777_777), ("1,000", 1000), ("1.5k", 1500)],
)
def test_counts(text: str, number: int) -> None:
    """100M, 1e8 and 100_000_000 are one number."""
    assert parse_count(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2GiB", 2**31),
        ("2G", 2**31),
        ("500MB", 500_000_000),
        ("64KiB", 65536),
        ("1024", 1024),
        ("1.5gib", 3 * 2**29),
    ],
)
def test_sizes(text: str, number: int) -> None:
    """GiB, GB and plain bytes."""
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "abc", "1.5", "-3", "1e", "10 apples", "0x10", "nan", "inf", "1e-3"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    """ValueError with the text in it."""
    with pytest.raises(ValueError, match="number"):
        parse_count(text)


def test_showing() -> None:
    """Three digits are enough."""
    assert show_count(16_824_603) == "16.8M"
    assert show_count(999) == "999"
    assert show_bytes(33_649_206) == "33.6 MB"
    assert show_seconds(0.2) == "under 1 s"
    assert show_seconds(40) == "40 s"
    assert show_seconds(12_000) == "3 h 20 min"
    assert show_seconds(187_200) == "2 d 4 h"
