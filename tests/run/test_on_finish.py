"""--on-finish: the user's command learns how it went, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fineweb_shards.commands import build as farewell
from fineweb_shards.commands.build import describe_outcome, run_command
from fineweb_shards.errors import DiskFullError, Interrupted, QuarantineError
from tests.support import runs
from tests.support.inputs import write_text

SHOW = "env | grep ^FINEWEB_SHARDS_ | sort > outcome"


def outcome_in(folder: Path) -> dict[str, str]:
    lines = (folder / "outcome").read_text().splitlines()
    return dict(line.removeprefix("FINEWEB_SHARDS_").split("=", 1) for line in lines)


def test_success_is_told_with_its_figures(tmp_path: Path) -> None:
    """Outcome, exit code, folder, and what was made."""
    write_text(tmp_path / "a.txt", ["one", "two"])
    done = runs.run_command(
        "build", "a.txt", "--out", "out", "--shard-tokens", "100", "--on-finish", SHOW, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    outcome = outcome_in(tmp_path)
    assert outcome["OUTCOME"] == "complete"
    assert (outcome["EXIT_CODE"], outcome["SHARDS"], outcome["DOCUMENTS"]) == ("0", "1", "2")
    assert outcome["FOLDER"] == "out"


def test_failure_is_told_with_its_sentence(tmp_path: Path) -> None:
    """The sentence that the user would have seen on the screen; the exit code stays the run's own."""
    done = runs.run_command(
        "build", "--input", "no.txt", "--out", "out", "--on-finish", f"{SHOW}; exit 7", cwd=tmp_path
    )
    assert done.returncode == 3
    assert "--on-finish: the command ended with exit code 7" in done.stderr
    outcome = outcome_in(tmp_path)
    assert (outcome["OUTCOME"], outcome["EXIT_CODE"], outcome["TOKENS"]) == ("failed", "3", "0")
    assert "no.txt" in outcome["MESSAGE"]


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (None, "complete", "0"),
        (QuarantineError("2 documents"), "complete", "11"),
        (Interrupted("Interrupted.", 143), "interrupted", "143"),
        (DiskFullError("full"), "failed", "5"),
        (ZeroDivisionError("a bug"), "failed", "1"),
    ],
)
def test_every_ending_has_its_word(tmp_path: Path, error: BaseException | None, outcome: str, code: str) -> None:
    """Three words are enough for a script; the exit code says the rest."""
    values = describe_outcome(tmp_path, error)
    assert (values["FINEWEB_SHARDS_OUTCOME"], values["FINEWEB_SHARDS_EXIT_CODE"]) == (outcome, code)


def test_a_command_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has ended; nothing may keep it from ending."""
    monkeypatch.setattr(farewell, "_LONGEST_SECONDS", 0.2)
    assert "was stopped after" in str(run_command("sleep 60", tmp_path, None))
