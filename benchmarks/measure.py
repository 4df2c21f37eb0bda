"""Run a program once and measure it from outside, any program alike.

Start-up is over when the first tokens are in the output folder, or when the program itself makes a file called `first`
there. Speed and processor time count from then to the end of the process, for the tokens that came after. Nothing looks
at the processes in between, because looking takes time from them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from memory import PeakMemory, tree_of

TICKS = os.sysconf("SC_CLK_TCK")
HEADER_BYTES = 4096  # no layout's header is longer
TOKEN_BYTES = 2
NO_TOKENS = (".json", ".jsonl", ".txt", ".html", "lock", "first")
TEMPORARY = re.compile(r"(\.\d+)*\.tmp$")  # also with the ids of process and thread
LOOK_SECONDS = 0.005


@dataclass(frozen=True)
class Spent:
    """Processor seconds so far: of a process itself, and of all that it started."""

    own: float
    others: float


@dataclass(frozen=True)
class Measurement:
    """One run. The processor times are in seconds, after the first tokens."""

    output: bytes
    seconds: float
    first_seconds: float
    first_tokens: int
    parent_seconds: float
    worker_seconds: float
    spent: Spent  # from the start to the end


def run_program(words: list[str], out: Path, stdin: str | None = None) -> Measurement:
    """Run it to its end. `out` is emptied before."""
    process, begin = start_program(words, out, stdin)
    held = 0
    while not has_ended(process.pid):
        held = tokens_in(out)
        if held or (out / "first").exists():
            break
        time.sleep(LOOK_SECONDS)
    first, spent = time.monotonic(), processor_seconds(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    end, in_all = time.monotonic(), processor_seconds(process.pid)
    output = end_program(process)
    return Measurement(
        output, end - begin, first - begin, held,
        in_all.own - spent.own, in_all.others - spent.others, in_all,
    )  # fmt: skip


def peak_memory(words: list[str], out: Path, stdin: str | None = None) -> int:
    """Peak PSS of the program and all that it starts, in a run of its own."""
    process, _ = start_program(words, out, stdin)
    with PeakMemory(process.pid) as memory:
        end_program(process)
    return memory.peak_bytes


def start_program(words: list[str], out: Path, stdin: str | None) -> tuple[subprocess.Popen[bytes], float]:
    shutil.rmtree(out, ignore_errors=True)
    # With compiled modules, as after an installation, even where the environment says not to write any.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.monotonic()
    if stdin is None:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment)
        return process, begin
    cat = subprocess.Popen(["cat", stdin], stdout=subprocess.PIPE)
    threading.Thread(target=cat.wait).start()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=cat.stdout, env=environment)
    assert cat.stdout is not None
    cat.stdout.close()  # or it would not end if the program does
    return process, begin


def end_program(process: subprocess.Popen[bytes]) -> bytes:
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{process.args!r} failed with exit code {process.returncode}")
    return output


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def tokens_in(out: Path) -> int:
    """How many tokens are in files of any name, finished or not; 0 if there is nothing but headers."""
    total = 0
    for folder in (out, out / ".fineweb-shards"):
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            name = TEMPORARY.sub("", entry.name)
            if not name.endswith(NO_TOKENS) and not name.startswith("statistics"):
                total += size_of(entry)
    return total // TOKEN_BYTES if total > HEADER_BYTES else 0


def size_of(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except OSError:
        return 0  # renamed meanwhile


def processor_seconds(pid: int) -> Spent:
    """Of a process that runs, or has just ended and is not waited for yet. Linux adds the time of a process to its
    parent's when the parent has waited for it; until then it is found in the tree."""
    own, waited_for = read_times(pid)
    running = sum(sum(read_times(child)) for child in tree_of(pid)[1:])
    return Spent(own, waited_for + running)


def read_times(pid: int) -> tuple[float, float]:
    """Its own time, and that of the processes that it waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    user, system, child_user, child_system = map(int, fields[11:15])
    return (user + system) / TICKS, (child_user + child_system) / TICKS
