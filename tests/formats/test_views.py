"""Streams: gzip, zstd and standard input give what the plain file gives."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fineweb_shards.errors import BadFileError, ChangedError, InputError
from fineweb_shards.formats.ranges import StreamView
from fineweb_shards.storage.local import LocalPlace
from fineweb_shards.storage.place import InputFile
from fineweb_shards.storage.streams import expansion_of, open_stream
from fineweb_shards.types import Cursor
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_gzip, write_jsonl, write_text, write_zstd

DOCUMENTS = [text for text in make_documents(150, seed=6) if text and "<|endoftext|>" not in text]
EXPECTED = reference.shard_files(reference.stream(DOCUMENTS), 3000)


@pytest.mark.parametrize("batch_bytes", [1024, 10_000])
@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.jsonl.zst"])
def test_compressed_files(tmp_path: Path, name: str, batch_bytes: int) -> None:
    """The same bytes as from the plain file."""
    plain = (write_jsonl if "jsonl" in name else write_text)(tmp_path / "plain", DOCUMENTS)
    write = write_gzip if name.endswith("gz") else write_zstd
    path = write(tmp_path / name, plain.read_bytes())
    runs.build_inline(tmp_path / "out", path, shard_tokens=3000, batch_bytes=batch_bytes)
    assert runs.shards_in(tmp_path / "out") == EXPECTED


def test_several_members_in_one_gzip_file(tmp_path: Path) -> None:
    """As `cat a.gz b.gz` makes them."""
    data = write_text(tmp_path / "plain", DOCUMENTS).read_bytes()
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(data[:5000]) + gzip.compress(data[5000:]))
    runs.build_inline(tmp_path / "out", path, shard_tokens=3000)
    assert runs.shards_in(tmp_path / "out") == EXPECTED


def test_several_frames_in_one_zstd_file(tmp_path: Path) -> None:
    """As parallel compressors make them."""
    data = write_text(tmp_path / "plain", DOCUMENTS).read_bytes()
    one = write_zstd(tmp_path / "one", data[:5000]).read_bytes()
    two = write_zstd(tmp_path / "two", data[5000:]).read_bytes()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(one + two)
    runs.build_inline(tmp_path / "out", path, shard_tokens=3000)
    assert runs.shards_in(tmp_path / "out") == EXPECTED


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_damaged_streams_are_told(tmp_path: Path, name: str, damage: str) -> None:
    """With the file's name, never a shorter result that looks complete."""
    data = write_text(tmp_path / "plain", DOCUMENTS * 20).read_bytes()
    path = (write_gzip if name.endswith("gz") else write_zstd)(tmp_path / name, data)
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) // 2] if damage == "truncated" else b"garbage" * 100)
    with pytest.raises(BadFileError, match=name):
        runs.build_inline(tmp_path / "out", path, shard_tokens=3000)


def test_resuming_a_stream_reads_up_to_the_place(tmp_path: Path) -> None:
    """And gives the same shards, from every one of them on."""
    path = write_gzip(tmp_path / "a.txt.gz", write_text(tmp_path / "plain", DOCUMENTS).read_bytes())
    manifest = runs.build_inline(tmp_path / "out", path, shard_tokens=3000, batch_bytes=1024)
    for record in manifest.shards[1:]:
        (tmp_path / "out" / record.name).unlink()
        runs.build_inline(tmp_path / "out", path, shard_tokens=3000, batch_bytes=5000)
        assert runs.shards_in(tmp_path / "out") == EXPECTED


def test_a_stream_keeps_only_what_is_needed(tmp_path: Path) -> None:
    """Skipping to a place does not collect what is skipped."""
    path = write_gzip(tmp_path / "a.gz", b"x" * (64 * 2**20))
    file = InputFile(0, str(path), "a.gz", "text", "gzip", path.stat().st_size, 0, "")
    view = StreamView(file, open_stream(file, LocalPlace()))
    view.skip_to(60 * 2**20)
    assert view.read_at(60 * 2**20, 10) == b"x" * 10
    assert len(view._kept) < 4 * 2**20
    view.close()


def test_expansion_is_measured(tmp_path: Path) -> None:
    """How much larger the text is than the file, for estimates."""
    path = write_gzip(tmp_path / "a.gz", b"some text that repeats " * 100_000)
    file = InputFile(0, str(path), "a.gz", "text", "gzip", path.stat().st_size, 0, "")
    assert expansion_of(file, LocalPlace()) > 20


def test_compressed_parquet_is_refused(tmp_path: Path) -> None:
    """It compresses by itself."""
    (tmp_path / "a.parquet.gz").write_bytes(b"")
    with pytest.raises(InputError, match="compressed parquet"):
        runs.job_of(tmp_path / "out", tmp_path / "a.parquet.gz")


@pytest.mark.full
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz"])
def test_what_is_kept_of_a_truncated_stream_does_not_depend_on_the_batch(tmp_path: Path, name: str) -> None:
    """With `skip`, every whole document before the damage, and not the one that is cut off."""
    plain = (write_jsonl if "jsonl" in name else write_text)(tmp_path / "plain", DOCUMENTS * 30)
    path = write_gzip(tmp_path / name, plain.read_bytes())
    path.write_bytes(path.read_bytes()[:-20_000])
    kept = set()
    for batch_bytes in (1024, 50_000, 10**7):
        out = tmp_path / str(batch_bytes)
        manifest = runs.build_inline(out, path, batch_bytes=batch_bytes, on_bad_file="skip")
        assert manifest.totals["bad_parts"] == 1
        kept.add((manifest.documents, tuple(reference.digests(runs.shards_in(out)).values())))
    ((documents, digests),) = kept
    expected = reference.shard_files(reference.stream((DOCUMENTS * 30)[:documents]), 10**9)
    assert tuple(reference.digests(expected).values()) == digests


def test_a_stream_that_is_shorter_than_where_it_was_left_is_refused(tmp_path: Path) -> None:
    """Standard input may be another one this time."""
    path = write_gzip(tmp_path / "a.txt.gz", b"short")
    source = runs.job_of(tmp_path / "out", path).source
    with pytest.raises(ChangedError, match="ends before byte 1,000"):
        list(source.batches((Cursor(0, 1000),)))
