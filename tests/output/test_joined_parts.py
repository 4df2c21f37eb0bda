"""A file that grows in a bucket, whose parts a build joins and deletes while somebody reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fineweb_shards.errors import ChangedError, InputError
from fineweb_shards.events import Observer
from fineweb_shards.output.bucket_store import BucketStore
from fineweb_shards.output.store import Segment
from fineweb_shards.reading.verify import fetch_range
from fineweb_shards.storage.bucket import Bucket
from tests.support.bucket_folders import part_name
from tests.support.bucket_server import Door

NAME = "train.npy"
HEADER = b"header for all of it"
TOKENS = os.urandom(10_000)
WHOLE = HEADER + TOKENS
BORDERS = [0, 3_000, 5_000, 8_000, len(WHOLE)]


class Build:
    """A build that has written all parts but the last; `finish` writes that, joins all and deletes them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.bucket, self.folder = Bucket(url), folder
        self.store = BucketStore(self.bucket, folder / "scratch")
        (folder / "scratch" / ".fineweb-shards").mkdir(parents=True)
        self.begin = 0

    def add_part(self, end: int, *, whole: bool = False) -> Segment:
        path = self.folder / "segment"
        # Until the file is whole, there is nothing in the place of its header.
        path.write_bytes((WHOLE if whole else bytes(len(HEADER)) + TOKENS)[self.begin : end])
        offset = self.begin or len(HEADER)
        size = end - offset
        header = HEADER if whole else b""
        segment = Segment(path, self.begin, NAME, "train", offset, size, size // 2, 0, whole, header)
        self.store.add_segment(segment, Observer())
        self.begin = end
        return segment

    def finish(self) -> None:
        self.store.name_file(self.add_part(len(WHOLE), whole=True))


@pytest.fixture
def build(door: Door, bucket_url: str, tmp_path: Path) -> Build:
    build = Build(f"{bucket_url}/out", tmp_path)
    for end in BORDERS[1:-1]:
        build.add_part(end)
    return build


@pytest.fixture
def reader(build: Build, tmp_path: Path) -> BucketStore:
    """Another machine's view of the same folder."""
    return BucketStore(Bucket(build.store.location), tmp_path / "other")


def once(action: Callable[[], None], path: str) -> Callable[[str, str], None]:
    """What a door calls: the action, for the first request whose path matches."""
    actions = [action]

    def call(_: str, its_path: str) -> None:
        if actions and re.search(path, its_path):
            actions.pop()()

    return call


def test_a_range_is_read_on(build: Build, reader: BucketStore) -> None:
    """One that was found in the parts is read from the whole file, across their boundaries too."""
    found = reader.require(NAME)
    assert not found.named
    build.finish()
    for begin, end in ((20, 30), (2_000, 8_000), (4_999, 5_001), (len(HEADER), found.size_bytes)):
        assert reader.read_range(found, begin, end) == WHOLE[begin:end]


def test_an_open_file_is_read_on(build: Build, reader: BucketStore) -> None:
    """From the byte where it was, or from any other one."""
    found = reader.require(NAME)
    with reader.open(found) as before, reader.open(found) as after:
        assert before.read(100)[len(HEADER) :] == WHOLE[len(HEADER) : 100]
        build.finish()
        assert before.read() == WHOLE[100 : found.size_bytes]
        after.seek(4_000)
        assert after.read(2_000) == WHOLE[4_000:6_000]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_parts_may_go_while_one_is_asked_for(
    build: Build, reader: BucketStore, door: Door, tmp_path: Path, number: int
) -> None:
    """Whichever it is: all bytes of the segment come, and no others."""
    door.on_request = once(build.finish, f"parts/{NAME}/{BORDERS[number]:016}")
    fetch_range(reader, NAME, len(HEADER), BORDERS[3], tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == WHOLE[len(HEADER) : BORDERS[3]]
    assert reader.require(NAME).named


def test_only_some_parts_are_deleted_yet(build: Build, reader: BucketStore) -> None:
    """They go one by one, and a reader may come between any two."""
    found = reader.require(NAME)
    build.add_part(len(WHOLE), whole=True)
    for begin in BORDERS[:3]:
        build.bucket.delete([part_name(NAME, begin)])
        assert reader.read_range(found, 20, 8_000) == WHOLE[20:8_000]


def test_parts_that_are_left_hide_no_header(build: Build, reader: BucketStore) -> None:
    """A file that was joined is read as it is, though a kill came before its parts were deleted."""
    build.add_part(len(WHOLE), whole=True)
    found = reader.require(NAME)
    assert found.named
    assert reader.read_range(found, 0, len(WHOLE)) == WHOLE


def test_a_file_is_found_while_it_is_joined(build: Build, reader: BucketStore, door: Door) -> None:
    """It is never missing, not even if its parts go between two requests of the search."""
    door.on_answer = once(build.finish, NAME)
    found = reader.require(NAME)
    assert reader.read_range(found, 20, 8_000) == WHOLE[20:8_000]


def test_a_file_that_was_whole_grows_on(build: Build, reader: BucketStore) -> None:
    """Its own object is its beginning then, and is replaced when its parts are joined."""
    build.store.name_file(build.add_part(9_000, whole=True))
    build.add_part(9_500)
    found = reader.require(NAME)
    assert found.size_bytes == 9_500
    build.add_part(len(WHOLE), whole=True)
    assert reader.read_range(found, 20, 9_500) == WHOLE[20:9_500]


def test_what_is_not_joined_is_an_error(build: Build, reader: BucketStore) -> None:
    """A part that was lost, a file that somebody begins anew, or one that was replaced when it was whole."""
    found = reader.require(NAME)
    build.bucket.delete([part_name(NAME, 3_000)])
    with pytest.raises(InputError, match=r"parts/train\.npy/0000000000003000: there is no such object"):
        reader.read_range(found, 20, 8_000)
    build.store.remove([NAME])
    build.bucket.overwrite(NAME, b"other")
    with pytest.raises(InputError, match="there is no such object"):
        reader.read_range(found, 20, 8_000)
    found = reader.require(NAME)
    build.bucket.overwrite(NAME, b"and another")
    with pytest.raises(ChangedError, match="was replaced"):
        reader.read_range(found, 0, 5)
