"""Parquet: only the text column, any row groups, any string type, bad files by name."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats import parquet, rows
from fineweb_shards.formats import parquet_file as footer
from fineweb_shards.run.plan import make_plan
from fineweb_shards.tokenizers import cuts
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet
from tests.support.promises import Tries

DOCUMENTS = make_documents(200, seed=3)


def damage(path: Path, column: pq.ColumnChunkMetaData) -> None:
    """Forty bytes in the middle of a column that are not what they were."""
    data = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))


def shards_of(documents: list[str], shard_tokens: int = 10**9) -> dict[str, bytes]:
    return reference.shard_files(reference.stream(documents), shard_tokens)


@pytest.mark.full(but=["1024-7", "20000-100", "10000000-1000"])
@pytest.mark.parametrize("rows", [1, 7, 100, 1000])
@pytest.mark.parametrize("batch_bytes", [1024, 20_000, 10**7])
def test_row_groups_and_batches_of_any_size(tmp_path: Path, rows: int, batch_bytes: int) -> None:
    """Many small row groups in a batch, and many stripes of a large one, give the same bytes."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, rows)
    runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes, shard_tokens=5000)
    assert runs.shards_in(tmp_path / "out") == shards_of(DOCUMENTS, 5000)


@pytest.mark.full(but=["20"])
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


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()])
def test_every_kind_of_text_column(tmp_path: Path, kind: pa.DataType) -> None:
    """string, large_string, binary and views are all text."""
    texts = [text.encode() for text in DOCUMENTS]
    pq.write_table(pa.table({"text": pa.array(texts, pa.binary()).cast(kind)}), tmp_path / "a.parquet")
    runs.build_inline(tmp_path / "out", tmp_path / "a.parquet", batch_bytes=4096)
    assert runs.shards_in(tmp_path / "out") == shards_of(DOCUMENTS)


def wrapped(kind: str, texts: list[str | None]) -> pa.Array:
    """The texts as an array of a type that holds text."""
    values = pa.array(texts, pa.string())
    plain = {
        "string_view": pa.string_view(),
        "binary_view": pa.binary_view(),
        "large_string": pa.large_string(),
        "large_binary": pa.large_binary(),
    }
    if kind in plain:
        return values.cast(plain[kind])
    outer, _, inner = kind.partition(" of ")
    if outer == "json":
        return pa.ExtensionArray.from_storage(pa.json_(plain[inner]), values.cast(plain[inner]))
    known = sorted({text for text in texts if text is not None})
    indices = pa.array([None if text is None else known.index(text) for text in texts], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, wrapped(inner, list(known)))


@pytest.mark.parametrize(
    "kind",
    [
        "string_view",
        "binary_view",
        "dictionary of string_view",
        "dictionary of binary_view",
        "dictionary of large_string",
        "dictionary of dictionary of large_binary",
        "json of string_view",
        "dictionary of json of string_view",
    ],
)
def test_every_wrapping_of_text_is_taken_off(kind: str) -> None:
    """Views, dictionaries and extension types, inside each other and with nulls: not all of them can be written
    with every pyarrow, but all can be read one day."""
    texts = ["one", None, "", "a text that is too long for a view to hold", "one", None]
    column = wrapped(kind, texts)
    assert rows.is_text(column.type)
    for part in (column, column.slice(1), column.slice(2, 3)):
        whole = pa.RecordBatch.from_arrays([rows.unwrap(part)], ["text"])
        (chunk,) = rows.split_rows(whole, 0, None)
        assert list(chunk.documents) == [text for text in part.to_pylist() if text is not None] or list(
            chunk.documents
        ) == [text.decode() for text in part.to_pylist() if text is not None]
        assert chunk.counts.skipped_documents == part.null_count


@pytest.mark.parametrize("kind", ["string_view", "binary_view", "json of string_view", "dictionary of large_string"])
def test_nulls_in_every_kind_of_column(tmp_path: Path, kind: str) -> None:
    """A null is skipped and counted, whatever the type."""
    texts = ["one", None, "two", ""]
    table = pa.table({"text": wrapped(kind, texts), "id": ["a", "b", "c", "d"]})
    pq.write_table(table, tmp_path / "a.parquet")
    manifest = runs.build_inline(tmp_path / "out", tmp_path / "a.parquet")
    assert runs.shards_in(tmp_path / "out") == shards_of(["one", "two", ""])
    assert manifest.totals["skipped_documents"] == 1


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2]),
        pa.array([["a"], ["b"]]),
        pa.array([{"a": "x"}, {"a": "y"}]),
        pa.array([b"abc", b"def"], pa.binary(3)),
        pa.array([True, False]),
        pa.nulls(2),
        pa.array([1, 1]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_a_column_of_another_type_is_refused(tmp_path: Path, column: pa.Array) -> None:
    """With the names of file, column and type."""
    pq.write_table(pa.table({"body": column}), tmp_path / "a.parquet")
    kind = pq.read_schema(tmp_path / "a.parquet").field("body").type
    with pytest.raises(BadFileError) as error:
        runs.build_inline(tmp_path / "out", tmp_path / "a.parquet", text_column="body")
    assert f"a.parquet: column 'body' holds {kind}, not text." in error.value.message
    assert "--text-column" in error.value.hint


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


@pytest.mark.parametrize("long", ["prose with words " * 900, "的一是不了" * 2500, "q" * 12_000, "\n" * 12_000])
def test_a_huge_cell_is_encoded_in_pieces(tmp_path: Path, long: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell longer than a chunk comes in several blocks, with exactly its tokens."""
    monkeypatch.setattr(rows, "_LONG_CELL_BYTES", 70_000 // 16)
    monkeypatch.setattr(cuts, "_SEAM_WINDOW_BYTES", 2000)
    documents = ["before", long, "between", "", long, "after"]
    path = write_parquet(tmp_path / "a.parquet", documents, 4)
    runs.build_inline(tmp_path / "out", path, shard_tokens=1000)
    assert runs.shards_in(tmp_path / "out") == shards_of(documents, 1000)


@pytest.mark.promise("bad files are named, or skipped and counted")
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


@pytest.mark.promise("bad files are named, or skipped and counted")
def test_a_damaged_row_group_is_named_or_skipped(tmp_path: Path) -> None:
    """Only that row group is left out."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS[:60], 20, compression="zstd", use_dictionary=False)
    damage(path, pq.read_metadata(path).row_group(1).column(0))
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
    assert list(chunk.documents) == [f"second file, row {i}" for i in range(begin, end)]


def test_rows_are_decoded_a_little_at_a_time(tmp_path: Path) -> None:
    """However long the rows are: a segment is chosen by their average length."""
    path = write_parquet(tmp_path / "a.parquet", ["long " * 100_000] * 20, 20, compression="zstd", use_dictionary=False)
    column = pq.read_metadata(path).row_group(0).column(0)
    assert parquet._slice_rows(20, column.total_uncompressed_size) == 1


def test_a_damaged_row_group_counts_once_however_it_is_cut(tmp_path: Path) -> None:
    """Stripes behind the damage don't report it again."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 200, compression="zstd", use_dictionary=False)
    damage(path, pq.read_metadata(path).row_group(0).column(0))
    found = set()
    for batch_bytes in (1024, 5000, 10**7):
        out = tmp_path / str(batch_bytes)
        manifest = runs.build_inline(out, path, batch_bytes=batch_bytes, on_bad_file="skip")
        found.add((manifest.totals["bad_parts"], manifest.tokens))
    assert len(found) == 1
    assert found.pop()[0] == 1


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("a.body", "no column 'a.body'; the columns are: a.text, a.more"),
        ("a.more.x", "no column 'a.more.x'; the columns are: a.text, a.more"),
        ("b.text", "no column 'b.text'; the columns are: a, twice, twice"),
        ("twice", "2 columns are called 'twice'; the columns are: a, twice, twice"),
        ("a.more", "column 'a.more' holds list<.*>, not text"),
    ],
)
def test_missing_and_doubled_columns_are_told(tmp_path: Path, column: str, told: str) -> None:
    """With the names that exist there; of a list no field is read."""
    nested = pa.array([{"text": "x", "more": [{"x": "y"}]}])
    pq.write_table(
        pa.table([nested, pa.array(["x"]), pa.array(["y"])], ["a", "twice", "twice"]), tmp_path / "a.parquet"
    )
    with pytest.raises(BadFileError, match=told):
        runs.build_inline(tmp_path / "out", tmp_path / "a.parquet", text_column=column)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("column", ["a.b", "c"])
def test_a_name_with_a_dot_is_a_name(tmp_path: Path, column: str, order: int) -> None:
    """The column called so, not the field of a struct, and not what else begins so."""
    columns = {"a": [{"b": "wrong"}] * 9, "a.b": DOCUMENTS[:9], "c": DOCUMENTS[9:18], "c.d": ["wrong"] * 9}
    pq.write_table(pa.table(dict(list(columns.items())[::order])), tmp_path / "a.parquet", row_group_size=4)
    runs.build_inline(tmp_path / "out", tmp_path / "a.parquet", text_column=column)
    assert runs.shards_in(tmp_path / "out") == shards_of(columns[column])


FINEWEB = ["text", "id", "dump", "url", "file_path", "language", "token_count"]


def write_fineweb(path: Path, token_counts: pa.Array, **more: object) -> Path:
    """The first documents with FineWeb's columns."""
    documents = DOCUMENTS[: len(token_counts)]
    columns = {name: pa.array([f"{name} {i}" for i in range(len(documents))]) for name in FINEWEB}
    table = pa.table({**columns, "text": documents, "token_count": token_counts})
    pq.write_table(table, path, **more)
    return path


TRUE_COUNTS = [len(reference.encode(text)) for text in DOCUMENTS[:20]]


@pytest.mark.parametrize(
    ("token_counts", "wrong", "exact"),
    [
        (pa.array(TRUE_COUNTS, pa.int64()), 0, True),
        (pa.array(TRUE_COUNTS, pa.uint64()), 0, True),
        (pa.array(TRUE_COUNTS, pa.int32()), 0, True),
        (pa.array([*TRUE_COUNTS[:-1], 2**64 - 1], pa.uint64()), 1, False),
        (pa.array([None, -7, *TRUE_COUNTS[2:]], pa.int16()), 0, False),
        (pa.array([None, *TRUE_COUNTS[1:]], pa.uint32()), 0, False),
        (pa.array([str(count) for count in TRUE_COUNTS]), 0, False),
        (pa.array([count > 5 for count in TRUE_COUNTS]), 0, False),
        (pa.array([float(count) for count in TRUE_COUNTS]), 0, False),
        (pa.nulls(20), 0, False),
        (pa.array([[count] for count in TRUE_COUNTS]), 0, False),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_token_counts_of_any_type(tmp_path: Path, token_counts: pa.Array, wrong: int, exact: bool) -> None:
    """Whole numbers of any width are compared; anything else is left alone. A plan trusts only what can be a number of
    tokens."""
    path = write_fineweb(tmp_path / "a.parquet", token_counts, row_group_size=6)
    job = runs.job_of(tmp_path / "out", path, batch_bytes=1024)
    assert make_plan(job, trial_seconds=0).extent.exact == exact
    manifest = runs.build_inline(tmp_path / "out", path)
    assert runs.shards_in(tmp_path / "out") == shards_of(DOCUMENTS[:20])
    assert manifest.totals["token_count_mismatches"] == wrong


@pytest.mark.parametrize("column", ["id", "token_count", "url"])
def test_any_of_finewebs_columns_may_be_the_text(tmp_path: Path, column: str) -> None:
    """`token_count` is about the column `text` and about no other."""
    path = write_fineweb(tmp_path / "a.parquet", pa.array([f"token_count {i}" for i in range(20)]))
    manifest = runs.build_inline(tmp_path / "out", path, text_column=column)
    assert runs.shards_in(tmp_path / "out") == shards_of([f"{column} {i}" for i in range(20)])
    assert manifest.totals["token_count_mismatches"] == 0


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("encoding", ["plain", "dictionary", "wrong indices"])
def test_what_skip_leaves_depends_on_the_file_alone(tmp_path: Path, encoding: str) -> None:
    """Any batch size, resumed from every shard or not: the same bytes and the same counts."""
    path = tmp_path / "a.parquet"
    texts = DOCUMENTS[:30] * 20
    column = pa.array(texts).dictionary_encode() if encoding == "wrong indices" else pa.array(texts)
    options = {"use_dictionary": encoding != "plain", "data_page_size": 2000, "row_group_size": 300}
    pq.write_table(pa.table({"text": column}), path, compression="none", write_statistics=False, **options)
    place = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    if encoding == "plain":  # lengths of texts
        begin = place.data_page_offset + place.total_compressed_size // 2
        data[begin : begin + 4000] = b"\xff" * 4000
    else:  # 5 bits each, of 30 texts
        data[place.data_page_offset + 90 : place.data_page_offset + 110] = b"\xff" * 20
    path.write_bytes(bytes(data))
    found = set()
    for batch_bytes in (1024, 3000, 10**7):
        out = tmp_path / str(batch_bytes)
        first = runs.build_inline(out, path, batch_bytes=batch_bytes, shard_tokens=3000, on_bad_file="skip")
        shards = runs.shards_in(out)
        found.add((tuple(shards.values()), tuple(first.totals.items())))
        for record in first.shards[1:4]:
            (out / record.name).unlink()
            runs.build_inline(out, path, batch_bytes=2048, shard_tokens=3000, on_bad_file="skip")
            assert runs.shards_in(out) == shards
    assert len(found) == 1
    assert dict(found.pop()[1])["bad_parts"] == 1


def test_a_lack_of_memory_costs_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no damage, although pyarrow has one base for all its errors: the worker ends, and another one tries
    again."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS[:20])

    def fail(column: pa.Array) -> pa.Array:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(parquet, "unwrap", fail)
    with pytest.raises(MemoryError):
        runs.build_inline(tmp_path / "out", path, on_bad_file="skip")


def mangled_footer(chooser: random.Random, good: bytes) -> bytes:
    """A file with other bytes in its last part, most often with a length that fits again."""
    start = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    data = bytearray(good)
    for _ in range(chooser.choice([1, 1, 2, 8])):
        place = chooser.randrange(start, len(good) - 8)
        new = chooser.choice([b"", b"\0", b"\xff", b"\xff\xff\xff\xff\x0f", chooser.randbytes(3)])
        data[place : place + chooser.randint(0, 4)] = new
    if chooser.random() < 0.8:
        data[-8:-4] = (len(data) - 8 - start).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.full
@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("kind", ["string", "dictionary of large_string", "FineWeb"])
def test_a_damaged_footer_is_told_or_harmless(tmp_path: Path, kind: str, tries: Tries) -> None:
    """Whatever is wrong with it, the file is named or read; the plan does not stumble over it either."""
    path = tmp_path / "a.parquet"
    if kind == "FineWeb":
        write_fineweb(path, pa.array(TRUE_COUNTS), row_group_size=7)
    else:
        column = pa.array(DOCUMENTS[:20]) if kind == "string" else wrapped(kind, DOCUMENTS[:20])
        pq.write_table(pa.table({"text": column, "a": [{"b": "x"}] * 20}), path, row_group_size=7)
    good = path.read_bytes()
    told: list[str] = []
    # Not more: one in 2,500 (numbers 1511 and 4115 of "string") ends the process inside pyarrow 26, whose way to a
    # column's metadata does not catch its own exception about a histogram's size.
    for number in tries(75, 1500):
        path.write_bytes(mangled_footer(random.Random(f"{kind} {number}"), good))
        job = runs.job_of(tmp_path / "out", path, batch_bytes=1024)
        try:
            for batch in job.source.batches(runs.START):
                assert batch.size_bytes >= 0
                list(job.source.chunks(batch))
            make_plan(job, trial_seconds=0)
        except BadFileError as error:
            told.append(error.message)
        finally:
            job.source.close()
    assert told
    assert all("a.parquet: " in message for message in told)


def test_reading_imports_no_pandas(tmp_path: Path) -> None:
    """pyarrow would, for conversions that seem harmless: 0.3 s and 50 MB in every worker."""
    path = tmp_path / "a.parquet"
    columns: dict[str, list[object]] = {name: [None] * 4 for name in footer._FINEWEB_COLUMNS}
    columns |= {"text": ["one", None, "two", ""], "id": [*"abcd"], "token_count": [1, 2, None, 0]}
    pq.write_table(pa.table(columns), path)
    code = f"""
import sys
from fineweb_shards.storage.place import InputFile
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.types import Batch
from fineweb_shards.vocabulary import GPT2
file = InputFile(0, {str(path)!r}, "a", "parquet", None, {path.stat().st_size}, 0, "")
(chunk,) = ParquetFormat(ReadSettings("text", "auto", 1024, False, GPT2)).chunks(file, Batch(0, 0, 1, 0))
print(list(chunk.documents), chunk.origins[0].tokens.tolist(), "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['one', 'two', ''] [1, -1, 0] False"
