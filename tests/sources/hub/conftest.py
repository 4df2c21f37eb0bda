"""Fixtures of the tests against the stand-in hub; each file has its own `repository`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository


@pytest.fixture
def hub(repository: Repository) -> Iterator[StandInHub]:
    with StandInHub([repository]) as hub:
        yield hub


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fresh for each test: `datasets` remembers what a commit holds, and tests make their own commits."""
    return tmp_path_factory.mktemp("hf_home")
