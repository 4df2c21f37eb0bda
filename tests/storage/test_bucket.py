"""Every method of a bucket, against an S3 server on this machine."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import obstore
import pytest

from fineweb_shards.errors import ChangedError, InputError, OutputError, UsageError
from fineweb_shards.events import Observer
from fineweb_shards.storage import bucket_requests as ranges
from fineweb_shards.storage.bucket import Bucket, plan_parts
from fineweb_shards.storage.bucket_client import ConflictError
from fineweb_shards.storage.bucket_requests import ObjectInfo, Version
from fineweb_shards.system.shell_commands import install_command
from tests.support.bucket_server import KEY, SECRET

ODD_NAME = "folder/o dd%20é+?#~*[x].txt"


@pytest.fixture
def bucket(bucket_url: str) -> Bucket:
    return Bucket(f"{bucket_url}/some/folder")


def unfinished_uploads(url: str) -> list[str]:
    found = boto3.client("s3").list_multipart_uploads(Bucket=url.removeprefix("s3://"))
    return [upload["Key"] for upload in found.get("Uploads", [])]


def test_what_is_written_is_read(bucket: Bucket) -> None:
    """A name with any character holds what was written last."""
    bucket.overwrite(ODD_NAME, b"first")
    version = bucket.overwrite(ODD_NAME, b"second")
    found = bucket.read(ODD_NAME)
    assert found is not None
    assert found[0] == b"second"
    assert found[1].etag == version.etag
    assert bucket.read("nothing") is None
    assert bucket.head("nothing") is None


def test_listings_are_relative_to_the_folder(bucket: Bucket, bucket_url: str) -> None:
    """A listing has everything below the folder, and nothing beside it; a folder's has its own objects."""
    names = ["a.bin", "b/c.bin", "b/d/e.bin", ODD_NAME]
    for name in names:
        bucket.overwrite(name, name.encode())
    Bucket(bucket_url).overwrite("some/folder2/x", b"")
    assert sorted(one.name for one in bucket.list()) == sorted(names)
    assert {one.name: one.size_bytes for one in bucket.list("b")} == {"b/c.bin": 7, "b/d/e.bin": 9}
    assert [one.name for one in bucket.list_folder()] == ["a.bin"]
    assert [one.name for one in bucket.list_folder("b")] == ["b/c.bin"]
    assert list(bucket.list("none")) == bucket.list_folder("none") == []
    (listed,) = bucket.list_folder()
    assert listed == bucket.head("a.bin")
    assert listed.etag
    assert '"' not in listed.etag


def test_a_long_listing_is_whole(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """More objects than are taken at once are all listed, once, also if the listing is interrupted."""
    really_list, breaks = obstore.list, [1, 2]

    def list_and_break(*arguments: Any, **options: Any) -> Iterator[Any]:
        for pages, page in enumerate(really_list(*arguments, **options)):
            if breaks and pages == breaks[0]:
                del breaks[0]
                raise obstore.exceptions.GenericError("HttpError: the connection broke")
            yield page

    monkeypatch.setattr(obstore, "list", list_and_break)
    monkeypatch.setattr("fineweb_shards.storage.bucket._LISTED_AT_ONCE", 4)
    for number in range(22):
        bucket.overwrite(f"{number:02}", b"")
    assert [one.name for one in bucket.list()] == [f"{number:02}" for number in range(22)]
    assert not breaks


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_listing_that_begins_again_ends(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, interrupted: bool) -> None:
    """A store that ignores where a listing is to begin would give the same objects for ever, or twice."""
    really_list = obstore.list

    def list_again(*arguments: Any, offset: str | None, **options: Any) -> Iterator[Any]:
        while True:
            yield from really_list(*arguments, **options)
            if interrupted and offset is None:
                raise obstore.exceptions.GenericError("HttpError: the connection broke")

    monkeypatch.setattr(obstore, "list", list_again)
    monkeypatch.setattr("fineweb_shards.storage.bucket._LISTED_AT_ONCE", 4)
    for number in range(22):
        bucket.overwrite(f"{number:02}", b"")
    with pytest.raises(InputError, match="lists an object twice"):
        for _ in itertools.islice(bucket.list(), 100):
            pass


def test_ranges_are_exact(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range has the bytes that were asked for, also when it is fetched in several parts."""
    data = random.Random(1).randbytes(100_000)
    bucket.overwrite("x", data)
    monkeypatch.setattr(ranges, "_PART_BYTES", 7000)
    for begin, end in ((0, 1), (99_999, 100_000), (0, 100_000), (123, 45_678), (5, 5)):
        assert bucket.read_range("x", begin, end) == data[begin:end]


def test_a_range_behind_the_end_is_refused(bucket: Bucket) -> None:
    """A range that the object does not have is an error that names it, not fewer bytes."""
    bucket.overwrite("x", b"0123456789")
    for begin, end in ((5, 11), (20, 30)):
        with pytest.raises(InputError, match="some/folder/x"):
            bucket.read_range("x", begin, end)
    with pytest.raises(InputError, match="some/folder/y: there is no such object"):
        bucket.read_range("y", 0, 1)


def test_a_replaced_object_is_noticed(bucket: Bucket) -> None:
    """With an ETag, bytes of another version are never returned."""
    bucket.overwrite("x", b"0123456789")
    before = bucket.head("x")
    assert before is not None
    assert bucket.read_range("x", 2, 4, before.etag) == b"23"
    bucket.overwrite("x", b"9876543210")
    with pytest.raises(ChangedError, match="some/folder/x: the object was replaced"):
        bucket.read_range("x", 2, 4, before.etag)


def test_an_object_is_a_file(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and seeks, in order and not, return what they would from a local file."""
    monkeypatch.setattr("fineweb_shards.storage.place._BLOCK_BYTES", 5000)
    data = random.Random(2).randbytes(64_321)
    bucket.overwrite("x", data)
    local, dice = io.BytesIO(data), random.Random(3)
    with bucket.open("x") as remote:
        for _ in range(200):
            place = dice.randrange(len(data) + 10)
            if dice.random() < 0.5:
                assert remote.seek(place) == local.seek(place)
            size = dice.randrange(9000)
            assert remote.read(size) == local.read(size)
            assert remote.tell() == local.tell()
        remote.seek(-10, io.SEEK_END)
        assert remote.read() == data[-10:]
    with pytest.raises(InputError, match="no such object"):
        bucket.open("missing")


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file never holds bytes of two objects."""
    monkeypatch.setattr("fineweb_shards.storage.place._BLOCK_BYTES", 1000)
    bucket.overwrite("x", bytes(50_000))
    with bucket.open("x") as remote:
        remote.read(10)
        bucket.overwrite("x", b"1" * 50_000)
        with pytest.raises(ChangedError):
            remote.seek(40_000) and remote.read(10)


def test_a_small_object_that_is_large_is_not_read(bucket: Bucket) -> None:
    """An object in the place of one of ours that is larger than any of them is refused by name: it would fill the
    memory."""
    bucket.overwrite("x", bytes(1001))
    with pytest.raises(InputError, match=r"/x: 1,001 bytes long; .* at most 1,000"):
        bucket.read("x", 1000)
    found = bucket.read("x", 1001)
    assert found is not None
    assert found[0] == bytes(1001)


def test_a_write_replaces_only_what_it_says(bucket: Bucket) -> None:
    """A second writer is refused: both a new object, and one that somebody else has changed."""
    first = bucket.write("manifest", b"one", replaces=None)
    with pytest.raises(ConflictError, match="some/folder/manifest"):
        bucket.write("manifest", b"one", replaces=None)
    second = bucket.write("manifest", b"two", replaces=first)
    with pytest.raises(ConflictError):
        bucket.write("manifest", b"three", replaces=first)
    assert bucket.read("manifest") == (b"two", second)
    bucket.delete(["manifest"])
    with pytest.raises(ConflictError):
        bucket.write("manifest", b"three", replaces=second)
    assert bucket.read("manifest") is None


def test_conditions_are_tried_once_and_leave_nothing(bucket: Bucket) -> None:
    """Finding out whether a store knows conditions leaves no object."""
    assert bucket.has_conditional_writes
    assert list(bucket.list()) == []


@pytest.mark.parametrize("size", [0, 1, 100_000, 9_000_000, 20_000_001])
def test_an_upload_has_all_bytes(bucket: Bucket, bucket_url: str, tmp_path: Path, size: int) -> None:
    """A file arrives whole, in one part or several, and no unfinished upload is left."""
    path = tmp_path / "file"
    path.write_bytes(random.Random(size).randbytes(size))
    version = bucket.upload(path, "a/shard.bin")
    found = bucket.read("a/shard.bin", size)
    assert found is not None
    assert found[0] == path.read_bytes()
    assert found[1].etag == version.etag
    assert unfinished_uploads(bucket_url) == []


class FailingFile(io.FileIO):
    """A file whose disk fails in the middle."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 10_000_000:
            raise KeyboardInterrupt
        return super().read(size)


def test_an_upload_that_fails_leaves_nothing(bucket: Bucket, bucket_url: str, tmp_path: Path) -> None:
    """If reading ends with an exception, a signal's for example, it is raised as it is; nothing is visible and no part
    stays."""
    (tmp_path / "file").write_bytes(bytes(30_000_000))
    with FailingFile(tmp_path / "file") as file, pytest.raises(KeyboardInterrupt):
        bucket.upload_file(file, 30_000_000, "shard.bin")
    assert bucket.head("shard.bin") is None
    assert unfinished_uploads(bucket_url) == []


@pytest.mark.promise("a bucket never shows half a shard; only one writer wins")
@pytest.mark.parametrize("there", [0, 1000, 20_000_000])
def test_a_file_that_becomes_shorter_is_not_published(
    bucket: Bucket, bucket_url: str, tmp_path: Path, there: int
) -> None:
    """If it ends before the bytes that it should have, an error says so, and nothing is visible."""
    path = tmp_path / "file"
    path.write_bytes(bytes(there))
    with path.open("rb") as file, pytest.raises(OSError, match="has become shorter"):
        bucket.upload_file(file, 30_000_000, "shard.bin")
    assert bucket.head("shard.bin") is None
    assert unfinished_uploads(bucket_url) == []


def test_parts_fit_a_file_of_any_size() -> None:
    """10,000 parts suffice for 5 TB, and a shard's parts take at most 64 MiB of memory."""
    for size in (0, 200_000_000, 10**11, 5 * 2**40):
        part, at_once = plan_parts(size)
        assert part * 10_000 >= size
        assert part >= 5 * 2**20
        assert (at_once + 1) * part <= max(64 * 2**20, 2 * part)


def test_deleting_what_is_not_there_is_no_error(bucket: Bucket) -> None:
    """Delete makes sure that names are gone."""
    bucket.overwrite("x", b"1")
    bucket.overwrite("y", b"1")
    bucket.delete(["x", "missing"])
    assert [one.name for one in bucket.list()] == ["y"]


def test_a_pickled_bucket_holds_no_credentials(bucket: Bucket) -> None:
    """Another process gets address and settings, and finds credentials by itself."""
    bucket.overwrite("x", b"1")
    pickled = pickle.dumps(bucket)
    assert KEY.encode() not in pickled
    assert SECRET.encode() not in pickled
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read('x')[0])"
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, check=True)
    assert done.stdout.strip() == b"b'1'"
    assert KEY not in repr(bucket)


def test_bytes_are_counted_by_the_observer(bucket: Bucket) -> None:
    """What comes over the network is told to the observer of the copy that fetched it."""

    class Counter(Observer):
        fetched = 0

        def add_fetched(self, size_bytes: int) -> None:
            self.fetched += size_bytes

    counter = Counter()
    bucket.overwrite("x", bytes(1000))
    bucket.reopened(counter).read_range("x", 100, 400)
    assert counter.fetched == 300


def test_values_are_comparable() -> None:
    """Descriptions are values."""
    assert ObjectInfo("a", 1, "b", 2.0) == ObjectInfo("a", 1, "b", 2.0)
    assert Version("a", None) != Version("b", None)


def test_without_obstore_the_extra_is_named(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step is the command that installs it."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        Bucket(bucket_url)
    assert install_command("obstore") in caught.value.hint


def test_obstore_is_not_loaded_without_a_bucket() -> None:
    """A run over local files never imports the client."""
    code = (
        "import sys; import fineweb_shards.commands.main, fineweb_shards.storage.bucket; "
        "sys.exit('obstore' in sys.modules or 'boto3' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_the_caller_chooses_the_class_of_errors(bucket_url: str) -> None:
    """A bucket that is written reports errors of the output."""
    with pytest.raises(OutputError, match="there is no such object"):
        Bucket(bucket_url, refusal=OutputError).read_range("x", 0, 1)
