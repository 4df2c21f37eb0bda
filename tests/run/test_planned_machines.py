"""`plan` for other machines: what it says of a build, and of flags that make no sense."""

from __future__ import annotations

import re
from pathlib import Path

import inline
import pytest
from documents import make_documents
from fourteen_files import DATASET, FILES, FLAGS, build, environment, sample_repository
from inputs import write_parquet
from runs import run_command
from standin_hub import StandInHub

DOCUMENTS = [text for text in make_documents(200, seed=63) if text]
RESOURCES = ("the cores", "the network in", "the network out", "the driver")


def rows_of(output: str) -> dict[str, str]:
    return {line[:10].strip(): line[11:] for line in output.splitlines()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "a.parquet", DOCUMENTS)


def test_it_says_what_the_cluster_takes_and_what_was_assumed(path: Path, tmp_path: Path) -> None:
    """Time and what sets it, how long every other resource would take, bytes, memory."""
    words = ["plan", path, "--out", tmp_path / "out", "--executor", "ray", "--nodes", "10", "--cores", "16"]
    rows = rows_of(inline.run_command(*words).stdout)
    assert rows["for"] == "10 nodes of Ray with 16 cores and 10 Gbit/s each (--gbit: assumed)"
    assert re.fullmatch(
        r"under 1 s, set by the \w+.*: \S+ tokens/s \(\S+ a core, by a trial of one second here\)",
        rows["time"],
    )
    assert all(resource in rows["time"] + rows["alone"] for resource in RESOURCES)
    assert "between nodes" in rows["bytes"]
    assert "a node, " in rows["memory"]
    assert "in the object store" in rows["memory"]
    assert "requests" not in rows
    assert "machine" not in rows  # this one
    assert not (tmp_path / "out").exists()


def test_the_same_flags_describe_another_machine(path: Path, tmp_path: Path) -> None:
    """Without Ray it is one; without the flags the plan is for this machine, as ever."""
    words = ["plan", path, "--out", tmp_path / "out"]
    rows = rows_of(inline.run_command(*words, "--cores", "64", "--write-rate", "1kB").stdout)
    assert rows["for"] == "64 cores and 1 Gbit/s (--gbit: assumed)"
    assert ", set by the writes: " in rows["time"]
    assert "object store" not in rows["memory"]
    here = rows_of(inline.run_command(*words).stdout)
    assert "for" not in here
    assert here["time"].endswith("an estimate from a trial of one second)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "2"], "--nodes 2: with --executor local there is one machine."),
        (["--executor", "ray", "--nodes", "0"], "--nodes 0: must be more than 0."),
        (["--cores", "0"], "--cores 0: must be more than 0."),
        (["--gbit", "0"], "--gbit 0.0: must be more than 0."),
        (["--gbit", "fast"], "--gbit: 'fast' is not a number such as 10 or 2.5."),
        (["--gbit", "10G"], "--gbit: '10G' is not a number such as 10 or 2.5."),
        (["--write-rate", "0"], "--write-rate 0: must be more than 0."),
        (["--executor", "ray", "--nodes", "1e9"], "--nodes 1,000,000,000: must be at most 100,000."),
    ],
)
def test_machines_that_can_not_be_are_refused(
    path: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    """With the flag and its value."""
    done = inline.run_command("plan", path, "--out", tmp_path / "out", *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_is_unknown_is_said(tmp_path: Path) -> None:
    """Of standard input nobody knows the tokens."""
    done = inline.run_command("plan", "-", "--separator", "blank", "--out", tmp_path / "out", "--cores", "8")
    assert rows_of(done.stdout)["time"] == "unknown: the number of tokens is"


def test_nothing_takes_no_time(tmp_path: Path) -> None:
    """A file without documents."""
    path = write_parquet(tmp_path / "a.parquet", [])
    done = inline.run_command("plan", path, "--out", tmp_path / "out", "--cores", "8")
    assert rows_of(done.stdout)["time"] == "none: there is nothing to do"


def test_a_plan_for_the_hub_counts_the_requests_of_a_build(tmp_path: Path) -> None:
    """As many for addresses as a build then sends, no fewer of the API, and every file's batches."""
    with StandInHub([sample_repository()], cdn=True) as hub:
        words = ["plan", *DATASET, "--out", tmp_path / "out", *FLAGS, "--cores", "2", "--gbit", "1"]
        planned = run_command(*words, **environment(hub, tmp_path / "home"))
        assert planned.returncode == 0, planned.stderr
        hub.clear_requests()
        done = build(hub, tmp_path / "another home", tmp_path / "out")
        assert done.returncode == 0, done.stderr
        api, addresses, parts = map(int, re.findall(r"\d+", rows_of(planned.stdout)["requests"]))
        assert addresses == len(hub.requests_of("resolve"))
        assert hub.api_requests <= api <= hub.api_requests + 2
        # The footers of these small files come along with other ranges.
        assert FILES < parts - 2 * FILES * 3 <= len(hub.requests_of("cdn"))
