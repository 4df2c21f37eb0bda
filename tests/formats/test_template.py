"""--template: what is a template and what is refused, and that each row becomes the text that it says."""

from __future__ import annotations

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fineweb_shards as fs
from fineweb_shards.errors import BadFileError, ChangedError, InputError, UsageError
from fineweb_shards.formats import csv as csv_format
from fineweb_shards.formats import parquet
from fineweb_shards.formats.columns import MOST_CHARACTERS, Template, parse_template
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_text
from tests.support.promises import Tries

TEMPLATE = "# {title}\n\n{meta.body}{{é}} — {note}\n"
SCHEMA = pa.schema(
    {
        "title": pa.string(),
        "meta": pa.struct({"body": pa.large_string(), "n": pa.int64()}),
        "note": pa.string(),
        "score": pa.int64(),
    }
)
FLAT = TEMPLATE.replace("meta.body", "body")


def make_rows(count: int, seed: int, *, nulls: bool = True) -> list[dict[str, Any]]:
    """Rows with texts, and nulls at every place of them; some have nothing but nulls."""
    chooser = random.Random(seed)
    texts = iter(make_documents(3 * count, seed))
    rows: list[dict[str, Any]] = []
    for i, (title, body, note) in enumerate(zip(texts, texts, texts, strict=True)):
        is_null = [nulls and chooser.random() < 0.3 for _ in range(3)]
        meta = None if is_null[1] and i % 2 else {"body": None if is_null[1] else body, "n": i}
        rows.append(
            {
                "title": None if is_null[0] else title,
                "meta": meta,
                "note": None if is_null[2] else note[:5],
                "score": i % 4,
            }
        )
    return rows


def document_of(row: dict[str, Any]) -> str | None:
    """What TEMPLATE means, written out."""
    title, body, note = row["title"], (row["meta"] or {}).get("body"), row["note"]
    if title is None and body is None and note is None:
        return None
    return "# " + (title or "") + "\n\n" + (body or "") + "{é} — " + (note or "") + "\n"


def documents_of(rows: list[dict[str, Any]]) -> list[str]:
    return [text for text in map(document_of, rows) if text is not None]


def write_rows(path: Path, rows: list[dict[str, Any]], group: int = 20) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=group)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(["note", "title", "score", "body"])
            writer.writerows([row["note"], row["title"], row["score"], row["meta"]["body"]] for row in rows)
    return path


@pytest.mark.parametrize(
    ("text", "columns", "literals"),
    [
        ("{a}", ("a",), (b"", b"")),
        ("{a}{b.c}", ("a", "b.c"), (b"", b"", b"")),
        ("{{{a}}} é\n{b}!", ("a", "b"), (b"{", "} é\n".encode(), b"!")),
        ("{{x}}{a b}", ("a b",), (b"{x}", b"")),
    ],
)
def test_templates(text: str, columns: tuple[str, ...], literals: tuple[bytes, ...]) -> None:
    """Columns in their order, and the text around them; doubled braces are braces."""
    assert parse_template(text) == Template(columns, literals)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("text", "without a {column} all documents would be the same"),
        ("{{text}}", "without a {column} all documents would be the same"),
        ("{text", "unmatched brace"),
        ("text}", "unmatched brace"),
        ("{a{b}}", "unmatched brace"),
        ("{}", "{} names no column"),
        ("{a:>3}", "{a:>3} has a format"),
        ("{a!r}", "{a!r} has a format"),
        ("{a} {b} {a}", "{a} occurs twice"),
        ("{a}" + "x" * MOST_CHARACTERS, "characters are too many"),
    ],
)
def test_mistakes(text: str, told: str) -> None:
    """Each has a sentence of its own, on one line."""
    with pytest.raises(UsageError) as caught:
        parse_template(text)
    assert caught.value.message.startswith("--template")
    assert told in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "jsonl.gz", "csv", "tsv"])
@pytest.mark.parametrize("batch_bytes", [1024, 10**6])
def test_documents_of_every_format(tmp_path: Path, ending: str, batch_bytes: int) -> None:
    """Those of the reference, in batches of any size, resumed after every record with other batches."""
    is_flat = ending in ("csv", "tsv")
    rows = make_rows(60, seed=1, nulls=not is_flat)
    path = write_rows(tmp_path / f"a.{ending}", rows)
    texts = [document_of(row) for row in rows]
    expected = reference.shard_files(reference.stream(documents_of(rows)), 3000)
    settings = {"template": FLAT if is_flat else TEMPLATE, "shard_tokens": 3000}
    first = runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes, **settings)
    assert (runs.shards_in(tmp_path / "out"), first.totals["skipped_documents"]) == (expected, texts.count(None))
    assert first.totals["text_bytes"] == sum(len(text.encode()) for text in documents_of(rows))
    for kept in range(len(first.shards)):
        runs.forget_after(tmp_path / "out", kept)
        again = runs.build_inline(tmp_path / "out", path, batch_bytes=3000, **settings)
        assert (runs.shards_in(tmp_path / "out"), again.totals) == (expected, first.totals)


def test_any_row_groups_and_slices(tmp_path: Path, tries: Tries) -> None:
    """Rows are decoded a few at a time, in row groups of any size, with long cells among them."""
    for seed in tries(4, 200):
        chooser = random.Random(seed)
        rows = make_rows(chooser.choice([1, 9, 50]), seed)
        path = write_rows(tmp_path / "a.parquet", rows, chooser.choice([1, 7, 1000]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parquet, "_SLICE_ROWS", chooser.choice([1, 5, 128]))
            patch.setattr(parquet, "_CHUNK_BYTES", chooser.choice([1, 3000, 2**23]))
            patch.setattr("fineweb_shards.formats.rows._LONG_CELL_BYTES", chooser.choice([1000, 2**22]))
            tokens, _ = runs.encode_inline(path, template=TEMPLATE, batch_bytes=chooser.choice([1024, 10**6]))
        assert tokens == reference.stream(documents_of(rows)).tolist()


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.binary(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_columns_of_different_types(tmp_path: Path, kind: pa.DataType) -> None:
    """Whatever holds text can be beside any other."""
    titles, texts = ["one", None, "one", None], ["é", "b", None, None]
    columns = {"a": pa.array(titles).cast(kind), "b": pa.array(texts)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    tokens, counts = runs.encode_inline(tmp_path / "a.parquet", template="{a}/{b}")
    assert (runs.decode(tokens), counts.skipped_documents) == (
        "<|endoftext|>one/é<|endoftext|>/b<|endoftext|>one/", 1)  # fmt: skip


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_conditions_and_lengths(tmp_path: Path, ending: str) -> None:
    """--where is about columns, also those of the template; lengths are about the whole document."""
    is_flat = ending == "csv"
    rows = make_rows(60, seed=2, nulls=not is_flat)
    path = write_rows(tmp_path / f"a.{ending}", rows)
    where = "score > 1 and title != ''" if is_flat else "score > 1 and title is not null"
    tokens, _ = runs.encode_inline(path, template=FLAT if is_flat else TEMPLATE, where=where)
    kept = [row for row in rows if row["score"] > 1 and (row["title"] if is_flat else row["title"] is not None)]
    assert tokens == reference.stream(documents_of(kept)).tolist()


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_long_template_makes_small_chunks(tmp_path: Path, ending: str) -> None:
    """Short rows whose template is long: a worker holds few of its documents at a time."""
    header = "t\n" if ending == "csv" else ""
    lines = [f"{i % 10}" if ending == "csv" else f'{{"t":"{i % 10}"}}' for i in range(20_000)]
    (tmp_path / f"a.{ending}").write_text(header + "".join(line + "\n" for line in lines))
    text = "x" * 2000
    job = runs.job_of(tmp_path / "out", tmp_path / f"a.{ending}", template=text + "{t}")
    documents, largest_bytes = [], 0
    for batch in job.source.batches(runs.START):
        for chunk in job.source.chunks(batch):
            largest_bytes = max(largest_bytes, chunk.documents.size_bytes)
            documents += [str(one)[-1] for one in chunk.documents]
    assert documents == [str(i % 10) for i in range(20_000)]
    assert largest_bytes < 10 * csv_format.BLOCK_BYTES


def test_pages_of_all_columns_count(tmp_path: Path) -> None:
    """Two columns that fit into the memory one by one are refused if they don't together."""
    half = ["x" * 20_000_000]
    pq.write_table(pa.table({"a": half, "b": half}), tmp_path / "a.parquet")
    settings = {"max_memory": 600 * 2**20, "workers": 1}
    runs.encode_inline(tmp_path / "a.parquet", text_column="a", **settings)
    with pytest.raises(BadFileError, match=r"row group 0: pages of the columns of --template unpack to 40"):
        runs.encode_inline(tmp_path / "a.parquet", template="{a}{b}", **settings)


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("parquet", "there is no column 'nothing'; the columns are: a, b."),
        ("jsonl", "the line at byte 0 has no key 'nothing'; its keys are: a, b."),
        ("csv", "there is no column 'nothing'; the columns are: a, b."),
    ],
)
def test_a_column_that_is_not_there(tmp_path: Path, ending: str, told: str) -> None:
    """The error of --text-column, with the flag that is wrong."""
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"a": ["x"], "b": [1]}), path)
    else:
        path.write_text("a,b\nx,1\n" if ending == "csv" else '{"a": "x", "b": 1}\n')
    with pytest.raises(BadFileError, match=told) as error:
        runs.build_inline(tmp_path / "out", path, template="{a} {nothing}")
    assert "--template" in str(error.value.hint)
    if ending != "csv":
        with pytest.raises(BadFileError, match=r"'b' (is not a text but a number|holds int64, not text)"):
            runs.build_inline(tmp_path / "out", path, template="{a} {b}")


def test_plain_text_has_no_columns(tmp_path: Path) -> None:
    """Refused by the file's name, as --where is."""
    path = write_text(tmp_path / "a.txt", ["one"], "\n\n")
    with pytest.raises(UsageError, match=r"--template '\{a\}\\n': .*a\.txt is plain text, which has no columns"):
        runs.job_of(tmp_path / "out", path, template="{a}\n", separator="blank")


@pytest.mark.parametrize("other", [{"text_column": "body"}, {"tokens_column": "ids"}])
def test_another_column_excludes_it(tmp_path: Path, other: dict[str, str]) -> None:
    """A document is one of the three."""
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(UsageError, match="and --template exclude each other"):
        runs.job_of(tmp_path / "out", tmp_path / "a.jsonl", template="{a}", **other)


def test_token_counts_are_not_compared(tmp_path: Path) -> None:
    """FineWeb's are those of its text alone."""
    table = {name: ["x"] for name in ("text", "id", "dump", "url", "file_path")} | {"token_count": [99]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert runs.encode_inline(tmp_path / "a.parquet")[1].token_count_mismatches == 1
    assert runs.encode_inline(tmp_path / "a.parquet", template="{text}")[1].token_count_mismatches == 0


def test_the_command_the_file_and_the_parts(tmp_path: Path) -> None:
    r"""`\n` is a line end wherever it is typed, and a part may have a template of its own."""
    rows = [{"a": f"t{i}", "b": f"b{i}"} for i in range(5)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    joined = [f"{row['a']}\n\t{row['b']}" for row in rows]
    expected = reference.shard_files(reference.stream(joined), 10**8)
    words = ("build", path, "--shard-tokens", "100M")
    done = inline.run_command(*words, "--out", tmp_path / "one", "--template", r"{a}\n\t{b}")
    assert (done.returncode, runs.shards_in(tmp_path / "one")) == (0, expected), done.stderr
    (tmp_path / "a.toml").write_text(f'input = ["{path}"]\ntemplate = "{{a}}\\n\\t{{b}}"\nshard_tokens = "100M"\n')
    done = inline.run_command("build", tmp_path / "a.toml", "--out", tmp_path / "two")
    assert (done.returncode, runs.shards_in(tmp_path / "two")) == (0, expected), done.stderr
    parts = ("--part", rf"input={path} template='{{a}}\n\t{{b}}'", "--part", f"input={path} text_column=a")
    done = inline.run_command("build", *parts, "--out", tmp_path / "three", "--shard-tokens", "100M")
    expected = reference.shard_files(reference.stream([*joined, *(row["a"] for row in rows)]), 10**8)
    assert (done.returncode, runs.shards_in(tmp_path / "three")) == (0, expected), done.stderr


def test_a_resume_keeps_the_template(tmp_path: Path) -> None:
    """Another one is refused; a folder that was begun before there were templates has none."""
    path = write_rows(tmp_path / "a.jsonl", [{"text": f"text {i} " * 9} for i in range(9)])
    runs.build_inline(tmp_path / "out", path, shard_tokens=50)
    data = json.loads((tmp_path / "out" / "manifest.json").read_text())
    del data["parts"][0]["settings"]["template"]
    runs.write_manifest(tmp_path / "out", data)
    runs.build_inline(tmp_path / "out", path, shard_tokens=50)
    with pytest.raises(ChangedError, match=r"--template was not set when this folder was begun and is \{text\}\\n now"):
        runs.build_inline(tmp_path / "out", path, shard_tokens=50, template="{text}\n")


def test_documents_of_the_library(tmp_path: Path) -> None:
    """Mappings have keys; a text has none."""
    rows = [{"a": "one", "b": {"c": "two"}}, {"a": None, "b": None}, {"a": "three", "b": None}]
    settings: Any = {"template": "{a}\n{b.c}", "shard_tokens": 100, "quiet": True}
    result = fs.build(input=iter(rows), out=tmp_path / "out", **settings)
    expected = reference.shard_files(reference.stream(["one\ntwo", "three\n"]), 100)
    assert (runs.shards_in(tmp_path / "out"), result.skipped_documents) == (expected, 1)
    with pytest.raises(InputError, match="Document 0 of input is '"):
        fs.build(input=iter(["x"]), out=tmp_path / "other", **settings)
