"""The log: readable, bounded, and never in the way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fineweb_shards.events import Event
from fineweb_shards.watching import run_files
from fineweb_shards.watching.run_files import EventLog, last_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".fineweb-shards").mkdir()
    return tmp_path


def test_one_line_an_event(folder: Path) -> None:
    """With date, time and kind; nothing in a text can make a second line or an escape sequence."""
    log = EventLog(folder)
    log.write(Event("start", "first"))
    log.write(Event("note", "two\nlines \x1b[31mred\x1b[0m \u202e"))
    lines = last_lines(folder, 10)
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", line) for line in lines] == [
        "TIME  start      first",
        "TIME  note       two | lines ·[31mred·[0m ·",
    ]


def test_its_size_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a run, two files of a certain size; the newest lines are always there."""
    monkeypatch.setattr(run_files, "MAXIMUM_LOG_BYTES", 1000)
    log = EventLog(folder)
    for number in range(500):
        log.write(Event("note", f"event {number} " + "x" * (5000 if number == 250 else 20)))
    files = sorted((folder / ".fineweb-shards").iterdir())
    assert [file.name for file in files] == ["log.old.txt", "log.txt"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert "event 499" in last_lines(folder, 1)[0]


def test_a_line_that_the_disk_cannot_take_comes_later(folder: Path) -> None:
    """An account with a gap would be read wrongly the next morning."""
    log = EventLog(folder)
    work = folder / ".fineweb-shards"
    work.rename(folder / "away")
    log.write(Event("disk", "full"))
    (folder / "away").rename(work)
    log.write(Event("disk", "space again"))
    assert [line.split(maxsplit=3)[3] for line in last_lines(folder, 5)] == ["full", "space again"]


def test_no_log_no_lines(tmp_path: Path) -> None:
    """Asking for the end of a log that is not there is no error."""
    assert last_lines(tmp_path, 5) == []
