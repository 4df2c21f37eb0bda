"""The promises themselves: each has its tests, and none is misspelled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.promises import PROMISES, has_every_file, names


def test_every_promise_is_tested_by_make_test(request: pytest.FixtureRequest) -> None:
    """Each promise has a test in the first step, `make test`, which needs neither Ray nor a browser."""
    if not has_every_file(request.config):
        pytest.skip("only some of the tests were collected")
    quick = [item for item in request.session.items if not item.get_closest_marker("full")]
    assert {name for item in quick for name in names(item)} == set(PROMISES)


@pytest.mark.full
def test_an_unknown_promise_fails_collection(tmp_path: Path) -> None:
    """A misspelled name would prove nothing; it is named together with its test."""
    test = "import pytest\n@pytest.mark.promise('unkillabel')\ndef test_it():\n    pass\n"
    (tmp_path / "test_misspelled.py").write_text(test)
    plugin = ["-p", "tests.support.promises", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_misspelled.py::test_it" in done.stderr
    assert "'unkillabel'" in done.stderr
