"""What `make` does before there is a .venv."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(PROJECT / "Makefile", folder)
    shutil.copy(PROJECT / "pyproject.toml", folder)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        ["make", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def old_python(path: Path) -> Path:
    """Something that says it is Python 3.10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo Python 3.10.13 || exit 1\n")
    path.chmod(0o755)
    return path


def test_an_old_python_is_refused_in_a_line(tmp_path: Path) -> None:
    """It says what is needed, what was found and what to type, and leaves no .venv behind."""
    done = make(tmp_path, "shards", f"PYTHON={old_python(tmp_path / 'python3.10')}")
    assert done.returncode != 0
    assert done.stdout == ""
    sentence, *rest = done.stderr.splitlines()
    assert "needs Python 3.11 or later" in sentence
    assert "Python 3.10.13" in sentence
    assert "make shards PYTHON=" in sentence
    assert len(rest) == 1  # make's own
    assert not (tmp_path / ".venv").exists()


def test_a_python_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The same sentence, and no .venv."""
    done = make(tmp_path, "shards", "PYTHON=python3.99")
    assert "python3.99 is not installed." in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_venv_of_an_old_python_is_no_trap(tmp_path: Path) -> None:
    """What an older Python, or an interrupted try, has left behind is gone at the next try."""
    old_python(tmp_path / ".venv" / "bin" / "python")
    (tmp_path / ".venv" / "run").touch()
    make(tmp_path, "help")
    assert not (tmp_path / ".venv").exists()
