"""Untrusted text is shown safely."""

from __future__ import annotations

from pathlib import Path

import pytest

from fineweb_shards.system.terminal import cells, clip, safe_text, shown_on, wrap
from tests.support import inline
from tests.support.inputs import write_parquet
from tests.support.payloads import PAYLOADS

RESUME = "resume with: fineweb-shards build --input 'a file with spaces.txt' --out out --shard-tokens 1000000"


@pytest.mark.promise("untrusted text is shown safely")
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_control_character_survives(payload: str) -> None:
    """No escape, bidi override, line break or half character reaches a terminal."""
    shown = safe_text(f"before {payload} after", 60)
    assert shown.isprintable()
    assert shown.startswith("before")


def test_length() -> None:
    """Never wider than asked for."""
    assert safe_text("word " * 100, 20) == "word word word word…"


def test_a_cut_falls_between_words() -> None:
    """Unless the text has none."""
    assert safe_text("changes. Each line is of the form", 24) == "changes. Each line is…"
    assert safe_text("x" * 100, 20) == "x" * 19 + "…"


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_lines_are_broken_between_words(columns: int) -> None:
    """Every word whole and in order, no line wider than the terminal, and a row's text stays in its column."""
    text = "machine    2 workers, fastokens 0.3.5, memory budget 4.3 GB of the machine's 16 GB"
    lines = wrap(text, columns)
    assert " ".join(lines).split() == text.split()
    assert max(map(len, lines)) <= columns
    assert all(line.startswith(" " * 11) and line[11] != " " for line in lines[1:])


def test_a_number_keeps_its_unit() -> None:
    """On one line."""
    assert wrap("there were 541.2 MB", 18) == ["there were", "541.2 MB"]


def test_what_is_to_be_copied_stays_whole() -> None:
    """A path longer than the line, and lines of code."""
    path = "/a/path/" + "x" * 100
    assert wrap(f"report     {path}", 60) == [f"report     {path}"]
    code = "    tokens = np.load(" + "x" * 100 + ", mmap_mode='r')"
    assert wrap(code, 60) == [code]


def test_a_command_stays_on_one_line() -> None:
    """So that it can be pasted; the terminal itself breaks it."""
    assert wrap(RESUME, 40) == [RESUME]


def test_wide_characters_take_two_columns() -> None:
    """A clipped line fits whatever it is made of."""
    assert cells("日本語") == 6
    assert cells("e\u0301") == 1
    assert clip("日本語日本語", 8) == "日本語…"
    assert clip("short", 8) == "short"


def test_only_a_terminal_gets_its_lines_broken(tmp_path: Path) -> None:
    """Who reads a pipe or a file wants a line for each thing."""
    with open(tmp_path / "file", "w") as file:
        assert shown_on(file, "word " * 100) == "word " * 100


@pytest.mark.promise("untrusted text is shown safely")
def test_nothing_hostile_leaves_the_program(tmp_path: Path) -> None:
    """Documents, file names and columns full of payloads: what `plan`, `build`, their errors and the log say is
    printable, line by line."""
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
        done = inline.run_command(*words)
        said.append(done.stdout + done.stderr)
        assert "Traceback" not in done.stderr
    log = (out / ".fineweb-shards" / "log.txt").read_text("utf-8")
    for text in (*said, log):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "·[" in "".join(said)
