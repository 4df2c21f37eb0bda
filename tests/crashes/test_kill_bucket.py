"""kill -9 at every request to a bucket: what is visible is whole, and the next run has the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from fineweb_shards.layouts import LAYOUTS
from tests.conftest import THREE_LAYOUTS
from tests.exactness.test_mixes import Mix, draw_mix
from tests.exactness.test_shuffles import Shuffle
from tests.support import layout_reference
from tests.support.bucket_server import Door, make_bucket
from tests.support.bucket_view import BucketView, Watcher, check_finished
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted
from tests.support.promises import Tries

DRIVER = Path(__file__).parent / "bucket_crash_driver.py"
DOCUMENTS = make_documents(24, seed=96)


class Builds:
    """Another process, whose forks build."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pids: queue.SimpleQueue[int] = queue.SimpleQueue()  # of each build, for one that kills it

    def run(self, out: str, *sources: Path, **settings: object) -> tuple[int, str]:
        """A build: its exit code, negative for a signal, and its error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"out": out, "input": [*map(str, sources)], "settings": {"max_outage": 20, **settings}}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        self.pids.put(json.loads(self._process.stdout.readline()))
        code, error = json.loads(self._process.stdout.readline())
        return code, error


class Killer:
    """Kills a build at its `number`-th request, before the server hears of it or before the answer."""

    def __init__(self, builds: Builds, door: Door, number: int, when: str, then: Watcher) -> None:
        self._builds, self._number, self._when = builds, number, when
        self.requests: list[str] = []
        look = then.look
        door.on_request = lambda method, path: self._count(method, path)

        def on_answer(method: str, path: str) -> None:
            look(method, path)
            if self._when == "after" and f"{method} {path}" == self._fatal:
                self._kill()

        self._fatal = ""
        door.on_answer = on_answer

    def _count(self, method: str, path: str) -> None:
        self.requests.append(f"{method} {path}")
        if len(self.requests) == self._number:
            self._fatal = self.requests[-1]
            if self._when == "before":
                self._kill()

    def _kill(self) -> None:
        os.kill(self._builds.pids.get(), signal.SIGKILL)
        raise ConnectionResetError


@pytest.fixture
def builds(door: Door) -> Iterator[Builds]:
    words = [sys.executable, str(DRIVER)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Builds(process)


def check_manifest(view: BucketView) -> None:
    """Whatever the manifest names is in the bucket: in the whole file, or in a part of it."""
    objects = {name: view.read(name) for name in view.names()}
    if "manifest.json" not in objects:
        return
    for record in json.loads(objects["manifest.json"])["shards"]:
        name, begin, size = record["name"], record["offset"], record["bytes"]
        digests = set()
        for key, data in objects.items():
            folder, _, offset = key.rpartition("/")
            first = int(offset) if folder == f".fineweb-shards/parts/{name}" else 0 if key == name else None
            if first is not None and first <= begin:
                digests.add(hashlib.sha256(data[begin - first : begin - first + size]).hexdigest())
        assert record["sha256"] in digests, record


@pytest.mark.full
@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
@pytest.mark.parametrize(
    ("wanted", "is_ceph"),
    [
        (Wanted("megatron", 4000, val_tokens=5000), False),
        (Wanted("llm.c", 4000, val_ratio=Fraction(2, 5)), False),
        (Wanted("build-nanogpt", 4000), True),
        *(
            pytest.param(wanted, False, marks=pytest.mark.soak)
            for wanted in [
                Wanted("build-nanogpt", 4000, index=True),
                Wanted("nanogpt", 4000, val_ratio=Fraction(1, 4)),
                Wanted("plain", 4000, val_ratio=Fraction(1, 4), drop=True),
                Wanted("torchtitan", 4000, index=True),
            ]
        ),
    ],
    ids=lambda value: value.layout if isinstance(value, Wanted) else "ceph" if value else "s3",
)
def test_a_kill_at_every_request(
    bucket_environment: str, door: Door, builds: Builds, tmp_path: Path, wanted: Wanted, is_ceph: bool, tries: Tries
) -> None:
    """Before the server hears of it and before its answer: creating an upload, each part, completing it, the manifest,
    the lock, joining and deleting parts. By turns it is resumed here or on another machine."""
    door.compares_unquoted = is_ceph
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    expected = layout_reference.files(DOCUMENTS, wanted)
    settings = {key: value for key, value in wanted.settings().items() if value is not None}
    out = f"{make_bucket(bucket_environment)}/whole"
    watcher = Watcher(BucketView(bucket_environment, out), door, expected)
    killer = Killer(builds, door, 0, "never", watcher)
    assert builds.run(out, source, **settings, scratch=str(tmp_path / "whole")) == (0, "")
    builds.pids.get()
    points = [(n, when) for n in range(1, len(killer.requests) + 1) for when in ("before", "after")]
    points = points if tries.soak else points[3 :: len(points) // 3]
    for attempt in tries(len(points), len(points)):
        number, when = points[attempt]
        out = f"{make_bucket(bucket_environment)}/folder"
        view, scratch = BucketView(bucket_environment, out), tmp_path / str(attempt)
        watcher = Watcher(view, door, expected)
        killer = Killer(builds, door, number, when, watcher)
        code, error = builds.run(out, source, **settings, scratch=str(scratch), batch_bytes=2048)
        assert code == -signal.SIGKILL, error
        check_manifest(view)
        door.on_request = lambda method, path: None
        door.on_answer = watcher.look
        other = tmp_path / f"{attempt}-other" if attempt % 3 == 2 else scratch
        fate = f"{when} {killer.requests[-1]}"
        assert builds.run(out, source, **settings, scratch=str(other), batch_bytes=5000) == (0, ""), fate
        builds.pids.get()
        assert watcher.torn == [], fate
        check_finished(view, other, expected)


@pytest.mark.promise("a mix is that of a plain loop", "a bucket never shows half a shard; only one writer wins")
@pytest.mark.parametrize("draw", [draw_mix, Shuffle])
def test_mixes_and_shuffles_that_are_killed_at_any_request(
    bucket_environment: str,
    door: Door,
    builds: Builds,
    tmp_path: Path,
    tries: Tries,
    soak: bool,
    draw: Callable[[int, Sequence[str]], Mix | Shuffle],
) -> None:
    """Random ones, up to three times, each time with other batches: what is visible is always whole, and in the end
    what a plain loop gives."""
    for seed in tries(1, 40):
        chooser, folder = random.Random(2000 + seed), tmp_path / str(seed)
        one = draw(2000 + seed, [*LAYOUTS] if soak else THREE_LAYOUTS)
        settings = {name: value for name, value in one.settings(folder).items() if value is not None}
        settings["scratch"], expected = str(folder / "scratch"), one.expected()
        out = f"{make_bucket(bucket_environment)}/folder"
        view = BucketView(bucket_environment, out)
        watcher = Watcher(view, door, expected)
        code, error, kills = -signal.SIGKILL, "", chooser.randint(1, 3)
        while code == -signal.SIGKILL and kills:
            kills -= 1
            Killer(builds, door, chooser.randint(5, 60), chooser.choice(["before", "after"]), watcher)
            code, error = builds.run(out, **settings, batch_bytes=chooser.choice([2048, 20_000]))
            assert code in (0, -signal.SIGKILL), error
            check_manifest(view)
            if not code:
                builds.pids.get()
        door.on_request, door.on_answer = lambda method, path: None, watcher.look
        if code:
            assert builds.run(out, **settings, batch_bytes=5000) == (0, "")
            builds.pids.get()
        assert watcher.torn == []
        check_finished(view, folder / "scratch", expected)
