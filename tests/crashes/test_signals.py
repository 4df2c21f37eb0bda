"""Signals as a terminal sends them: a real one that closes, `nohup`, and an impatient Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_text
from tests.support.promises import Tries

TEXTS = [text for text in make_documents(1500, seed=35) if text]

# Runs the command, and sends it SIGINT inside the `number`th start of a thread, when that thread has begun.
INTERRUPTED_START = """
import signal, sys, threading
from fineweb_shards.commands.main import main

name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
begin, left = getattr(threading, name), int(sys.argv.pop(1))

def start(run, *arguments, **settings):
    global left
    begun = begin(run, *arguments, **settings)
    left -= threading.current_thread() is threading.main_thread()
    if left == 0:
        left = -1
        run.__self__._started.wait()
        signal.raise_signal(signal.SIGINT)
    return begun

setattr(threading, name, start)
sys.exit(main())
"""


# Runs the program as `python -m` (or pip's script, which imports the entry point) does, and sends it SIGINT when a
# module is about to be imported.
INTERRUPTED_IMPORT = """
import importlib, runpy, signal, sys

class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)

module, entry = sys.argv[1:3]
del sys.argv[1:3]
sys.meta_path.insert(0, Interruption())
if entry == "-m":
    runpy.run_module("fineweb_shards", run_name="__main__", alter_sys=True)
name, _, function = entry.partition(":")
sys.exit(getattr(importlib.import_module(name), function)())
"""
# Runs the command, and sends it SIGINT when it is about to call a function.
INTERRUPTED_CALL = """
import functools, importlib, signal, sys
from fineweb_shards.commands.main import main

module, _, path = sys.argv.pop(1).partition(":")
*parents, name = path.split(".")
owner = functools.reduce(getattr, parents, importlib.import_module(module))
call = getattr(owner, name)

def interrupted(*arguments, **settings):
    signal.raise_signal(signal.SIGINT)
    return call(*arguments, **settings)

setattr(owner, name, interrupted)
sys.exit(main())
"""
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("source") / "a.txt", TEXTS)


def build_words(source: Path, out: Path, *more: str) -> list[str]:
    return [
        "build", "--input", str(source), "--out", str(out),
        "--shard-tokens", "50k", "--engine", "tiktoken", "--batch-bytes", "8k", "--workers", "1", *more,
    ]  # fmt: skip


def expected_shards(source: Path) -> dict[str, bytes]:
    texts = [text for text in source.read_text().split("<|endoftext|>") if text]
    return reference.shard_files(reference.stream(texts), 50_000)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)


def write_without_end(pipe: Path, data: bytes) -> None:
    """So that the run that reads it is at work until it is ended."""
    with contextlib.suppress(BrokenPipeError), open(pipe, "wb") as file:
        while True:
            file.write(data)


class Terminal:
    """A real one, in which a command runs as it would in yours; what it writes is collected."""

    def __init__(self, words: list[str]) -> None:
        self.parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            words, stdin=child, stdout=child, stderr=child, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": ""},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(child)
        self.written = b""
        self._closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while not self._closing:
                if select.select([self.parent], [], [], 0.02)[0]:
                    self.written += os.read(self.parent, 65536)
        except OSError:
            return  # the other side is closed

    def close(self) -> None:
        """As a person closes a window."""
        self._closing = True
        self._reader.join(60)
        os.close(self.parent)

    def type(self, keys: bytes) -> None:
        os.write(self.parent, keys)

    def wait(self) -> int:
        code = self.process.wait(timeout=600)
        self._reader.join(60)
        return code


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        if terminal.process.poll() is None:
            os.killpg(terminal.process.pid, signal.SIGKILL)


@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_a_terminal_that_closes_ends_the_run_cleanly(tmp_path: Path, source: Path, terminals: list[Terminal]) -> None:
    """Exit code 129, a last line in the log, `status` knows; then the same bytes."""
    for attempt in range(20):  # on a busy machine the run may be complete before the terminal is closed
        out = tmp_path / f"out{attempt}"
        terminal = Terminal(runs.command(*build_words(source, out)))
        terminals.append(terminal)
        wait_for(out / "manifest.json", terminal.process)
        terminal.close()
        if code := terminal.process.wait(timeout=600):
            break
    assert code == 129
    log = (out / ".fineweb-shards" / "log.txt").read_text().splitlines()
    assert log[-1].endswith("The terminal was closed. Everything finished is kept")
    status = inline.run_command("status", out)
    assert "with exit code 129: The terminal was closed." in status.stdout
    assert inline.run_command(*build_words(source, out)).returncode == 0
    assert runs.shards_in(out) == expected_shards(source)


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_hangups_come_in_numbers(tmp_path: Path, source: Path) -> None:
    """From the kernel, the shell and a session that ends: SIGHUP, SIGHUP and SIGTERM are one wish."""
    out = tmp_path / "out"
    process = subprocess.Popen(
        runs.command(*build_words(source, out)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    wait_for(out / "manifest.json", process)
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode in (129, 143), errors
    assert b"Traceback" not in errors
    assert b"resume with: " in errors
    log = (out / ".fineweb-shards" / "log.txt").read_text().splitlines()
    assert log[-1].endswith("Everything finished is kept")


@pytest.mark.full
def test_nohup_goes_on(tmp_path: Path, source: Path) -> None:
    """What ignores a closed terminal from its beginning ignores it to its end, and so do its workers."""
    out = tmp_path / "out"
    words = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *runs.command(*build_words(source, out))]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for(out / "manifest.json", process)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(timeout=600) == 0
    log = (out / ".fineweb-shards" / "log.txt").read_text()
    assert "killed by signal" not in log


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
@pytest.mark.parametrize(
    "moment",
    [
        "fineweb_shards.watching.monitor:Monitor.__exit__",
        "fineweb_shards.watching.run_files:History.end_run",
        "fineweb_shards.run.build:Outcome",
        "fineweb_shards.commands.build:print_result",
    ],
)
def test_ctrl_c_when_all_is_done_changes_nothing(tmp_path: Path, source: Path, moment: str) -> None:
    """Once everything is made and verified, the exit code is 0, and the result is shown."""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_CALL, moment, *build_words(source, out)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, "Done and verified" in done.stdout) == (0, True), done.stderr
    assert "complete" in inline.run_command("status", out).stdout
    assert runs.shards_in(out) == expected_shards(source)


@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_after_ctrl_c_it_says_at_once_that_it_stops(tmp_path: Path, source: Path, terminals: list[Terminal]) -> None:
    """Before anything is waited for, and in the place of the bars, which are not drawn again."""
    pipe = tmp_path / "a.txt"
    os.mkfifo(pipe)
    threading.Thread(target=write_without_end, args=(pipe, source.read_bytes()), daemon=True).start()
    terminal = Terminal(runs.command(*build_words(pipe, tmp_path / "out")))
    terminals.append(terminal)
    while b"total " not in terminal.written:  # the bars are there
        assert terminal.process.poll() is None
        time.sleep(0.01)
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    shown, _, rest = terminal.written.decode().partition("\x1b[Jstopping …\r\n")
    assert "total " in shown
    assert not re.search(r"shard \d+ |total  ", rest)
    assert "Interrupted. Everything finished is kept." in rest


@pytest.mark.full(but=["argparse--m", "*build-script", "pyarrow--m"])
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
@pytest.mark.parametrize("entry", ["-m", "script"])
@pytest.mark.parametrize("module", ["argparse", "fineweb_shards.commands.build", "numpy", "pyarrow"])
def test_ctrl_c_in_the_first_seconds_is_silent(tmp_path: Path, source: Path, entry: str, module: str) -> None:
    """While the program is still importing, nothing is begun: exit code 130, and not a word."""
    if entry == "script":
        entry = tomllib.loads(PROJECT.read_text())["project"]["scripts"]["fineweb-shards"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module, entry, *build_words(source, tmp_path / "out")],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
@pytest.mark.parametrize("number", range(1, 7))
def test_a_signal_during_the_start_of_a_thread_is_an_interruption(tmp_path: Path, source: Path, number: int) -> None:
    """No library takes it for an error of its own: exit code 130, `status` knows, then the same bytes."""
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_START, str(number), *build_words(source, out)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "resume with: " in done.stderr
    log = (out / ".fineweb-shards" / "log.txt").read_text().splitlines()
    assert log[-1].endswith("Interrupted. Everything finished is kept")
    status = inline.run_command("status", out)
    assert "with exit code 130: Interrupted." in status.stdout
    assert inline.run_command(*build_words(source, out)).returncode == 0
    assert runs.shards_in(out) == expected_shards(source)


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_an_impatient_ctrl_c_leaves_a_clean_terminal(
    tmp_path: Path, source: Path, terminals: list[Terminal], tries: Tries
) -> None:
    """Twice in a twentieth of a second: the bars are gone, the last line says how to go on."""
    for attempt in tries(1, 20):
        pipe = tmp_path / f"{attempt}.txt"
        os.mkfifo(pipe)
        threading.Thread(target=write_without_end, args=(pipe, source.read_bytes()), daemon=True).start()
        terminal = Terminal(runs.command(*build_words(pipe, tmp_path / str(attempt))))
        terminals.append(terminal)
        while b"total " not in terminal.written:  # the bars are there
            assert terminal.process.poll() is None
            time.sleep(0.01)
        terminal.type(b"\x03")
        time.sleep(0.05)
        terminal.type(b"\x03")
        assert terminal.wait() == 130
        text = terminal.written.decode()
        assert "Traceback" not in text
        last = text.rpartition("\x1b[J")[2]  # behind what was wiped
        assert "Everything finished is kept." in last
        assert not re.search(r"shard \d+ |total  ", last)
        assert re.search(r"resume with: \S+ -m fineweb_shards build ", last)
        assert last.rstrip().endswith("--workers 1")
        assert last.endswith("\n")


LOST = """
import os, signal, time, weakref
from fineweb_shards.errors import Interrupted
from fineweb_shards.system.signals import Interrupts

class Memory:
    pass

def give_back():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)

Interrupts("the same command")
memory = Memory()
weakref.finalize(memory, give_back)
try:
    del memory
    time.sleep(30)
except Interrupted as stop:
    print(stop, stop.exit_code)
"""


@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_a_signal_where_python_drops_exceptions_is_not_lost() -> None:
    """Ctrl-C in the callback of a weak reference, which is where the memory of a stream is given back."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=True, timeout=25)
    assert (done.stdout, done.stderr) == ("Interrupted. 130\n", "")
