"""The command in this process, or in a fork, stands for the real one: the same exit code, the same words."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support import forked, inline, reference, runs
from tests.support.documents import make_documents
from tests.support.fourteen_files import DATASET, FLAGS, environment, expected_shards, sample_repository
from tests.support.inputs import write_jsonl
from tests.support.standin_hub import StandInHub

pytestmark = pytest.mark.full

DOCUMENTS = make_documents(60, seed=12)


FIGURE = re.compile(r"(under )?[0-9][0-9.,:-]*[kMGT]?( (s|min|GB|MB|kB|tokens/s|workers?))?")


def words_of(text: str, out: Path) -> list[str]:
    """Without times, speeds and free space, which differ from run to run; and without the lines about memory, which
    only a run has that takes a while, and about other programs at work."""
    some = ("memory ", "priority ")
    lines = [line for line in text.replace(str(out), "OUT").splitlines() if not line.startswith(some)]
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


@pytest.mark.parametrize("more", [[], ["--split", "nonsense"]], ids=["build", "mistake"])
def test_a_fork_says_asks_and_leaves_the_same(tmp_path: Path, more: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code, standard output and error, what the hub is asked for a listing, and the shards; and a fork knows
    nothing of the one before it."""
    monkeypatch.setattr(forked, "always_with_workers", False)
    words = ["build", *DATASET, *FLAGS, "--workers", "1", *more, "--out"]
    asked, said = [], []
    with StandInHub([sample_repository(rows=20, files=2)]) as hub:
        for name, run in (("real", runs.run_command), ("a", forked.run_command), ("b", forked.run_command)):
            out = tmp_path / name
            done = run(*words, out, **environment(hub, tmp_path / f"home {name}"))
            asked.append([(record.method, record.path) for record in hub.requests_of("api")])
            said.append((done.returncode, words_of(done.stdout, out), words_of(done.stderr, out)))
            assert done.returncode == (3 if more else 0), done.stderr
            assert runs.shards_in(out) == ({} if more else expected_shards(2))
            hub.clear_requests()
    assert asked[0]
    assert asked == [asked[0]] * 3
    assert said == [said[0]] * 3
