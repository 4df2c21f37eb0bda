"""Parquet: only the text column, any row groups, any string type, bad files by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
import runs
from documents import make_documents
from inputs import write_parquet

from fineweb_shards.errors import BadFileError
from fineweb_shards.sources import parquet, rows

DOCUMENTS = make_documents(200, seed=3)


def shards_of(documents: list[str], shard_tokens: int = 10**9) -> dict[str, bytes]:
    return reference.shard_files(reference.stream(documents), shard_tokens)


@pytest.mark.parametrize("rows", [1, 7, 100, 1000])
@pytest.mark.parametrize("batch_bytes", [1024, 20_000, 10**7])
def test_row_groups_and_batches_of_any_size(tmp_path: Path, rows: int, batch_bytes: int) -> None:
    """Many small row groups in a batch, and many stripes of a large one, give the same bytes."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, rows)
    runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes, shard_tokens=5000)
    assert runs.shards_in(tmp_path / "out") == shards_of(DOCUMENTS, 5000)


@pytest.mark.parametrize("rows", [20, 1000])
def test_resume_from_every_shard(tmp_path: Path, rows: int) -> None:
    """With another batch size than before; skipped documents are counted once."""
    documents = [None if i % 9 == 0 else text for i, text in enumerate(DOCUMENTS)]
    path = write_parquet(tmp_path / "a.parquet", documents, rows)
    first = runs.build_inline(tmp_path / "out", path, batch_bytes=2000, shard_tokens=3000)
    expected = shards_of([text for text in documents if text is not None], 3000)
    assert runs.shards_in(tmp_path / "out") == expected
    assert first.totals["skipped_documents"] == 23
    for record in first.shards[1:]:
        (tmp_path / "out" / record.name).unlink()
        again = runs.build_inline(tmp_path / "out", path, batch_bytes=9000, shard_tokens=3000)
        assert runs.shards_in(tmp_path / "out") == expected
        assert again.totals == first.totals


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]
)
def test_every_kind_of_text_column(tmp_path: Path, kind: pa.DataType) -> None:
    """string, large_string, binary and views are all text."""
    texts = [text.encode() for text in DOCUMENTS]
    pq.write_table(pa.table({"text": pa.array(texts, pa.binary()).cast(kind)}), tmp_path / "a.parquet")
    runs.build_inline(tmp_path / "out", tmp_path / "a.parquet", batch_bytes=4096)
    assert runs.shards_in(tmp_path / "out") == shards_of(DOCUMENTS)


def test_dictionary_column(tmp_path: Path) -> None:
    """A column of repeated texts, as pandas categories are written."""
    texts = DOCUMENTS[:5] * 40
    table = pa.table({"text": pa.array(texts).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    runs.build_inline(tmp_path / "out", tmp_path / "a.parquet")
    assert runs.shards_in(tmp_path / "out") == shards_of(texts)


def test_invalid_utf8_in_a_string_column(tmp_path: Path) -> None:
    """Some writers don't check; the text is repaired and counted."""
    broken = pa.array([b"fine", b"bro\xffken", None], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    manifest = runs.build_inline(tmp_path / "out", tmp_path / "a.parquet")
    assert runs.shards_in(tmp_path / "out") == shards_of(["fine", "bro\ufffdken"])
    assert manifest.totals["replaced_characters"] == 1
    assert manifest.totals["skipped_documents"] == 1


def test_an_empty_text_is_a_document_and_null_is_not(tmp_path: Path) -> None:
    """EOT alone for "", as in the original; nothing for null, but it is counted."""
    path = write_parquet(tmp_path / "a.parquet", ["", None, "x", ""])
    manifest = runs.build_inline(tmp_path / "out", path)
    tokens = np.load(tmp_path / "out" / "edufineweb_val_000000.npy").tolist()
    assert tokens == [50256, 50256, *reference.encode("x"), 50256]
    assert manifest.documents == 3
    assert manifest.totals["skipped_documents"] == 1


@pytest.mark.parametrize(
    "long", ["prose with words " * 900, "的一是不了" * 2500, "q" * 12_000, "\n" * 12_000]
)
def test_a_huge_cell_is_encoded_in_pieces(tmp_path: Path, long: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell longer than a chunk comes in several blocks, with exactly its tokens."""
    monkeypatch.setattr(rows, "_LONG_CELL_BYTES", 70_000 // 16)
    monkeypatch.setattr(rows, "_CUT_WINDOW_BYTES", 2000)
    documents = ["before", long, "between", "", long, "after"]
    path = write_parquet(tmp_path / "a.parquet", documents, 4)
    runs.build_inline(tmp_path / "out", path, shard_tokens=1000)
    assert runs.shards_in(tmp_path / "out") == shards_of(documents, 1000)


@pytest.mark.promise(20)
@pytest.mark.parametrize("damage", ["empty", "garbage", "truncated", "no column", "wrong type", "missing"])
def test_bad_files_are_named_or_skipped(tmp_path: Path, damage: str) -> None:
    """`stop` names the file; `skip` leaves it out, counts it, and takes the others."""
    good = write_parquet(tmp_path / "a.parquet", DOCUMENTS[:20])
    bad = write_parquet(tmp_path / "b.parquet", DOCUMENTS[20:40])
    last = write_parquet(tmp_path / "c.parquet", DOCUMENTS[40:60])
    if damage == "empty":
        bad.write_bytes(b"")
    elif damage == "garbage":
        bad.write_bytes(b"not parquet at all" * 100)
    elif damage == "truncated":
        bad.write_bytes(bad.read_bytes()[:-100])
    elif damage == "no column":
        pq.write_table(pa.table({"body": ["x"]}), bad)
    elif damage == "wrong type":
        pq.write_table(pa.table({"text": [1, 2]}), bad)
    job = runs.job_of(tmp_path / "x", good, bad, last)
    if damage == "missing":
        bad.unlink()
        with pytest.raises(BadFileError, match=r"b\.parquet"):
            list(job.source.batches(runs.START))
        return
    with pytest.raises(BadFileError, match=r"b\.parquet") as error:
        runs.build_inline(tmp_path / "out", good, bad, last)
    if damage == "no column":
        assert "body" in error.value.message
    manifest = runs.build_inline(tmp_path / "out", good, bad, last, on_bad_file="skip")
    assert runs.shards_in(tmp_path / "out") == shards_of(DOCUMENTS[:20] + DOCUMENTS[40:60])
    assert manifest.totals["bad_parts"] == 1


@pytest.mark.promise(20)
def test_a_damaged_row_group_is_named_or_skipped(tmp_path: Path) -> None:
    """Only that row group is left out."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS[:60], 20, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    with pytest.raises(BadFileError, match=r"a\.parquet: row group 1"):
        runs.build_inline(tmp_path / "out", path, batch_bytes=1024)
    manifest = runs.build_inline(tmp_path / "out", path, batch_bytes=1024, on_bad_file="skip")
    assert runs.shards_in(tmp_path / "out") == shards_of(DOCUMENTS[:20] + DOCUMENTS[40:60])
    assert manifest.totals["bad_parts"] >= 1


def test_stripes_of_several_files_in_one_worker(tmp_path: Path) -> None:
    """A worker that turns from one file's row group to another's must not read on in the first."""
    first = write_parquet(tmp_path / "a.parquet", [f"first file, row {i}" for i in range(400)], 400)
    second = write_parquet(tmp_path / "b.parquet", [f"second file, row {i}" for i in range(900)], 900)
    source = runs.job_of(tmp_path / "out", first, second, batch_bytes=1024).source
    batches = list(source.batches(runs.START))
    stripes = [[b for b in batches if b.file == number] for number in (0, 1)]
    assert len(stripes[0]) > 3
    list(source.chunks(stripes[0][0]))
    (chunk,) = source.chunks(stripes[1][3])
    source.close()
    begin, end = stripes[1][3].rows or (0, 0)
    assert chunk.documents == [f"second file, row {i}" for i in range(begin, end)]


def test_rows_are_decoded_a_little_at_a_time(tmp_path: Path) -> None:
    """However long the rows are: a stretch is chosen by their average length."""
    path = write_parquet(
        tmp_path / "a.parquet", ["long " * 100_000] * 20, 20, compression="zstd", use_dictionary=False
    )
    opened = pq.ParquetFile(path)
    assert parquet._stretch_rows(opened.metadata.row_group(0), "text") == 1
    opened.close()


def test_a_damaged_row_group_counts_once_however_it_is_cut(tmp_path: Path) -> None:
    """Stripes behind the damage don't report it again."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 200, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    found = set()
    for batch_bytes in (1024, 5000, 10**7):
        out = tmp_path / str(batch_bytes)
        manifest = runs.build_inline(out, path, batch_bytes=batch_bytes, on_bad_file="skip")
        found.add((manifest.totals["bad_parts"], manifest.tokens))
    assert len(found) == 1
    assert found.pop()[0] == 1


@pytest.mark.parametrize("column", ["a.text", "twice"])
def test_nested_and_doubled_columns_are_told(tmp_path: Path, column: str) -> None:
    """With the names that exist."""
    table = pa.table([pa.array([{"text": "x"}]), pa.array(["x"]), pa.array(["y"])], ["a", "twice", "twice"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(BadFileError, match="columns are: a, twice, twice"):
        runs.build_inline(tmp_path / "out", tmp_path / "a.parquet", text_column=column)
