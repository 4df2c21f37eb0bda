"""Fixtures shared by all tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

import hypothesis

pytest_plugins = ["promises"]

# Timing never decides a test, and every run tries the same examples (soak runs try new ones).
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("quick")

CORPUS = Path(__file__).parent.parent.parent / "shared" / "data" / "corpus"


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The real corpus beside the checkout; it is not part of the project."""
    if not CORPUS.is_dir():
        pytest.skip("the corpus is not on this machine")
    return CORPUS
