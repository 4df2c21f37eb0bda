"""A loader of shards in a bucket: the batches of the folder, from a cache that processes share."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_shards.errors import DamageError, DiskFullError, InputError, UsageError
from fineweb_shards.loader import ShardLoader
from fineweb_shards.loader import shard_cache as cache_module
from fineweb_shards.loader import shards as shards_module
from fineweb_shards.loader.shard_cache import ShardCache
from fineweb_shards.storage.bucket import Bucket
from tests.support import loader_reference, reference, runs
from tests.support.bucket_folders import make_parts, part_name, upload_folder
from tests.support.bucket_server import Door, Fault
from tests.support.documents import make_documents
from tests.support.doubles import FakeClock
from tests.support.inputs import write_text
from tests.support.loader_reference import Ids

BATCH, LENGTH = 2, 80
SHARD_TOKENS = 2000
SHARD_BYTES = 2 * SHARD_TOKENS + 128
DOCUMENTS = [text for text in make_documents(100, seed=83) if text and "<|endoftext|>" not in text]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"align": "document"},
    {"align": "document", "seed": 5, "shuffle": "documents"},
    {"seed": 5},
]
FIRST = "edufineweb_train_000001.npy"


def joined(batch: tuple[Any, Any]) -> list[Ids]:
    x, y = batch
    assert np.array_equal(x[:, 1:], y[:, :-1])
    return np.column_stack([x, y[:, -1]]).tolist()


def loader_of(shards: Any, cache_dir: Path, rank: int = 0, ranks: int = 1, **settings: Any) -> ShardLoader:
    return ShardLoader(
        shards,
        batch_size=BATCH,
        seq_len=LENGTH,
        rank=rank,
        world_size=ranks,
        framework="numpy",
        cache_dir=cache_dir,
        **settings,
    )


def epoch_rows(loader: ShardLoader, epoch: int = 0) -> list[Ids]:
    return [row for batch in loader.epoch_batches(epoch) for row in joined(batch)]


def shards_of(layout: str, lengths: list[int]) -> tuple[list[Ids], bool]:
    """The training shards, and whether the first one begins inside a document; by tiktoken alone."""
    stream = reference.stream(DOCUMENTS).tolist()
    if layout == "nanogpt":
        stream = [*stream[1:], reference.EOT]
    ends = [SHARD_TOKENS + end for end in (0, *itertools.accumulate(lengths))]
    assert ends[-1] == len(stream)
    shards = [stream[a:b] for a, b in itertools.pairwise(ends)]
    return shards, layout == "nanogpt" and stream[SHARD_TOKENS - 1] != reference.EOT


def expected_rows(
    layout: str, lengths: list[int], settings: dict[str, Any], epoch: int = 0, *, in_order: bool = False
) -> list[Ids]:
    shards, mid_document = shards_of(layout, lengths)
    return loader_reference.epoch_rows(
        shards,
        LENGTH,
        eot=reference.EOT,
        eot_first=layout != "nanogpt",
        first_mid_document=mid_document,
        aligned="align" in settings,
        shuffle=settings.get("shuffle", "rows" if "seed" in settings else ""),
        seed=settings.get("seed"),
        epoch=epoch,
        shards_in_order=in_order,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The finished folder of a layout, built once."""
    folder = tmp_path_factory.mktemp("built")
    path = write_text(folder / "a.txt", DOCUMENTS)

    @cache
    def build(layout: str) -> Path:
        more = {"val_tokens": SHARD_TOKENS} if layout == "nanogpt" else {}
        runs.build_inline(folder / layout, path, layout=layout, shard_tokens=SHARD_TOKENS, **more)
        return folder / layout

    return build


@pytest.fixture
def url(built: Callable[[str], Path], bucket_url: str) -> str:
    upload_folder(built("build-nanogpt"), f"{bucket_url}/some/out")
    return f"{bucket_url}/some/out"


def lengths_in(folder: Path) -> list[int]:
    """The lengths of the training shards."""
    records = json.loads((folder / "manifest.json").read_text())["shards"]
    return [record["tokens"] for record in records if record["split"] == "train"]


def cached(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tokens"))


@pytest.mark.full(but=["build-nanogpt-plain"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: "-".join(map(str, one.values())) or "plain")
@pytest.mark.parametrize("layout", ["build-nanogpt", "nanogpt"])
def test_the_batches_are_those_of_the_folder(
    built: Callable[[str], Path], bucket_url: str, tmp_path: Path, layout: str, settings: dict[str, Any]
) -> None:
    """On both ranks, in two epochs, from a cache that is too small for all of it; and a state that was saved with the
    folder goes on here."""
    folder, there = built(layout), f"{bucket_url}/out"
    upload_folder(folder, there)
    small = 3 * SHARD_BYTES if layout == "build-nanogpt" or "seed" not in settings else 10**6
    for rank in range(2):
        local = loader_of(folder, tmp_path / "unused", rank, 2, **settings)
        remote = loader_of(there, tmp_path / "cache", rank, 2, cache_bytes=small, **settings)
        assert len(local) == len(remote) > 10
        for _ in range(2 * len(local)):
            assert joined(local.next_batch()) == joined(remote.next_batch())
        remote.load_state_dict(local.state_dict())
        assert joined(local.next_batch()) == joined(remote.next_batch())
    assert not (tmp_path / "unused").exists()
    if settings and layout == "build-nanogpt":
        rows = expected_rows(layout, lengths_in(folder), settings)
        assert epoch_rows(loader_of(there, tmp_path / "cache", **settings)) == rows[: len(rows) // 2 * 2]


def test_the_cache_is_bounded_and_used_again(url: str, door: Door, tmp_path: Path) -> None:
    """It holds no more than it may, or what is being read and the next one; what is in it is not fetched."""
    loader = loader_of(url, tmp_path, cache_bytes=2 * SHARD_BYTES)
    for _ in range(len(loader)):
        loader.next_batch()
        assert len(cached(tmp_path)) <= 4  # two are mapped, one is on its way, one could not be deleted
    everything = loader_of(url, tmp_path)
    rows = epoch_rows(everything)
    names = [shard.file.name for shard in everything._shards.known][:-1]  # the last is too short for a batch
    assert len(cached(tmp_path)) >= len(names) > 10
    door.requests.clear()
    assert epoch_rows(loader_of(url, tmp_path)) == rows
    assert not [line for line in door.requests if line.startswith("GET") and any(n in line for n in names)]


def test_a_shard_is_fetched_before_its_turn(url: str, tmp_path: Path) -> None:
    """While the first one is read the second one comes."""
    loader = loader_of(url, tmp_path)
    loader.next_batch()
    second = loader._shards.known[1].bucket
    assert second is not None
    second.cache.map(second.store, second.pieces[0])  # waits for it, if it is on its way
    assert len(cached(tmp_path)) == 2


def test_a_damaged_shard_is_not_given(url: str, built: Callable[[str], Path], tmp_path: Path) -> None:
    """Another content under its name is refused by its hash, and stays out of the cache; so is a missing object, and
    one that is too short."""
    data = bytearray((built("build-nanogpt") / FIRST).read_bytes())
    data[1000] ^= 1
    bucket = Bucket(url)
    bucket.overwrite(FIRST, bytes(data))
    loader = loader_of(url, tmp_path)
    for _ in range(2):
        with pytest.raises(DamageError, match=rf"{url}/{FIRST}: SHA-256 of bytes 0 to 4,128 is .*, should"):
            loader.next_batch()
    bucket.overwrite(FIRST, bytes(data[:1000]))
    with pytest.raises(DamageError, match=f"{FIRST}: it ends before byte 4,128"):
        loader.next_batch()
    bucket.delete([FIRST])
    with pytest.raises(DamageError, match=f"{FIRST}: there is no such object"):
        loader.next_batch()
    assert not list(tmp_path.glob("*.part"))
    names = {path.stem for path in cached(tmp_path)}
    assert loader._shards.known[0].bucket is not None
    assert loader._shards.known[0].bucket.pieces[0].sha256 not in names


def test_what_a_killed_download_leaves_is_no_shard(url: str, tmp_path: Path) -> None:
    """A part is not taken for the whole, nor is a file of another length; parts of the dead are removed."""
    loader = loader_of(url, tmp_path)
    pieces = loader._shards.known[0].bucket
    assert pieces is not None
    key = pieces.pieces[0].sha256
    (tmp_path / f"{key}.01234567.part").write_bytes(b"x" * 1000)
    (tmp_path / f"{key}.tokens").write_bytes(b"x" * 1000)
    other = "0" * 8 + "f" * 56
    (tmp_path / f"{other}.89abcdef.part").write_bytes(b"x" * 1000)
    (tmp_path / "lock-0").write_bytes(b"")
    x, _ = loader.next_batch()
    assert x.ravel().tolist() == reference.stream(DOCUMENTS)[SHARD_TOKENS : SHARD_TOKENS + 160].tolist()
    assert not (tmp_path / f"{other}.89abcdef.part").exists()


def test_files_of_others_in_the_cache_stay(url: str, tmp_path: Path) -> None:
    """Whatever they are called, and however small the cache is; and they don't count as a part of it."""
    key = "0" * 64
    names = ["my-corpus.tokens", "movie-download.part", f"{key}.part", f"{key}.77.part", f"x{key}.tokens"]
    for name in [*names, f"{key[:-1]}G.tokens"]:
        (tmp_path / name).write_bytes(b"x" * 10 * SHARD_BYTES)
    theirs = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    loader = loader_of(url, tmp_path, cache_bytes=SHARD_BYTES)
    assert len(epoch_rows(loader)) > 10
    assert theirs == {name: (tmp_path / name).read_bytes() for name in theirs}
    roomy = loader_of(url, tmp_path, cache_bytes=50 * SHARD_BYTES)
    epoch_rows(roomy)
    assert len([path for path in cached(tmp_path) if path.name not in theirs]) > 10


RACE = """
import sys
from pathlib import Path
from fineweb_shards.loader import ShardLoader
url, cache = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
loader = ShardLoader(url, batch_size=2, seq_len=80, framework="numpy", cache_dir=cache, cache_bytes=8000)
for x, y in loader.epoch_batches(0):
    print(int(x.sum()), int(y.sum()), flush=True)
"""


@pytest.mark.full
def test_processes_share_a_cache(url: str, tmp_path: Path) -> None:
    """Four at once, with a cache that holds two shards: every batch of each is right."""
    expected = "".join(
        f"{int(x.sum())} {int(y.sum())}\n" for x, y in loader_of(url, tmp_path / "mine").epoch_batches(0)
    )
    words = [sys.executable, "-c", RACE, url, str(tmp_path / "shared")]
    processes = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in processes] == [expected] * 4
    assert not list((tmp_path / "shared").glob("*.part"))


def test_a_shard_is_fetched_once_for_all(url: str, door: Door, tmp_path: Path) -> None:
    """Whoever needs it while it is on its way waits for it."""
    loaders = [loader_of(url, tmp_path) for _ in range(6)]
    door.requests.clear()
    threads = [threading.Thread(target=loader.next_batch) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([line for line in door.requests if line.startswith("GET") and line.endswith(FIRST)]) == 1


def in_fork(action: Callable[[], object]) -> object:
    """What an action returns or raises in a process that is forked from this one, as torch forks workers."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = action()
        except Exception as error:
            found = error
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pickle.load(pipe)
    assert os.waitpid(child, 0)[1] == 0
    return found


@pytest.mark.parametrize("settings", [{}, {"align": "document"}, {"follow": True}], ids=str)
def test_a_forked_process_is_told_to_be_spawned(url: str, tmp_path: Path, settings: dict[str, Any]) -> None:
    """The client of the store would hang in a worker that a torch DataLoader forks, so that it raises, at its first
    batch, even if all shards are in the cache; who has forked it reads on, and a copy in a new process would."""
    loader = loader_of(url, tmp_path, **settings)
    rows = epoch_rows(loader)
    fresh = loader_of(url, tmp_path, **settings)
    for one in (loader, fresh):
        error = in_fork(one.next_batch)
        assert isinstance(error, UsageError)
        assert 'multiprocessing_context="spawn"' in error.message
        assert 'multiprocessing_context="spawn"' in error.hint
    assert epoch_rows(loader) == rows
    assert epoch_rows(pickle.loads(pickle.dumps(loader))) == rows


def test_a_local_folder_is_read_in_a_forked_process(url: str, built: Callable[[str], Path], tmp_path: Path) -> None:
    """As ever, also if the process that has forked it uses a bucket besides."""
    loader_of(url, tmp_path).next_batch()
    for settings in SETTINGS:
        loader = loader_of(built("build-nanogpt"), tmp_path, **settings)
        rows = epoch_rows(loader)
        assert in_fork(lambda loader=loader: epoch_rows(loader)) == rows


def test_files_in_a_list(url: str, bucket_url: str, tmp_path: Path) -> None:
    """In its order; what no manifest names is refused, because nothing says what should be in it."""
    second = FIRST.replace("1.npy", "2.npy")
    rows = epoch_rows(loader_of(url, tmp_path))
    each = SHARD_TOKENS // (BATCH * LENGTH) * BATCH
    assert epoch_rows(loader_of([f"{url}/{second}", f"{url}/{FIRST}"], tmp_path)) == [*rows[each:][:each], *rows[:each]]
    np.save(tmp_path / "train_b.npy", np.arange(5000, dtype=np.uint16))
    for folder in ("theirs", "some/out"):
        Bucket(bucket_url).upload(tmp_path / "train_b.npy", f"{folder}/train_b.npy")
        with pytest.raises(InputError, match=f"{folder}/train_b.npy: no manifest of a build has its hash"):
            loader_of([f"{bucket_url}/{folder}/train_b.npy"], tmp_path)
    with pytest.raises(InputError, match="no manifest of a build has its hash"):
        loader_of(f"{bucket_url}/theirs", tmp_path)
    assert epoch_rows(loader_of(url, tmp_path)) == rows  # as if a build were about to record it
    with pytest.raises(InputError, match=r"with a seed all of its 4,000 bytes are read in random order"):
        loader_of(url, tmp_path / "other", seed=1, cache_bytes=1000)


def test_a_store_that_fails_for_a_while_is_asked_again(url: str, door: Door, tmp_path: Path) -> None:
    """A broken answer in the middle of a shard costs nothing but time."""
    door.faults += [Fault("GET", "npy", times=3, cut=True), Fault("GET", "npy", times=3, status=503)]
    assert len(epoch_rows(loader_of(url, tmp_path))) > 10


def test_a_full_disk_is_said(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After what nobody reads was deleted, and with the next step."""
    (tmp_path / ("1" * 64 + ".tokens")).write_bytes(b"x")

    def fetch(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "fetch_range", fetch)
    with pytest.raises(DiskFullError, match=r"no space for 4,128 bytes of edufineweb_train_000001.npy"):
        loader_of(url, tmp_path).next_batch()
    assert not cached(tmp_path)


def test_a_disk_that_is_full_for_the_first_try(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody reads is deleted, and the shard is fetched again, whatever the first try has left."""
    old = tmp_path / ("1" * 64 + ".tokens")
    old.write_bytes(b"x")
    whole, left = cache_module.fetch_range, []

    def fetch(store: Any, name: str, begin: int, end: int, path: Path) -> str:
        if old.exists():
            path.write_bytes(b"x" * 1000)
            left.append(path)
            raise OSError(28, "No space left on device")
        return whole(store, name, begin, end, path)

    monkeypatch.setattr(cache_module, "fetch_range", fetch)
    loader = loader_of(url, tmp_path)
    x, _ = loader.next_batch()
    assert x.ravel().tolist() == reference.stream(DOCUMENTS)[SHARD_TOKENS : SHARD_TOKENS + 160].tolist()
    assert not old.exists()
    for _ in range(SHARD_TOKENS // 160 + 1):  # until the next shard is read, too: its fetch may have been the first
        loader.next_batch()
    assert left
    assert not any(path.exists() for path in left)


def test_what_is_not_there_is_said(bucket_url: str, tmp_path: Path) -> None:
    """No shards below an address, or no such bucket."""
    with pytest.raises(InputError, match="no token file with 'train' in its name"):
        loader_of(f"{bucket_url}/nothing", tmp_path)
    with pytest.raises(InputError, match="no such bucket"):
        loader_of("s3://no-such-bucket-at-all/x", tmp_path)
    with pytest.raises(InputError, match=r"nothing.npy: no manifest of a build has its hash"):
        loader_of([f"{bucket_url}/nothing.npy"], tmp_path)


class Rehearsal(FakeClock):
    """A build into a bucket, which grows by a checkpoint with each sleep of who follows it."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__()
        self.folder, self.bucket = folder, Bucket(url)
        self.data = json.loads((folder / "manifest.json").read_text())
        self.data.pop("checksum")
        self.records = self.data["shards"]
        self.names = sorted({record["name"] for record in self.records})
        self.finished = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.finished += 1
        ends = [record["end"] for record in self.records]
        while self.finished < len(ends) and ends[self.finished] == ends[self.finished - 1]:
            self.finished += 1
        complete = self.finished > len(self.records)
        one_file = len(self.names) < len(self.records)
        for name in self.names:
            offsets = [r["offset"] for r in self.records[: self.finished] if r["name"] == name]
            if offsets and (complete or not one_file):
                self.bucket.upload(self.folder / name, name)
            elif offsets:
                make_parts(self.bucket, self.folder, name, offsets)
        shown = {**self.data, "shards": self.records[: self.finished], "complete": complete}
        if not complete:
            shown["totals"] = {}
        self.bucket.overwrite("manifest.json", json.dumps(shown).encode())


@pytest.mark.full
@pytest.mark.parametrize("layout", ["build-nanogpt", "nanogpt"])
def test_a_build_into_a_bucket_is_followed(
    built: Callable[[str], Path], bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Its shards are given as they come, also those of one file that grows, which are parts."""
    build = Rehearsal(built(layout), f"{bucket_url}/out")
    monkeypatch.setattr(shards_module, "Clock", lambda: build)
    settings: dict[str, Any] = {"align": "document", "seed": 5}
    loader = loader_of(f"{bucket_url}/out", tmp_path, follow=True, **settings)
    lengths = lengths_in(built(layout))
    for epoch in range(2):
        rows = expected_rows(layout, lengths, settings, epoch, in_order=epoch == 0)
        assert epoch_rows(loader, epoch) == rows[: len(rows) // BATCH * BATCH]
    assert min(build.waits) >= 1.0


@pytest.mark.full
def test_a_build_that_ends_while_it_is_followed(
    built: Callable[[str], Path], bucket_url: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of its file are joined when one of them is asked for, and the training goes on."""
    build = Rehearsal(built("nanogpt"), f"{bucket_url}/out")
    while build.finished < len(build.records):
        build.sleep(0)
    monkeypatch.setattr(shards_module, "Clock", lambda: build)
    monkeypatch.setattr(ShardCache, "fetch_ahead", lambda *_: None)  # whose failures nobody hears of

    def join(_: str, path: str) -> None:
        if "parts/train.bin/0" in path and not build.bucket.head("train.bin"):
            build.bucket.upload(build.folder / "train.bin", "train.bin")
            build.bucket.delete([info.name for info in build.bucket.list(".fineweb-shards/parts/train.bin")])

    door.on_request = join
    settings: dict[str, Any] = {"align": "document", "seed": 5}
    loader = loader_of(f"{bucket_url}/out", tmp_path, follow=True, **settings)
    rows = expected_rows("nanogpt", lengths_in(built("nanogpt")), settings, in_order=True)
    assert epoch_rows(loader) == rows[: len(rows) // BATCH * BATCH]
    assert build.bucket.read(part_name("train.bin", 0)) is None


@pytest.mark.full
def test_a_build_that_runs_is_waited_for(bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock in the bucket says that it does; without one, there is nothing to wait for after a while."""
    clock = FakeClock()
    monkeypatch.setattr(shards_module, "Clock", lambda: clock)
    bucket = Bucket(f"{bucket_url}/out")
    bucket.overwrite(".fineweb-shards/lock.json", b"{}")

    def sleep(seconds: float) -> None:
        FakeClock.sleep(clock, seconds)
        if clock.seconds > 1000:
            bucket.delete([".fineweb-shards/lock.json"])

    monkeypatch.setattr(clock, "sleep", sleep)
    loader = loader_of(f"{bucket_url}/out", tmp_path, follow=True, patience_seconds=100)
    with pytest.raises(InputError, match="no build was started here within 2 min"):
        loader.next_batch()
    assert clock.seconds > 1000
