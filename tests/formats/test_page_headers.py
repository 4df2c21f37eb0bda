"""Pages of parquet files that unpack to more than fits into memory are refused by name, undecoded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats import parquet, parquet_file
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.formats.parquet_file import read_pages
from fineweb_shards.storage.place import BUCKET, ByteSource, InputFile, Place
from fineweb_shards.types import Batch
from fineweb_shards.vocabulary import GPT2
from tests.support import inline, reference, runs

MIB = 2**20
SMALL = [f"document {number}" for number in range(40)]
LONG = "A plain sentence of some forty characters. " * (40 * MIB // 43)
# In which a page of 33 MiB has room, and LONG has none.
BUDGET = "600MiB"


def write(path: Path, groups: list[list[str]], **settings: Any) -> Path:
    """A parquet file of these row groups."""
    schema = pa.schema({"text": pa.large_string()})
    with pq.ParquetWriter(path, schema, **{"compression": "zstd", **settings}) as writer:
        for texts in groups:
            writer.write_table(pa.table({"text": texts}, schema))
    return path


def read_at(data: bytes, offset: int, size: int) -> bytes:
    return data[offset : offset + size]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_headers_lead_from_page_to_page(tmp_path: Path, compression: str) -> None:
    """To the end of each column chunk, with all its values, whatever the writer was told."""
    texts = [f"text {number} " * (number % 50) for number in range(3000)] + ["x" * 100_000]
    columns = {"text": texts, "number": np.arange(3001), "list": [[1, 2]] * 3001}
    for version, dictionary, statistics in product(("1.0", "2.0"), (True, False), (True, False)):
        path = tmp_path / "a.parquet"
        pq.write_table(
            pa.table(columns), path, compression=compression, data_page_version=version, data_page_size=9999,
            use_dictionary=dictionary, write_statistics=statistics, row_group_size=2000,
        )  # fmt: skip
        data, metadata = path.read_bytes(), pq.ParquetFile(path).metadata
        for group, column in product(range(2), range(3)):
            chunk = metadata.row_group(group).column(column)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            end = begin + chunk.total_compressed_size
            pages = list(read_pages(partial(read_at, data), begin, end))
            assert sum(page.values for page in pages if page.kind != 2) == chunk.num_values
            headers = end - begin - sum(page.packed_bytes for page in pages)
            assert sum(page.unpacked_bytes for page in pages) + headers == chunk.total_uncompressed_size


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_page_without_room_is_refused_by_name(tmp_path: Path, dictionary: bool) -> None:
    """With the row group, the sizes and the next step; with skip the other row groups are kept."""
    path = write(tmp_path / "a.parquet", [SMALL, [*SMALL, LONG], SMALL], use_dictionary=dictionary)
    assert path.stat().st_size < 10**5
    words = ["build", path, "--out", tmp_path / "out", "--max-memory", BUDGET, "--workers", "1"]
    words += ["--shard-tokens", "100", "--val-tokens", "0"]
    done = inline.run_command(*words)
    assert done.returncode == 3, done.stderr
    assert f"{path}: row group 1: a page of the column 'text' unpacks to 41.9 MB" in done.stderr
    assert "--max-memory" in done.stderr
    done = inline.run_command(*words, "--on-bad-file", "skip")
    assert (done.returncode, "Left out: 1 damaged part" in done.stdout) == (0, True), done.stderr
    expected = reference.stream(SMALL + SMALL)
    found = [np.load(file) for file in sorted((tmp_path / "out").glob("*.npy"))]
    assert np.concatenate(found).tolist() == expected.tolist()


def test_a_large_row_group_of_small_pages_is_read(tmp_path: Path) -> None:
    """It is the page that is decoded whole, not the row group."""
    texts = [LONG[: 100 * 1024] for _ in range(450)]
    path = write(tmp_path / "a.parquet", [texts], use_dictionary=False, write_batch_size=8)
    words = ["plan", path, "--out", tmp_path / "out", "--max-memory", BUDGET, "--workers", "1"]
    done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_values_that_are_repeated_are_decoded_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary has a long text once, however many rows it is in; each of them is decoded."""
    monkeypatch.setattr(parquet_file, "_REPEATED_BYTES", MIB)
    sizes: list[int] = []
    decode = parquet._RowReader._next_slice

    def note(reader: Any) -> Any:
        rows = decode(reader)
        sizes.append(rows.nbytes)
        return rows

    monkeypatch.setattr(parquet._RowReader, "_next_slice", note)
    texts = [LONG[: 200 * 1024]] * 60 + SMALL
    path = write(tmp_path / "a.parquet", [texts])
    tokens, _ = runs.encode_inline(path)
    assert tokens == reference.stream(texts).tolist()
    assert max(sizes) < 1.2 * MIB


class FarAway(Place):
    """A file on this disk as if it were remote; counts what is fetched."""

    is_remote = True

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._data = path.read_bytes()
        self.fetched = 0

    def open(self, file: InputFile, address: str | None = None) -> ByteSource:
        return ByteSource(self._fetch, file.size_bytes)

    def stream(self, file: InputFile) -> BinaryIO:
        raise AssertionError("parquet is not read front to back")

    def _fetch(self, start: int, stop: int) -> memoryview:
        self.fetched += stop - start
        return memoryview(self._data)[start:stop]


@pytest.mark.full(but=["True-1024-False"])
@pytest.mark.parametrize(("largest_fetch", "refused"), [(MIB, True), (1024, False)])
@pytest.mark.parametrize("ahead", [True, False])
def test_remote_files_are_checked_in_what_is_fetched_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest_fetch: int, refused: bool, ahead: bool
) -> None:
    """No byte is fetched twice for it. What is large in the file, too, is only judged by its footer."""
    path = write(tmp_path / "a.parquet", [[*SMALL, LONG]], use_dictionary=False)
    place, size_bytes = FarAway(path), path.stat().st_size
    monkeypatch.setattr(parquet, "LARGEST_FETCH_BYTES", largest_fetch)
    monkeypatch.setattr(parquet_file, "LARGEST_FETCH_BYTES", largest_fetch)
    settings = ReadSettings("text", "auto", 8 * MIB, False, GPT2, largest_page_bytes=33 * MIB)
    file = InputFile(0, "s3://b/a.parquet", "a.parquet", "parquet", None, size_bytes, 0, "", place=BUCKET)
    format_ = ParquetFormat(settings, place)
    (batch,) = format_.batches(file, 0, False)
    if ahead:
        format_.prefetch(file, batch)
    if refused:
        with pytest.raises(BadFileError, match=r"a\.parquet: row group 0: a page of the column 'text'"):
            list(format_.chunks(file, batch))
        assert place.fetched < 2 * size_bytes  # the footer, and the column
    else:
        (first, *_) = format_.chunks(file, batch)
        assert len(first.documents) >= len(SMALL)
    format_.close()
    small = replace(settings, largest_page_bytes=MIB // 2)  # less than the average of the rows
    with pytest.raises(BadFileError, match="has room for 524"):
        list(ParquetFormat(small, place).chunks(file, Batch(0, 0, 1, 0)))
