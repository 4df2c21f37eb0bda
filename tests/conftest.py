"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import hypothesis
from corpus import corpus_files

pytest_plugins = ["promises"]

# Timing never decides a test, and every run tries the same examples (soak runs try new ones).
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("quick")

# Nothing of a developer's shell decides how long a test takes: modules are compiled once, not in every
# process, and no process leaves the cores to others, not even this one, after a build in it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
STARTUP = Path(__file__).parent / "startup"
os.environ["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
os.nice = lambda increment: 0


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of real text: of FINEWEB_SHARDS_CORPUS, or of the demo."""
    return corpus_files(tmp_path_factory.mktemp("corpus"))
