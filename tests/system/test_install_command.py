"""A hint to install a package works in the environment that runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fineweb_shards.system.shell_commands import install_command


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A .venv in this folder that the program seems to run in."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".venv"
    (folder / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))
    return folder


def test_pip_is_that_of_the_environment(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """make's .venv, or any other: its own Python, by the short path; in the version that we ask for."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert install_command("obstore") == ".venv/bin/python -m pip install 'obstore>=0.12'"
    assert install_command("PySocks") == ".venv/bin/python -m pip install PySocks"


def test_without_pip_it_is_uv(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`uv venv` and `uv tool install` leave pip out."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert install_command("ray") == "uv pip install --python .venv/bin/python 'ray>=2.50'"


def test_pipx_is_asked_to_inject_it(environment: Path) -> None:
    """It looks after its environments itself."""
    (environment / "pipx_metadata.json").touch()
    assert install_command("tokenizers") == "pipx inject .venv 'tokenizers>=0.23.3'"
