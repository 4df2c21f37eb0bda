"""Untrusted text is shown safely."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs
from inputs import write_parquet
from payloads import PAYLOADS

from fineweb_shards.terminal import safe_text


@pytest.mark.promise(24)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_control_character_survives(payload: str) -> None:
    """No escape, bidi override, line break or half character reaches a terminal."""
    shown = safe_text(f"before {payload} after", 60)
    assert shown.isprintable()
    assert shown.startswith("before")


def test_length() -> None:
    """Never wider than asked for."""
    assert safe_text("word " * 100, 20) == "word word word word…"


@pytest.mark.promise(24)
def test_nothing_hostile_leaves_the_program(tmp_path: Path) -> None:
    """Documents, file names and columns full of payloads: what `plan`, `build`, their errors and the log
    say is printable, line by line."""
    texts = [text.encode("utf-8", "replace").decode() for text in PAYLOADS]
    folder = tmp_path / "in\x1b[31m\u202e"
    folder.mkdir()
    write_parquet(folder / "a\x1b]0;x\x07\n.parquet", texts)
    out = tmp_path / "out"
    said = []
    for words in (
        ["plan", "--input", folder, "--out", out],
        ["build", "--input", folder, "--out", out, "--workers", "1"],
        ["build", "--input", folder, "--out", out, "--text-column", "\x1b[2Jnothing"],
        ["build", "--input", folder / "no\x1b[2J", "--out", out],
        ["status", out],
        ["verify", out],
    ):
        done = runs.run_command(*words)
        said.append(done.stdout + done.stderr)
        assert "Traceback" not in done.stderr
    log = (out / ".fineweb-shards" / "log.txt").read_text("utf-8")
    for text in (*said, log):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "·[" in "".join(said)
