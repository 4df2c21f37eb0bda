"""`make`, with stand-ins for Python and the program: what it runs, and what it leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# As `python`: says that it is old, or makes a .venv whose Python is another stand-in.
OLD_PYTHON = """#!/bin/sh
[ "$1" = -V ] && echo Python 3.10.13
[ "$1" = -m ] && [ "$2" = venv ] && mkdir -p .venv/bin
exit 1
"""
NEW_PYTHON = """#!/bin/sh
echo "$0 $*" >> calls.txt
if [ "$2" = venv ]; then mkdir -p .venv/bin && cp "$0" .venv/bin/python; fi
"""
WITHOUT_PIP = """#!/bin/sh
case "$2" in ensurepip) touch pip.txt ;; pip) [ -e pip.txt ] ;; esac
"""
# As `fineweb-shards`: prints what it was told.
PROGRAM = """#!/bin/sh
printf '%s\\n' "$@"
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and what it needs."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Without uv, and without what a developer's shell has set."""
    return subprocess.run(
        ["make", *words], cwd=folder, env={"PATH": os.defpath}, capture_output=True, text=True, check=False
    )


def test_an_old_python_is_told_in_a_line_and_leaves_nothing(checkout: Path) -> None:
    """No .venv that would trap the next try."""
    python = write_script(checkout / "python3.10", OLD_PYTHON)
    done = make(checkout, ".venv/run", f"PYTHON={python}")
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(told) == 1
    assert told[0].startswith("fineweb_shards needs Python 3.11 or later; ")
    assert "Python 3.10.13" in told[0]
    assert not (checkout / ".venv").exists()


def test_a_missing_python_is_told(checkout: Path) -> None:
    """In the same line."""
    done = make(checkout, ".venv/run", "PYTHON=python9")
    assert "needs Python 3.11 or later; python9 is: " in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("left_behind", [OLD_PYTHON, "#!/nowhere/python\n", '#!/bin/sh\n[ "$1" != -m ]\n'])
def test_a_venv_that_cannot_be_used_is_made_anew(checkout: Path, left_behind: str) -> None:
    """Made by an old Python, by one that is gone, or interrupted before pip was in it."""
    write_script(checkout / ".venv" / "bin" / "python", left_behind)
    python = write_script(checkout / "python3", NEW_PYTHON)
    done = make(checkout, ".venv/run", f"PYTHON={python}")
    assert done.returncode == 0, done.stderr
    calls = (checkout / "calls.txt").read_text()
    assert "-m venv .venv" in calls
    assert "-m pip install" in calls
    assert (checkout / ".venv" / "run").exists()


@pytest.mark.parametrize("kept", [NEW_PYTHON, WITHOUT_PIP])
def test_a_venv_that_can_be_used_is_kept(checkout: Path, kept: str) -> None:
    """An interrupted install goes on in it, and so does one's own, even without pip: uv makes such."""
    write_script(checkout / ".venv" / "bin" / "python", kept)
    (checkout / ".venv" / "mine").touch()
    done = make(checkout, ".venv/run", "PYTHON=python9")
    assert done.returncode == 0, done.stderr
    assert (checkout / ".venv" / "mine").exists()


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], ["demo"]),
        (["SAMPLE=sample-10BT"], ["sample-10BT"]),
        (
            ["SAMPLE=x", "OUT=/data/my shards", "WORKERS=4", "ARGS=--separator 'a  b' --quiet"],
            ["x", "--out", "/data/my shards", "--workers", "4", "--separator", "a  b", "--quiet"],
        ),
        (['OUT=it\'s "here"; false, or $$HOME'], ["demo", "--out", 'it\'s "here"; false, or $HOME']),
    ],
)
def test_what_is_typed_reaches_the_program(checkout: Path, words: list[str], given: list[str]) -> None:
    """Each variable as its flag; quotes and spaces survive."""
    write_script(checkout / ".venv" / "bin" / "python", NEW_PYTHON)
    write_script(checkout / ".venv" / "bin" / "fineweb-shards", PROGRAM)
    (checkout / ".venv" / "run").touch()
    done = make(checkout, "shards", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["build", *given]


def test_stamps_of_a_python_that_is_gone_say_nothing(checkout: Path) -> None:
    """After an upgrade of the system a .venv may point nowhere: it is set up again."""
    python = write_script(checkout / "python3.12", NEW_PYTHON)
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to("/nowhere/python")
    (checkout / ".venv/run").touch()
    done = make(checkout, ".venv/run", f"PYTHON={python}")
    assert done.returncode == 0, done.stderr
    assert "--editable" in (checkout / "calls.txt").read_text()


@pytest.mark.parametrize("sample", ["sample-10BT", "sample10"])
def test_a_sample_without_its_variable_is_refused(checkout: Path, sample: str) -> None:
    """`make shards sample-10BT` builds no demo, and says what to type."""
    write_script(checkout / ".venv" / "bin" / "fineweb-shards", PROGRAM)
    (checkout / ".venv" / "run").touch()
    done = make(checkout, "shards", sample)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"make shards SAMPLE={sample}." in done.stderr


def test_the_columns_of_help_are_in_line(checkout: Path) -> None:
    """However long a target's name is."""
    lines = [line for line in make(checkout, "help").stdout.splitlines() if line.startswith("  make ")]
    assert len({re.match(r"  make \S+ +", line).end() for line in lines}) == 1  # type: ignore[union-attr]
