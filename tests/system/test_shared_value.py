"""A value that the processes of a run share."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from fineweb_shards.system.shared_memory import SharedValue

COUNT = """
import sys; from pathlib import Path
from fineweb_shards.system.shared_memory import SharedValue
value = SharedValue(Path(sys.argv[1]))
for _ in range(200):
    with value.changing() as counts:
        counts["n"] = counts.get("n", 0) + 1
"""


def test_no_change_is_lost(tmp_path: Path) -> None:
    """Processes and threads that count at the same time get the sum."""
    path = tmp_path / "value.json"
    children = [subprocess.Popen([sys.executable, "-c", COUNT, str(path)]) for _ in range(2)]
    value = SharedValue(path)

    def count() -> None:
        for _ in range(200):
            with value.changing() as counts:
                counts["n"] = counts.get("n", 0) + 1

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [child.wait() for child in children] == [0, 0]
    with value.changing() as counts:
        assert counts == {"n": 800}


def test_what_is_not_ours_is_an_empty_value(tmp_path: Path) -> None:
    """A damaged file costs what was known, and nothing else."""
    for content in (b"", b"[1, 2]", b'{"n": ', b"\xff\x00"):
        path = tmp_path / "value.json"
        path.write_bytes(content)
        with SharedValue(path).changing() as value:
            assert value == {}
            value["n"] = 1
        with SharedValue(path).changing() as value:
            assert value == {"n": 1}


def test_without_a_file_each_process_has_its_own(tmp_path: Path) -> None:
    """A folder that is not there, or no path at all."""
    for value in (SharedValue(None), SharedValue(tmp_path / "missing" / "value.json")):
        with value.changing() as content:
            content["n"] = 1
        with value.changing() as content:
            assert content == {"n": 1}
