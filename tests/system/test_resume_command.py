"""The command that is printed to go on with: it can be pasted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fineweb_shards.system.shell_commands import TypedCommand, program, runnable_here

WORDS = ["build", "a b.txt", "--out", "o"]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program as pip installs it, in a folder that is not on PATH."""
    path = tmp_path / ".venv" / "bin" / "fineweb-shards"
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), *WORDS])
    monkeypatch.setattr(sys, "executable", str(path.parent / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_a_program_that_the_shell_does_not_find_is_named_by_its_python(script: Path) -> None:
    """By the short path, where it is below this folder."""
    assert TypedCommand(WORDS).resume() == ".venv/bin/python -m fineweb_shards build 'a b.txt' --out o"


def test_a_program_on_the_path_is_named_by_its_name(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if it is this one."""
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "fineweb-shards"
    other = script.parent.parent / "fineweb-shards"
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert program() == ".venv/bin/python -m fineweb_shards"


def test_python_m_is_named_with_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that runs."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/fineweb_shards/__main__.py"])
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python3")
    assert program() == "'/opt/my python/bin/python3' -m fineweb_shards"


@pytest.mark.parametrize("left_out", [["--fresh"], ["--fresh", "--yes"]])
def test_the_flags_that_delete_are_left_out(script: Path, left_out: list[str]) -> None:
    """--fresh would delete what is kept."""
    assert TypedCommand([*WORDS, *left_out]).resume() == ".venv/bin/python -m fineweb_shards build 'a b.txt' --out o"


def test_a_command_from_another_terminal_runs_here(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the program that runs here, wherever the other one was; with its whole path where the command begins with a
    `cd`."""
    for recorded in ("fineweb-shards", "elsewhere/fineweb-shards", "'/a b/python3.12' -m fineweb_shards"):
        command = f"{recorded} build 'a b.txt' --out o"
        assert runnable_here(command) == ".venv/bin/python -m fineweb_shards build 'a b.txt' --out o"
        absolute = f"{script.parent}/python -m fineweb_shards build 'a b.txt' --out o"
        assert runnable_here(command, absolute=True) == absolute
    monkeypatch.setenv("PATH", str(script.parent))
    assert runnable_here("x/fineweb-shards build x", absolute=True) == "fineweb-shards build x"


@pytest.mark.parametrize(
    "command",
    [
        "",
        "rm -rf x",
        "make clean",
        "make shards",
        "fineweb-shards build x; ./evil",
        "fineweb-shards build $(./evil)",
        "fineweb-shards build x\n./evil",
        "fineweb-shards build 'x",
        "fineweb-shards build x --fresh --yes",
        "fineweb-shards export x --out y",
        "fineweb-shards-2 build x",
        "PATH=. fineweb-shards build x",
        "python -c fineweb_shards build",
        "python",
    ],
)
def test_what_is_no_build_of_ours_is_not_shown(command: str) -> None:
    """The file that it stands in may be somebody else's: it is shown to be pasted, so it must be one command, a build,
    and one that deletes nothing and starts nothing else."""
    assert runnable_here(command) is None
