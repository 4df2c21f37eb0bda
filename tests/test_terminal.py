"""Untrusted text is shown safely."""

from __future__ import annotations

import pytest

from fineweb_shards.terminal import safe_text


@pytest.mark.parametrize(
    "payload", ["\x1b[2J", "\x1b]0;title\x07", "\u202eevil", "\u2066x", "\x9b31m", "\r\n", "\b", "\ud800"]
)
def test_no_control_character_survives(payload: str) -> None:
    """No escape, bidi override, line break or half character reaches a terminal."""
    shown = safe_text(f"before {payload} after", 60)
    assert shown.isprintable()
    assert shown.startswith("before")


def test_length() -> None:
    """Never wider than asked for."""
    assert safe_text("word " * 100, 20) == "word word word word…"
