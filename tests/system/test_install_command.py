"""A hint to install a package works with pip, and names the extra for everything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fineweb_shards.system.shell_commands import install_command


def test_pip_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """make's .venv, or any other: its own Python, by the short path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    pip = ".venv/bin/python -m pip install"
    assert install_command("obstore") == f"{pip} obstore (the extra `buckets` of fineweb_shards)"
    assert install_command("PySocks") == f"{pip} PySocks"
