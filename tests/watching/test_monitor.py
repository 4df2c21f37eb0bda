"""The monitor: every state reaches the heartbeat, and nothing it does can end a run."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from fineweb_shards.errors import Interrupted, NetworkError
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.report.contents import FILE_NAME as REPORT
from fineweb_shards.report.page import closing_lines, write_report
from fineweb_shards.system import durable
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.types import Cursor
from fineweb_shards.watching import monitor as monitor_module
from fineweb_shards.watching.monitor import Monitor
from fineweb_shards.watching.progress import Progress, Total
from fineweb_shards.watching.run_files import (
    EventLog,
    Heartbeat,
    History,
    Snapshot,
    State,
    current_invocation,
    last_lines,
    load_heartbeat,
    load_history,
)
from fineweb_shards.watching.screen import Screen
from tests.support import reference, runs
from tests.support.doubles import InlineExecutor
from tests.support.inputs import write_jsonl, write_parquet, write_text


class ThreeWorkers(InlineExecutor):
    """Says that three are at work."""

    workers = 3


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Monitor, Progress, Path]:
    """A monitor whose threads never look by themselves: the test says when."""
    monkeypatch.setattr(monitor_module, "LOOK_EVERY_SECONDS", 3600.0)
    monkeypatch.setattr(monitor_module, "HEARTBEAT_EVERY_SECONDS", 0.0)
    job = runs.job_of(tmp_path / "out", write_text(tmp_path / "a.txt", ["one", "two"]), shard_tokens=100)
    (job.folder / WORK_FOLDER).mkdir(parents=True)
    history = History()
    history.begin_run()
    progress = Progress(EventLog(job.folder), None, history)
    progress.expect(Total(1000, exact=True), job.source.share_before)
    page = partial(write_report, FolderStore(job.folder)), partial(closing_lines, job.output.store)
    monitor = Monitor(
        job.output, progress, ThreeWorkers(job.source, runs.encoder()), current_invocation("build it"), *page
    )
    return monitor, progress, job.folder


def beat_of(folder: Path) -> Heartbeat:
    found = load_heartbeat(folder)
    assert found is not None
    return found


def test_every_state_reaches_the_heartbeat(watched: tuple[Monitor, Progress, Path]) -> None:
    """starting, encoding, waiting for one thing and another, verifying, complete."""
    monitor, progress, folder = watched

    def seen() -> str:
        monitor._update()
        snapshot = beat_of(folder).snapshot
        return snapshot.reason or snapshot.state

    runs.build_inline(folder, folder.parent / "a.txt", shard_tokens=100)  # for a manifest
    with FolderLock(folder), monitor:
        assert beat_of(folder).snapshot.state == "starting"
        assert seen() == "starting"
        progress.advance(150, 1, (Cursor(0, 3),))
        assert seen() == "encoding"
        progress.set_wait("network", "waiting for the network since 02:13")
        progress.set_wait("memory", "paused for memory since 02:14")
        assert seen() == "waiting for the network since 02:13; paused for memory since 02:14"
        progress.set_wait("network", None)
        assert seen() == "paused for memory since 02:14"
        progress.set_wait("memory", None)
        assert seen() == "encoding"
        progress.verifying = True
        assert seen() == "verifying"
    last = beat_of(folder)
    assert (last.snapshot.state, last.exit_code, last.invocation.command) == ("complete", 0, "build it")
    assert "complete since" in (folder / WORK_FOLDER / REPORT).read_text()
    assert (last.snapshot.tokens, last.snapshot.shard, last.snapshot.workers) == (150, 1, 3)
    assert [mark.cause for mark in load_history(folder).marks] == ["network", "memory"]


def test_waiting_is_no_work(watched: tuple[Monitor, Progress, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No time left while it waits; what was waited for is counted, but not the seconds in which others went on; the
    speed stays that of the work."""
    monitor, progress, folder = watched
    now = [monitor_module.time.monotonic()]
    monkeypatch.setattr(monitor_module.time, "monotonic", lambda: now[0])

    def after(seconds: float, tokens: int) -> Snapshot:
        now[0] += seconds
        if tokens:
            progress.advance(tokens, 1, (Cursor(0, 3),))
        monitor._update()
        return monitor._take_snapshot(*monitor._state())

    with FolderLock(folder), monitor:
        after(1, 10)
        after(1, 10)
        assert after(1, 10).seconds_left == pytest.approx(97)
        progress.set_wait("network", "waiting")
        after(1, 10)  # another worker goes on
        still = after(600, 0)
        assert still.state == State.WAITING
        assert still.seconds_left is None
        assert still.tokens_per_second == pytest.approx(10)
        assert progress.waited_seconds == pytest.approx(600)
        progress.set_wait("network", None)
        assert after(1, 10).seconds_left == pytest.approx(95)
    assert progress.waited_seconds == pytest.approx(600)


def test_fetched_bytes_are_counted(watched: tuple[Monitor, Progress, Path]) -> None:
    """From any thread, into snapshot and history."""
    monitor, progress, folder = watched
    with FolderLock(folder), monitor:
        progress.advance(150, 1, (Cursor(0, 3),))
        progress.add_fetched(1000)
        progress.add_fetched(234)
        monitor._update()
        assert beat_of(folder).snapshot.fetched_bytes == 1234
    assert load_history(folder).runs[-1].fetched_bytes == 1234


class Heard(Screen):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (None, "complete"),
        (Interrupted("Interrupted.", 130), "interrupted by Ctrl-C"),
        (Interrupted("Interrupted.", 143), "interrupted by SIGTERM"),
        (NetworkError("No luck."), "stopped, exit code 10: No luck."),
        (ZeroDivisionError("0/0"), "stopped, ZeroDivisionError: 0/0"),
    ],
)
def test_the_last_words_name_the_report_and_the_waits(
    watched: tuple[Monitor, Progress, Path], error: BaseException | None, ending: str
) -> None:
    """After an interruption or an error; the summary does it otherwise."""
    monitor, progress, folder = watched
    progress.screen = heard = Heard()
    runs.build_inline(folder, folder.parent / "a.txt", shard_tokens=100)  # for a manifest
    with contextlib.suppress(BaseException), FolderLock(folder), monitor:
        progress.advance(100, 0, (Cursor(0, 0),))
        progress.set_wait("network", "waiting for the network since 02:13")
        if error is not None:
            raise error
    assert load_history(folder).runs[-1].ending == ending
    page = folder / WORK_FOLDER / REPORT
    expected = ["waited     under 1 s for the network, once", f"report     {page}"] if error else []
    assert heard.lines == expected


@pytest.mark.parametrize(
    ("error", "code"),
    [(NetworkError("No luck."), 10), (Interrupted("Interrupted.", 130), 130), (ZeroDivisionError("0/0"), 1)],
)
def test_the_end_is_told_however_it_comes(
    watched: tuple[Monitor, Progress, Path], error: BaseException, code: int
) -> None:
    """With its exit code and message, and with a last page."""
    monitor, _, folder = watched
    runs.build_inline(folder, folder.parent / "a.txt", shard_tokens=100)
    with pytest.raises(type(error)), FolderLock(folder), monitor:
        raise error
    last = beat_of(folder)
    assert (last.snapshot.state, last.exit_code) == ("stopped", code)
    assert str(error) in last.snapshot.reason
    page = (folder / WORK_FOLDER / REPORT).read_text()
    assert 'class="state complete"' in page  # the manifest was, before
    assert str(error) in page
    assert 'http-equiv="refresh"' not in page


def test_what_cannot_be_written_stays_unwritten(
    watched: tuple[Monitor, Progress, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ends neither the monitor nor the run; it is logged, once, and passes."""
    monitor, progress, folder = watched

    def refuse(path: Path, mode: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(monitor_module, "HISTORY_EVERY_SECONDS", 0.0)
    with FolderLock(folder), monitor:
        with monkeypatch.context() as full:
            full.setattr(durable, "open_own", refuse)
            progress.advance(150, 1, (Cursor(0, 3),))
            for _ in range(3):
                monitor._update()
            assert beat_of(folder).snapshot.state == "encoding"  # it was overwritten where it is
            assert load_history(folder).runs == []
        monitor._update()
        assert load_history(folder).runs[-1].last_tokens == 150
    assert beat_of(folder).snapshot.state == "complete"
    complaints = [line for line in last_lines(folder, 50) if "could not write" in line]
    assert len(complaints) == 1
    assert "No space left" in complaints[0]


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), SystemExit(0)])
@pytest.mark.parametrize("part", ["_take_snapshot", "_state", "_is_due"])
def test_a_look_that_fails_is_logged_and_the_next_one_comes(
    watched: tuple[Monitor, Progress, Path], monkeypatch: pytest.MonkeyPatch, part: str, error: BaseException
) -> None:
    """In its own thread: it goes on looking, and the heartbeat comes back when the fault is gone."""
    monitor, progress, folder = watched
    monkeypatch.setattr(monitor_module, "LOOK_EVERY_SECONDS", 0.001)
    threads = {monitor._thread, monitor._reporter}
    failures = []
    again = threading.Event()
    right = getattr(Monitor, part)

    def fail(self: object, *arguments: object) -> object:
        if threading.current_thread() in threads and len(failures) < 2:
            failures.append(1)
            raise error
        if failures:
            again.set()
        return right(self, *arguments)

    monkeypatch.setattr(Monitor, part, fail)
    with FolderLock(folder), monitor:
        progress.advance(150, 1, (Cursor(0, 3),))
        assert again.wait(60)
    assert beat_of(folder).snapshot.state == "complete"
    complaints = [line for line in last_lines(folder, 50) if type(error).__name__ in line]
    assert len(complaints) == 1


def test_shards_that_cannot_be_read_keep_nobody_waiting(
    watched: tuple[Monitor, Progress, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the report waits for a store that says nothing, the heartbeat goes on, and the run can end."""
    monitor, progress, folder = watched
    monkeypatch.setattr(monitor_module, "LOOK_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(monitor_module, "_LONGEST_JOIN_AFTER_ERROR_SECONDS", 0.01)
    silent = threading.Event()

    def write(*, alive: bool) -> None:
        if alive:
            silent.set()
            threading.Event().wait()

    monkeypatch.setattr(monitor, "write_report", write)
    monitor._next_time["report"] = 0.0
    with contextlib.suppress(Interrupted), FolderLock(folder), monitor:
        assert silent.wait(60)
        progress.advance(150, 1, (Cursor(0, 3),))
        # The monitor's own thread may still be writing what it has seen before.
        assert runs.wait_until(lambda: beat_of(folder).snapshot.state == "encoding")
        raise Interrupted("Interrupted.", 130)
    assert beat_of(folder).exit_code == 130


def test_an_interrupt_is_not_taken_for_a_fault(
    watched: tuple[Monitor, Progress, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the first heartbeat is written ends the run like any other."""
    monitor, _, folder = watched

    def stop(self: Monitor, *arguments: object) -> None:
        raise Interrupted("Interrupted.", 130)

    monkeypatch.setattr(Monitor, "_write_heartbeat", stop)
    with FolderLock(folder), pytest.raises(Interrupted):
        monitor.__enter__()


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "text"])
def test_the_total_is_corrected_by_what_was_read(tmp_path: Path, kind: str) -> None:
    """A guess that is wrong by half is right at the end, for every kind of file; never below what is done."""
    documents = ["some words, and then some more of them " * 20] * 200
    write = {"parquet": write_parquet, "jsonl": write_jsonl, "text": write_text}[kind]
    inputs = [write(tmp_path / f"{i}.{kind.replace('text', 'txt')}", documents) for i in range(3)]
    job = runs.job_of(tmp_path / "out", *inputs, batch_bytes=4096)
    truth = len(reference.stream(documents)) * 3
    (job.folder / WORK_FOLDER).mkdir(parents=True)
    progress = Progress(EventLog(job.folder))
    progress.expect(Total(truth // 2), job.source.share_before)
    for batch in job.source.batches(runs.START):
        share = job.source.share_before((Cursor(batch.file, batch.end),))
        assert share is not None
        progress.advance(round(truth * share) - progress.tokens, 0, (Cursor(batch.file, batch.end),))
        expected = progress.expected_tokens()
        assert expected is not None
        assert expected >= progress.tokens
        if share > 0.3:
            assert expected == pytest.approx(truth, rel=0.05)
    assert progress.tokens == truth
