"""Fields of structs and of nested objects, as the text and in --where: read as if they were columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.columns import find_value
from fineweb_shards.formats.parquet_file import open_parquet
from fineweb_shards.storage.local import LocalPlace
from tests.support import inline, reference, runs
from tests.support.documents import make_documents

DOCUMENTS = make_documents(120, seed=8)


def make_rows() -> list[dict[str, Any]]:
    """Texts two levels deep; nulls at every level, also of structs whose field would have a text."""
    rows: list[dict[str, Any]] = []
    for i, text in enumerate(DOCUMENTS):
        inner = None if i % 7 == 1 else {"body": None if i % 5 == 2 else text, "other": "wrong"}
        meta = None if i % 11 == 3 else {"score": None if i % 4 == 3 else i % 6, "page": inner}
        rows.append({"n": i, "meta": meta})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]], **settings: Any) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, **settings)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def body_of(row: dict[str, Any]) -> str | None:
    return ((row["meta"] or {}).get("page") or {}).get("body")


def score_of(row: dict[str, Any]) -> int | None:
    return (row["meta"] or {}).get("score")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("batch_bytes", [1024, 10**6])
def test_texts_inside_structs(tmp_path: Path, kind: str, batch_bytes: int) -> None:
    """Those of the reference, resumed after every record; a null on any level is a null text."""
    path = write_rows(tmp_path / f"a.{kind}", rows := make_rows())
    if kind == "parquet":
        write_rows(path, rows, row_group_size=25)
    texts = [body_of(row) for row in rows]
    expected = reference.shard_files(reference.stream(text for text in texts if text is not None), 2000)
    settings = {"text_column": "meta.page.body", "shard_tokens": 2000}
    first = runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes, **settings)
    assert (runs.shards_in(tmp_path / "out"), first.totals["skipped_documents"]) == (expected, texts.count(None))
    for kept in range(len(first.shards)):
        runs.forget_after(tmp_path / "out", kept)
        again = runs.build_inline(tmp_path / "out", path, batch_bytes=3000, **settings)
        assert (runs.shards_in(tmp_path / "out"), again.totals) == (expected, first.totals)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_conditions_on_fields(tmp_path: Path, kind: str) -> None:
    """As with columns: what has no value is unknown, whatever level is null."""
    path = write_rows(tmp_path / f"a.{kind}", rows := make_rows())
    where = "meta.score > 2 and meta.page.body is not null"
    tokens, counts = runs.encode_inline(path, text_column="meta.page.body", where=where)
    kept = [body_of(row) for row in rows if (score_of(row) or 0) > 2 and body_of(row) is not None]
    assert tokens == reference.stream(kept).tolist()
    unknown = sum(score_of(row) is None and body_of(row) is not None for row in rows)
    assert (counts.unknown_documents, counts.skipped_documents) == (unknown, 0)


def test_a_parent_that_is_null_hides_its_fields(tmp_path: Path) -> None:
    """Arrow may keep values below a null struct; they are not there."""
    inside = pa.StructArray.from_arrays(
        [pa.array(["one", "hidden", "two"]), pa.array([1, 2, 3])],
        ["text", "score"],
        mask=pa.array([False, True, False]),
    )
    pq.write_table(pa.table({"a": inside}), tmp_path / "a.parquet")
    tokens, counts = runs.encode_inline(tmp_path / "a.parquet", text_column="a.text")
    assert (runs.decode(tokens), counts.skipped_documents) == ("<|endoftext|>one<|endoftext|>two", 1)
    tokens, counts = runs.encode_inline(tmp_path / "a.parquet", text_column="a.text", where="a.score < 3")
    assert (runs.decode(tokens), counts.unknown_documents) == ("<|endoftext|>one", 1)


def test_only_the_leaf_is_read(tmp_path: Path) -> None:
    """Of a struct with more in it, as --where needs it, too."""
    path = write_rows(tmp_path / "a.parquet", make_rows())
    source = runs.job_of(tmp_path / "out", path, text_column="meta.page.body", where="meta.score > 2").source
    opened = open_parquet(
        source.parts[0].files[0], LocalPlace().open(source.parts[0].files[0]), source.parts[0].settings, is_remote=False
    )
    assert opened.paths == {"meta.page.body": "meta.page.body", "meta.score": "meta.score"}
    names = ["meta.page.body", "meta.score"]
    (rows,) = pq.ParquetFile(path).iter_batches(columns=names)
    assert str(rows.schema.field("meta").type) == "struct<score: int64, page: struct<body: string>>"


def test_ids_inside_a_struct(tmp_path: Path) -> None:
    """--tokens-column finds its lists by the same rule."""
    rows = [{"a": {"x": "no", "ids": [1, 2]}}, {"a": None}, {"a": {"x": "no", "ids": [3]}}]
    for kind in ("parquet", "jsonl"):
        path = write_rows(tmp_path / f"a.{kind}", rows)
        tokens, counts = runs.encode_inline(path, tokens_column="a.ids")
        assert (tokens, counts.skipped_documents) == ([50256, 1, 2, 50256, 3], 1)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"a.b": 1, "a": {"b": 2}}, 1),
        ({"a": {"b": 2}}, 2),
        ({"a": {"b": None}}, None),
        ({"a": None}, None),
        ({"a": {}}, "missing"),
        ({"a": "a.b"}, "missing"),
        ({"a": [{"b": 1}]}, "missing"),
        ({}, "missing"),
        ("a.b", "missing"),
    ],
)
def test_values_of_json(row: Any, found: Any) -> None:
    """The name itself comes first; a null has no fields but null ones; text and lists have none."""
    assert find_value(row, "a.b", "missing") == found


@pytest.mark.parametrize("line", ['{"a": {}}', '{"a": "x"}', '{"a": [{"b": "x"}]}', '{"b": "x"}', '"a.b"'])
def test_a_line_without_the_field_is_named(tmp_path: Path, line: str) -> None:
    """As one without the key is."""
    (tmp_path / "a.jsonl").write_text('{"a": {"b": "x"}}\n' + line + "\n")
    with pytest.raises(BadFileError, match=r"a\.jsonl: the line at byte 18 (has no key 'a\.b'|is a JSON str)"):
        runs.encode_inline(tmp_path / "a.jsonl", text_column="a.b")


def test_the_command(tmp_path: Path) -> None:
    """Both flags, as they are typed."""
    path = write_rows(tmp_path / "a.parquet", [{"m": {"t": "one", "n": 1}}, {"m": {"t": "two", "n": 2}}])
    words = ("build", path, "--text-column", "m.t", "--where", "m.n > 1", "--shard-tokens", "10")
    done = inline.run_command(*words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(["two"]), 10)
