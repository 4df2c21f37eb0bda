"""The command in this process stands for the real one: the same exit code, and the same words."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import inline
import pytest
import reference
import runs
from documents import make_documents
from inputs import write_jsonl

DOCUMENTS = make_documents(60, seed=12)


FIGURE = re.compile(r"(under )?[0-9][0-9.,:-]*[kMGT]?( (s|min|GB|MB|kB|tokens/s|workers?))?")


def words_of(text: str, out: Path) -> list[str]:
    """Without times, speeds and free space, which differ from run to run; and without the line about memory,
    which only a run has that takes a while."""
    lines = [line for line in text.replace(str(out), "OUT").splitlines() if not line.startswith("memory ")]
    return [FIGURE.sub("#", line) for line in lines]


@pytest.mark.parametrize(
    "words",
    [
        ["build", "--input", "a.jsonl", "--shard-tokens", "9k", "--workers", "1", "--out"],
        ["build", "--input", "nowhere.txt", "--out"],
        ["inspect"],
    ],
    ids=["build", "mistake", "no folder"],
)
def test_both_say_and_leave_the_same(tmp_path: Path, words: list[str]) -> None:
    """Exit code, standard output, standard error, and the shards in the folder."""
    write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    real = runs.run_command(*words, tmp_path / "real", cwd=tmp_path)
    here = inline.run_command(*words, tmp_path / "here", cwd=tmp_path)
    assert here.returncode == real.returncode
    assert words_of(here.stdout, tmp_path / "here") == words_of(real.stdout, tmp_path / "real")
    assert words_of(here.stderr, tmp_path / "here") == words_of(real.stderr, tmp_path / "real")
    if here.returncode == 0:
        expected = reference.shard_files(reference.stream(DOCUMENTS), 9000)
        assert runs.shards_in(tmp_path / "here") == runs.shards_in(tmp_path / "real") == expected


def test_this_process_stays_as_it_was() -> None:
    """Its priority and what it does on a signal: a build changes both, in its own process."""

    before = os.getpriority(os.PRIO_PROCESS, 0), signal.getsignal(signal.SIGTERM)
    inline.run_command("build", "--input", "nowhere.txt", "--out", "out")
    assert (os.getpriority(os.PRIO_PROCESS, 0), signal.getsignal(signal.SIGTERM)) == before
