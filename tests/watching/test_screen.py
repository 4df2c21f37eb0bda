"""What is shown while a run goes on: in a pipe, for programs, not at all, and in a terminal of any width."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from fineweb_shards.events import Event
from fineweb_shards.watching import screen
from fineweb_shards.watching.run_files import State
from tests.support import inline, runs
from tests.support.documents import make_documents
from tests.support.example_run import SNAPSHOT
from tests.support.inputs import write_jsonl, write_parquet

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
DOCUMENTS = make_documents(120, seed=72)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("source") / "a.parquet", DOCUMENTS)


def test_in_a_pipe_there_are_lines_and_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One a minute, however often it is shown, and one for each event."""
    now = [1000.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: now[0])
    lines = screen.LineScreen()
    for _ in range(150):
        now[0] += 1
        lines.show(replace(SNAPSHOT, state=State.WAITING, reason="waiting \x1b[31mfor the network\r"))
    lines.tell(Event("worker", "worker 7 was \x1b[2Jkilled"))
    written = capsys.readouterr()
    assert written.out == ""
    assert not CONTROL.search(written.err)
    first, second, third = written.err.splitlines()
    assert "shard 3: 3.71M of about 10M tokens, 16.8k tokens/s, 6 min left, 2 workers, 731.0 MB" in first
    assert "waiting ·[31mfor the network" in second
    assert third == "worker 7 was ·[2Jkilled"


def test_quiet_shows_the_result_only(source: Path, tmp_path: Path) -> None:
    """Nothing on standard error; the summary on standard output; errors as ever."""
    words = ["--out", tmp_path / "out", "--shard-tokens", "100M", "--quiet"]
    done = inline.run_command("build", "--input", source, *words)
    assert done.stderr == ""
    assert done.stdout.startswith("Done")
    failed = inline.run_command("build", "--input", "nowhere", "--out", tmp_path / "out2", "--quiet")
    assert failed.returncode == 3
    assert "nowhere" in failed.stderr


def test_json_is_for_programs(tmp_path: Path) -> None:
    """Every line of standard output is an object, the last is the result, standard error is empty."""
    words = [
        "build",
        "--input",
        "-",
        "--format",
        "jsonl",
        "--out",
        tmp_path / "out",
        "--workers",
        "1",
        "--shard-tokens",
        "100M",
        "--json",
    ]
    with subprocess.Popen(
        runs.command(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(write_jsonl(tmp_path / "a.jsonl", DOCUMENTS).read_bytes())
        process.stdin.flush()
        lines = []
        while b'"progress"' not in (line := process.stdout.readline()):  # its input has no end before that
            assert line
            lines.append(line)
        process.stdin.close()
        lines += [line, *process.stdout]
        assert process.stderr.read() == b""
    objects = [json.loads(line) for line in lines]
    assert {one["event"] for one in objects} >= {"message", "progress", "result"}
    result = objects[-1]
    assert result["event"] == "result"
    assert result["documents"] == len(DOCUMENTS)
    assert result["tokens"] == json.loads((tmp_path / "out" / "manifest.json").read_text())["totals"]["tokens"]
    progress = next(one for one in objects if one["event"] == "progress")
    assert set(progress) == {"event", "time", *SNAPSHOT.__slots__}


def test_json_tells_errors(tmp_path: Path) -> None:
    """As an object, too; people still find the sentence on standard error."""
    done = inline.run_command("build", "--input", "nowhere", "--out", tmp_path / "out", "--json")
    assert done.returncode == 3
    error = json.loads(done.stdout.splitlines()[-1])
    assert (error["event"], error["exit_code"]) == ("error", 3)
    assert "nowhere" in error["message"]
    assert "nowhere" in done.stderr


def test_quiet_and_json_exclude_each_other(tmp_path: Path) -> None:
    """One of the two."""
    done = inline.run_command("build", "--quiet", "--json", "--out", tmp_path / "out")
    assert done.returncode == 2


NOTEBOOKS = {
    "jupyter": {"TERM": "xterm-color", "JPY_PARENT_PID": "4711"},
    "colab": {"COLAB_RELEASE_TAG": "release-colab_20261110"},
    "a kernel that an editor has started": {"TERM": "xterm-color", "PAGER": "cat", "GIT_PAGER": "cat"},
}


def in_terminal(columns: int, **environment: str) -> str:
    """What the bars write into a terminal of this width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "bars_driver.py"],
        stdin=child, stdout=child, stderr=child,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "", **environment},
    )  # fmt: skip
    os.close(child)
    written = b""
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        written += data
    os.close(parent)
    assert process.wait() == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_bars_fit_the_terminal(columns: int) -> None:
    """No line is wider than the terminal, figures and state are there, and the screen is clean at the end."""
    text = in_terminal(columns)
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain)]
    assert max(map(len, lines)) <= columns
    assert "worker 7 was killed; replaced" in lines
    assert any("37%" in line and "3.71M" in line for line in lines)
    assert any(line.startswith("shard 3") and "71%" in line for line in lines)
    assert any("waiting for" in line for line in lines)
    if columns >= 80:
        assert any("16.8k/s, 6 min left" in line for line in lines)
        assert any("since 02:13" in line for line in lines)
        assert any(line.startswith("verify") and "2 of 3 shards" in line for line in lines)
    assert text.endswith("\r\x1b[2A\x1b[Jthe end\r\n")


REASON = "waiting for the network since 02:13, at most until 03:13: huggingface.co answers 503, try later"


@pytest.mark.parametrize("rows", [4, 12, 24])
@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_wait_is_told_to_its_end(columns: int, rows: int) -> None:
    """Every word of the reason, none broken, in as many lines as it takes; no time left that stands still, no speed
    that is not there, nothing wider or higher than the terminal."""
    waiting = replace(SNAPSHOT, state=State.WAITING, reason=REASON, seconds_left=None)
    lines = screen.make_frame(waiting, columns - 1, rows - 1)
    assert max(map(len, lines)) < columns
    assert len(lines) < rows
    assert "left" not in lines[0]
    assert "/s" not in lines[0]
    told = " ".join(line.strip() for line in lines[1:])
    assert told == REASON or (rows == 4 and REASON.startswith(told))


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120, 200])
def test_the_bars_fill_the_terminal(columns: int) -> None:
    """Both lines have a bar and as much of their text as fits after it; a long text makes the bar shorter."""
    seen = replace(SNAPSHOT, state=State.FETCHING, fetched_bytes_per_second=46.2e6)
    total, shard = screen.make_frame(seen, columns, 24)
    assert len(total) == len(shard) == columns
    assert total.startswith("total      37%|")
    assert shard.startswith("shard 3    71%|")
    if columns >= 80:
        assert total.endswith("| 3.71M of about 10M tokens, 16.8k/s, 6 min left")
        assert shard.endswith("| 2 workers, 731.0 MB, fetching 46.2 MB/s")
    else:
        assert total.endswith("…")


def test_the_start_is_told_once() -> None:
    """The second line says that the run is starting, in front of the bar, and not behind it again."""
    for columns in (40, 80, 200):
        lines = screen.make_frame(replace(SNAPSHOT, state=State.STARTING, shard_tokens=0), columns, 24)
        assert lines[1].startswith("starting")
        assert "\n".join(lines).count("starting") == 1


def test_a_terminal_without_block_characters_gets_other_bars() -> None:
    """Instead of escapes that are ten times as wide."""
    assert any("37%|###" in line for line in in_terminal(80, PYTHONIOENCODING="ascii").splitlines())


def test_fetched_bytes_are_told_in_lines() -> None:
    """Beside the tokens, where the source is a network."""
    seen = replace(SNAPSHOT, state=State.FETCHING, fetched_bytes=10**9, fetched_bytes_per_second=46.2e6)
    assert "16.8k tokens/s, 46.2 MB/s fetched, 6 min left" in screen.describe(seen)
    assert "fetched" not in screen.describe(SNAPSHOT)


def test_colours_are_honest() -> None:
    """Only a wait has one, and not with NO_COLOR."""
    assert "\x1b[33m" in in_terminal(80)
    assert "\x1b[33m" not in in_terminal(80, NO_COLOR="1")


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}, *NOTEBOOKS.values()], ids=str)
def test_a_terminal_that_redraws_nothing_gets_lines(environment: dict[str, str]) -> None:
    """A dumb terminal, the log of a CI service, which keeps everything, and the cell of a notebook: no control
    characters, and nothing at all for a redraw."""
    text = in_terminal(80, **environment).replace("\r\n", "\n")
    assert not CONTROL.search(text)
    assert text.splitlines() == ["worker 7 was killed; replaced", "the end"]
