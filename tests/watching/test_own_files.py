"""Files of our own that are damaged: whoever reads them answers, or refuses in a sentence; no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.report.contents import gather_facts
from fineweb_shards.report.page import render_page
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.watching.run_files import Heartbeat, History, Invocation, Snapshot, load_history
from fineweb_shards.watching.status import read_status, status_lines, status_values
from tests.support import runs
from tests.support.documents import make_documents
from tests.support.example_run import SNAPSHOT
from tests.support.inputs import write_parquet
from tests.support.promises import Tries

NAMES = ["heartbeat.json", "history.json", "log.txt", "quarantine.jsonl", "lock"]
JUNK: list[Any] = [None, True, -1, 0, 1e300, 10**25, "x", "\0", "\ud800", [], {}, [[1]], {"a": []}]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder with every file that a run leaves behind."""
    folder = tmp_path_factory.mktemp("made")
    path = write_parquet(folder / "a.parquet", make_documents(40, seed=52))
    runs.build_inline(folder / "out", path, shard_tokens=8000)
    out = folder / "out"
    Heartbeat(time.time(), Invocation("fineweb-shards build", "/", 4711, time.time()), SNAPSHOT).save(out)
    history = History()
    history.begin_run()
    history.update(Snapshot("encoding", "", tokens=3, memory_bytes=10**6))
    history.note(Event("worker", "it ended"))
    history.begin_wait("network", "waiting for the network")
    history.save(out)
    (out / WORK_FOLDER / "quarantine.jsonl").write_text("{}\n")
    assert {path.name for path in (out / WORK_FOLDER).iterdir()} == set(NAMES)
    assert len(load_history(out).marks) == 2
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


def look(out: Path, *, page: bool = False) -> None:
    """Everything that reads these files, as a run at work and as nobody."""
    load_history(out).begin_run()
    with contextlib.suppress(ShardError):  # a sentence; anything else fails the test
        for alive in (True, False):
            status = read_status(FolderStore(out), alive=alive)
            status_lines(status)
            json.dumps(status_values(status))
        if page:
            render_page(gather_facts(FolderStore(out), alive=True))


def damaged(good: bytes, chooser: random.Random) -> bytes:
    """A flip, a cut, a piece twice, or a piece of junk."""
    place, other = chooser.randrange(len(good)), chooser.randrange(len(good))
    return chooser.choice(
        [
            good[:place] + bytes([good[place] ^ 1 << chooser.randrange(8)]) + good[place + 1 :],
            good[:place] + chooser.choice(b'0123456789-e.[]{}",:').to_bytes(1, "big") + good[place + 1 :],
            good[:place],
            good[:place] + good[other:],
            good[:place] + b"9" * chooser.choice([1, 30, 5000]) + good[place:],
            good[:place] + b"\xff\x00" + good[place:],
        ]
    )


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_no_damage_is_a_traceback(out: Path, name: str, tries: Tries) -> None:
    """Flips, cuts and junk in every file of the work folder."""
    path = out / WORK_FOLDER / name
    good = path.read_bytes().rstrip()
    chooser = random.Random(31)
    for number in tries(150, 5000):
        path.write_bytes(damaged(good, chooser))
        look(out, page=number % 50 == 0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["heartbeat.json", "history.json"])
def test_no_value_of_another_kind_is_a_traceback(out: Path, name: str) -> None:
    """Every value replaced by every kind of junk; NaN, and a thousand brackets."""
    path = out / WORK_FOLDER / name
    data = json.loads(path.read_bytes())
    for number, (holder, key) in enumerate(list(places_in(data))):
        before = holder[key]
        for kind, value in enumerate(JUNK):
            holder[key] = value
            path.write_text(json.dumps(data))
            look(out, page=(number + kind) % 60 == 0)
        holder[key] = before
    for text in ("NaN", "[" * 10**5, '{"format": NaN}', "1" * 10**4, '{"points": [[NaN, 1, 2, 3]]}'):
        path.write_text(text)
        look(out)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value that can hold another value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from places_in(value[key])


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "link to itself"])
@pytest.mark.parametrize("name", [*NAMES, "../manifest.json"])
def test_what_is_no_file_is_no_traceback(out: Path, name: str, kind: str) -> None:
    """A folder, a pipe or a link in a file's place; it is not waited for, and a run says what is wrong."""
    path = out / WORK_FOLDER / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if kind == "link to nothing" else path.name)
    look(out, page=True)
    if name == "lock":
        with contextlib.suppress(ShardError), FolderLock(out):
            pass
