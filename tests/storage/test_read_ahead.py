"""Streams that are read ahead in threads, and gzip by two libraries."""

from __future__ import annotations

import gzip
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fineweb_shards.storage import streams
from fineweb_shards.storage.streams import DamagedStreamError, FastGzipUnpacker, GzipUnpacker, ReadAhead, Unpacker
from tests.support.documents import make_documents

TEXT = "\n".join(make_documents(300, seed=81)).encode("utf-8", "replace")


def blocks_then(blocks: list[bytes], error: BaseException | None = None) -> Callable[[int], bytes]:
    left = list(blocks)

    def read(size: int) -> bytes:
        if left:
            return left.pop(0)
        if error is not None:
            raise error
        return b""

    return read


def test_what_is_read_ahead_is_the_stream() -> None:
    """Every block in its order, then nothing, however often it is asked."""
    blocks = [bytes([number]) * 1000 for number in range(1, 60)]
    stream = ReadAhead(blocks_then(blocks), lambda: None)
    assert [stream.read() for _ in blocks] == blocks
    assert [stream.read() for _ in range(3)] == [b"", b"", b""]


@pytest.mark.parametrize("error", [DamagedStreamError("torn"), OSError(5, "I/O"), SystemExit(0)])
def test_an_error_comes_where_it_stands_in_the_stream(error: BaseException) -> None:
    """After everything in front of it, and again if it is asked again; whatever kind it is."""
    stream = ReadAhead(blocks_then([b"one", b"two"], error), lambda: None)
    assert [stream.read(), stream.read()] == [b"one", b"two"]
    for _ in range(2):
        with pytest.raises(type(error)):
            stream.read()


def test_no_more_than_a_few_blocks_are_ahead() -> None:
    """However fast the stream and however slow its reader; closed, the thread ends and closes the stream."""
    reads = 0
    closed = threading.Event()

    def endless(size: int) -> bytes:
        nonlocal reads
        reads += 1
        return b"x" * 10

    stream = ReadAhead(endless, closed.set)
    while reads < 9:
        time.sleep(0.001)
    time.sleep(0.05)
    assert reads <= 10  # eight wait, one is about to, and this thread may look in between
    stream.close()
    assert closed.wait(60)


def read_all(unpacker: Unpacker, size: int) -> tuple[bytes, str]:
    """All text of a file, and the error that it ends with, if any."""
    text = b""
    try:
        while part := unpacker.read(size):
            text += part
    except DamagedStreamError as error:
        return text, f"{type(error).__name__}: {error}"
    finally:
        unpacker.close()
    return text, ""


def damaged(packed: bytes, chooser: random.Random) -> bytes:
    """Cut off, with a flipped bit, with something behind it, or with two members and zeros between them."""
    kind = chooser.randrange(4)
    if kind == 0:
        return packed[: chooser.randrange(len(packed))]
    if kind == 1:
        place = chooser.randrange(len(packed))
        return packed[:place] + bytes([packed[place] ^ 1 << chooser.randrange(8)]) + packed[place + 1 :]
    if kind == 2:
        return packed + bytes(chooser.randrange(3)) + b"no gzip"
    return packed + bytes(chooser.randrange(2000)) + gzip.compress(TEXT[: chooser.randrange(3000)])


@pytest.mark.full
@pytest.mark.skipif(streams.isal_zlib is None, reason="there is no ISA-L for this machine")
def test_both_libraries_read_the_same_text_of_any_file(tmp_path: Path) -> None:
    """Whole or damaged in any way: the same text, and the same error in the same place."""
    chooser = random.Random(82)
    packed = gzip.compress(TEXT, 6)
    path = tmp_path / "a.gz"
    for data in [packed, packed * 2, packed + bytes(99999), *(damaged(packed, chooser) for _ in range(300))]:
        path.write_bytes(data)
        size = chooser.choice([1000, 2**20])
        with open(path, "rb") as file:
            expected = read_all(GzipUnpacker(file), size)
        assert read_all(FastGzipUnpacker(partial(open, path, "rb")), size) == expected
