"""--where, --min-tokens and --max-document-tokens: the shards of a plain loop with an `if`."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import BadFileError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.run.plan import make_plan
from tests.support import forked, inline, layout_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet, write_text, write_zstd
from tests.support.layout_reference import Wanted
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

WHERE = "score >= 2 and (language != 'de' or good) and score < 4.5"
TEXTS: list[str | None] = [None if i % 41 == 7 else text for i, text in enumerate(make_documents(300, seed=51))]
ROWS: list[dict[str, Any]] = [
    {
        "url": f"https://example.org/{i}",
        "text": text,
        "score": None if i % 13 == 5 else i % 7 * 0.75,
        "language": None if i % 17 == 3 else ("de", "en", "fr")[i % 3],
        "good": i % 2 == 0,
    }
    for i, text in enumerate(TEXTS)
]


@cache
def tokens_of(text: str) -> list[int]:
    return reference.encode(text)


def is_kept(row: dict[str, Any]) -> bool:
    """The condition, by hand: what is missing makes it unknown."""
    if row["score"] is None or not 2 <= row["score"] < 4.5:
        return False
    return bool(row["good"]) or (row["language"] is not None and row["language"] != "de")


def keep(rows: Iterable[dict[str, Any]], least: int = 0, most: int = 10**9) -> list[str]:
    """The documents that the plain loop encodes."""
    texts = [row["text"] for row in rows if is_kept(row) and row["text"] is not None]
    return [text for text in texts if least <= len(tokens_of(text)) <= most]


def table_of(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, row_group_size=40)
    return buffer.getvalue()


def lines_of(rows: list[dict[str, Any]]) -> bytes:
    """JSON lines; in every other one a value that is missing has no key."""
    kept = [{k: v for k, v in row.items() if k == "text" or v is not None or i % 2} for i, row in enumerate(rows)]
    return "".join(json.dumps(row) + "\n" for row in kept).encode()


FORMS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "a.parquet": table_of,
    "a.jsonl": lines_of,
    "a.jsonl.gz": lambda rows: gzip.compress(lines_of(rows), 1),
}


@pytest.mark.full(but=["1024-a.parquet", "50000-a.jsonl.zst"])
@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize("form", [*FORMS, "a.jsonl.zst"])
@pytest.mark.parametrize("batch_bytes", [1024, 50_000])
def test_the_same_shards_as_a_plain_loop(tmp_path: Path, form: str, batch_bytes: int) -> None:
    """Parquet (also a row group in slices of rows) and JSON lines, compressed or not; resumed after every checkpoint
    with other batches: the same bytes and the same counts."""
    path = tmp_path / form
    if form.endswith("zst"):
        write_zstd(path, lines_of(ROWS))
    else:
        path.write_bytes(FORMS[form](ROWS))
    settings: dict[str, Any] = {"where": WHERE, "shard_tokens": 4000}
    expected = reference.shard_files(reference.stream(keep(ROWS)), 4000)
    out = tmp_path / "out"
    manifest = runs.build_inline(out, path, batch_bytes=batch_bytes, **settings)
    assert runs.shards_in(out) == expected
    totals = manifest.totals
    nulls = sum(is_kept(row) and row["text"] is None for row in ROWS)
    assert (totals["documents"], totals["skipped_documents"]) == (len(keep(ROWS)), nulls)
    left_out = totals["filtered_documents"] + totals["unknown_documents"]
    assert left_out == len(ROWS) - len(keep(ROWS)) - nulls
    assert totals["unknown_documents"] > 10
    assert len(expected) > 3
    for records in range(1, len(expected)):
        runs.forget_after(out, records)
        assert runs.build_inline(out, path, batch_bytes=7000, **settings).totals == totals
        assert runs.shards_in(out) == expected


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_records_of_csv(tmp_path: Path, delimiter: str) -> None:
    """Fields are read as numbers and truths where they are compared with such; an empty one is missing. One that can't
    be read so is a bad record."""
    rows = [row for row in ROWS if row["text"] is not None and row["language"] is not None]
    path = tmp_path / ("a.csv" if delimiter == "," else "a.tsv")
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    settings: dict[str, Any] = {"where": WHERE, "shard_tokens": 4000}
    expected = reference.shard_files(reference.stream(keep(rows)), 4000)
    out = tmp_path / "out"
    for batch_bytes in (1024, 50_000):
        manifest = runs.build_inline(out / str(batch_bytes), path, batch_bytes=batch_bytes, **settings)
        assert runs.shards_in(out / str(batch_bytes)) == expected
        unknown = [row for row in rows if row["score"] is None and (row["language"] != "de" or row["good"])]
        assert manifest.totals["unknown_documents"] == len(unknown)
    path.write_bytes(path.read_bytes() + delimiter.join(["u", "text", "many", "en", "True"]).encode())
    with pytest.raises(BadFileError, match=r"has 'many' as 'score', which --where compares with a number"):
        runs.build_inline(out / "bad", path, **settings)
    skipped = runs.build_inline(out / "bad", path, on_bad_file="skip", **settings)
    assert runs.shards_in(out / "bad") == expected
    assert skipped.totals["bad_parts"] == 1


@pytest.mark.full(but=["val_ratio1-*"])
@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("val_ratio", [None, Fraction(1, 4)])
def test_every_layout(tmp_path: Path, layout: str, val_ratio: Fraction | None) -> None:
    """EOT before or after, shards or one file, both splits, all filters and --max-tokens at once: documents that are
    kept are numbered as if there were no others, and the limit counts only their tokens. After every checkpoint a
    resume with other batches ends with the same bytes and counts."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines_of(ROWS))
    whole = sum(len(tokens_of(text)) + 1 for text in keep(ROWS, 20, 900))
    wanted = Wanted(layout, 4000, val_ratio=val_ratio, max_tokens=whole - 1500)
    limits = {"where": WHERE, "min_tokens": 20, "max_document_tokens": 900}
    expected = layout_reference.files(keep(ROWS, 20, 900), wanted)
    out = tmp_path / "out"
    manifest = runs.build_inline(out, path, batch_bytes=2000, **limits, **wanted.settings())
    assert runs.outputs_in(out) == expected
    for records in range(1, len(manifest.shards), 2):
        runs.forget_after(out, records)
        runs.build_inline(out, path, batch_bytes=9000, **limits, **wanted.settings())
        assert runs.outputs_in(out) == expected


LONG = ["word " * 9000, "一二三四五六七八九十" * 900, "-" * 20_000, "short text", "x y " * 3000]
LONG_DOCUMENTS = [text for i, short in enumerate(make_documents(60, seed=52)) for text in (LONG[i % 5], short) if text]
LIMITS = [(0, 5999), (6002, None), (5, 9000), (9001, 10_000_000)]


@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize(
    ("form", "layout"),
    [
        ("txt", "build-nanogpt"),
        ("txt.gz", "plain"),
        pytest.param("txt", "plain", marks=pytest.mark.soak),
        pytest.param("txt.gz", "build-nanogpt", marks=pytest.mark.soak),
        pytest.param("parquet", "plain", marks=pytest.mark.soak),
    ],
)
def test_documents_longer_than_batches(tmp_path: Path, form: str, layout: str) -> None:
    """Lengths are those of whole documents, over any number of batches, with seams between them; a resume in the middle
    of such a document goes on with it."""
    documents = [text for text in LONG_DOCUMENTS if "<|endoftext|>" not in text and text != "\n"][:25]
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        write_parquet(path, documents, 20)
    else:
        data = write_text(tmp_path / "plain", documents).read_bytes()
        path.write_bytes(gzip.compress(data, 1) if form == "txt.gz" else data)
    encoded = [tokens_of(text) for text in documents]
    for number, (least, most) in enumerate(LIMITS):
        kept = [tokens for tokens in encoded if least <= len(tokens) <= (most or 10**9)]
        wanted = Wanted(layout, 8000, val_ratio=Fraction(1, 4) if number % 2 else None)
        expected = layout_reference.files_of_tokens(kept, wanted)
        settings = {**wanted.settings(), "min_tokens": least, "max_document_tokens": most}
        out = tmp_path / f"out{number}"
        manifest = runs.build_inline(out, path, batch_bytes=4096, **settings)
        assert runs.outputs_in(out) == expected
        totals = manifest.totals
        assert totals["short_documents"] == sum(len(tokens) < least for tokens in encoded)
        assert totals["long_documents"] == sum(len(tokens) > (most or 10**9) for tokens in encoded)
        for records in range(1, len(manifest.shards), 5):
            runs.forget_after(out, records)
            assert runs.build_inline(out, path, batch_bytes=30_000, **settings).totals == totals
            assert runs.outputs_in(out) == expected


@pytest.mark.full
def test_cells_of_many_megabytes(tmp_path: Path) -> None:
    """A parquet cell that is read in pieces is kept or left out as a whole, by --where and by its length."""
    huge, other = "words of text that are long enough for several pieces of it " * 150_000, "other " * 10
    texts = [other, huge, None, other]
    pq.write_table(pa.table({"text": texts, "n": [1, 2, 3, 4]}), tmp_path / "a.parquet")
    length = len(tokens_of(huge))
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"where": "n != 2"}, [other, other]),
        ({"where": "n > 1"}, [huge, other]),
        ({"max_document_tokens": length - 1}, [other, other]),
        ({"min_tokens": 12, "max_document_tokens": length}, [huge]),
    ]
    for number, (flags, kept) in enumerate(cases):
        out = tmp_path / str(number)
        runs.build_inline(out, tmp_path / "a.parquet", shard_tokens=10**6, **flags)
        tokens = [token for text in kept for token in (reference.EOT, *tokens_of(text))]
        assert runs.shards_in(out) == reference.shard_files(np.array(tokens, np.uint16), 10**6)


def test_damage_in_a_column_of_the_filter(tmp_path: Path) -> None:
    """The text alone is not enough then: the row group is damaged, and no document of it is guessed at."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["one", "two"] * 50, "score": list(range(100))})
    pq.write_table(table, path, compression=None, use_dictionary=False, row_group_size=50)
    column = pq.ParquetFile(path).metadata.row_group(1).column(1)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset
    data[start : start + 30] = b"\xff" * 30
    path.write_bytes(data)
    done = inline.run_command("build", path, "--out", tmp_path / "out", "--where", "score >= 0")
    assert done.returncode == 3
    assert "a.parquet: row group 1 can't be read" in done.stderr
    manifest = runs.build_inline(tmp_path / "out", path, where="score >= 0", on_bad_file="skip")
    assert (manifest.totals["documents"], manifest.totals["bad_parts"]) == (50, 1)


@pytest.mark.soak
@pytest.mark.promise("kill -9 loses only the unfinished shard")
@pytest.mark.parametrize("form", ["a.parquet", "a.jsonl"])
def test_a_kill_at_every_file_operation(tmp_path: Path, form: str) -> None:
    """With filters of both kinds: nothing is lost, and the next run has the same bytes."""
    rows = ROWS[:130]
    (tmp_path / form).write_bytes(FORMS[form](rows))
    wanted = Wanted("megatron" if form == "a.jsonl" else "build-nanogpt", 3000, val_ratio=Fraction(1, 4))
    filters = {"where": WHERE, "min_tokens": 10, "max_document_tokens": 1500}
    tries = runs.crash_everywhere(
        {
            "kind": "build",
            "input": str(tmp_path / form),
            "out": str(tmp_path / "out"),
            "settings": {**wanted.settings(), **filters, "batch_bytes": 2048},
            "resumed": {**wanted.settings(), **filters, "batch_bytes": 5000},
            "expected": reference.digests(layout_reference.files(keep(rows, 10, 1500), wanted)),
        }
    )
    assert tries > 20


@pytest.mark.full
def test_real_workers(tmp_path: Path) -> None:
    """Parquet, JSON lines and both limits by the real command; documents in doubt that are larger than all that may be
    in flight don't stop it."""
    (tmp_path / "a.parquet").write_bytes(table_of(ROWS))
    (tmp_path / "b.jsonl").write_bytes(lines_of([*ROWS, {"text": "w " * 1_500_000, "score": 3, "good": True}]))
    words = ["--shard-tokens", "40k", "--batch-bytes", "16k", "--where", WHERE, "--min-tokens", "20"]
    done = runs.run_command("build", tmp_path, "--out", tmp_path / "out", *words, "--max-document-tokens", "1M")
    assert done.returncode == 0, done.stderr
    expected = keep(ROWS, 20) + keep(ROWS, 20)
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(expected), 40_000)
    assert "Left out by --where: " in done.stdout
    assert "Left out by --max-document-tokens: 1 document." in done.stdout
    # One line of text after the other, one document: many times the window of batches in flight.
    (tmp_path / "c.txt").write_text("many words " * 1_500_000)
    flags = ["--separator", "none", "--batch-bytes", "64k", "--workers", "1", "--max-memory", "470MiB"]
    flags += ["--shard-tokens", "100M"]
    done = runs.run_command(
        "build", tmp_path / "c.txt", "--out", tmp_path / "long", *flags, "--max-document-tokens", "5M"
    )
    assert done.returncode == 0, done.stderr
    tokens = np.array(
        [reference.EOT, *reference.encode("many words"), *reference.encode(" many words") * 1_499_999, 220], np.uint16
    )
    assert runs.shards_in(tmp_path / "long") == reference.shard_files(tokens, 100_000_000)


@pytest.mark.full
@pytest.mark.parametrize("kind", [pytest.param("small columns", marks=pytest.mark.soak), "large columns", "rows"])
def test_from_the_hub(tmp_path: Path, kind: str) -> None:
    """Parquet by ranges, whether the other columns are small or large, and JSON lines by `datasets`: the same shards,
    and of large columns only those that the condition needs are fetched."""
    chooser = random.Random(53)
    bits = 8 if kind == "small columns" else 20_000
    rows = [{**row, "url": f"{chooser.getrandbits(bits):x}"} for row in ROWS]
    data = lines_of(rows) if kind == "rows" else table_of(rows)
    name = "data/train.jsonl" if kind == "rows" else "data/train-00000.parquet"
    with StandInHub([Repository("a/b", {name: data})]) as hub:
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
        done = forked.run_command(
            "build", "--dataset", "a/b", "--out", tmp_path / "out", "--where", WHERE,
            "--shard-tokens", "9k", "--batch-bytes", "20k", "--workers", "1", **environment,
        )  # fmt: skip
        fetched = hub.content_bytes
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(keep(ROWS)), 9000)
    assert kind != "large columns" or fetched < 0.9 * len(data)


def test_nothing_is_kept(tmp_path: Path) -> None:
    """A sentence with the reason, exit code 3, and another condition may follow in the same folder."""
    (tmp_path / "a.jsonl").write_bytes(lines_of(ROWS))
    words = ["build", tmp_path / "a.jsonl", "--out", tmp_path / "out", "--shard-tokens", "100M"]
    done = inline.run_command(*words, "--where", "scroe > 3")
    assert done.returncode == 3
    assert "or none was kept, so there is no shard." in done.stderr
    assert "Left out: 300 documents without a value that --where needs." in done.stdout
    assert inline.run_command(*words, "--where", "score > 3").returncode == 0
    done = inline.run_command(*words, "--where", "score > 4")
    assert done.returncode == 4
    assert "--where was score > 3 when this folder was begun and is score > 4 now." in done.stderr


def test_a_folder_from_before_there_were_filters_goes_on(tmp_path: Path) -> None:
    """Its manifest has neither the settings nor the counts: both mean that nothing is left out."""
    (tmp_path / "a.jsonl").write_bytes(lines_of(ROWS))
    runs.build_inline(tmp_path / "out", tmp_path / "a.jsonl", shard_tokens=9000)
    expected = runs.shards_in(tmp_path / "out")
    runs.forget_after(tmp_path / "out", 2)
    data = json.loads((tmp_path / "out" / "manifest.json").read_text())
    for name in ("where", "min_tokens", "max_document_tokens"):
        data["parts"][0]["settings"].pop(name)
    for shard in data["shards"]:
        for name in ("filtered_documents", "unknown_documents", "short_documents", "long_documents"):
            del shard["counts"][name]
    runs.write_manifest(tmp_path / "out", data)
    assert runs.build_inline(tmp_path / "out", tmp_path / "a.jsonl", shard_tokens=9000).complete
    assert runs.shards_in(tmp_path / "out") == expected


def fineweb(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file in FineWeb's schema, with the columns of the condition."""
    more = {"id": "i", "dump": "d", "file_path": "f"}
    kept = [row for row in rows if row["text"] is not None]
    table = [{**more, **row, "token_count": len(tokens_of(row["text"]))} for row in kept]
    pq.write_table(pa.Table.from_pylist(table), path, row_group_size=50)
    return path


def test_plans(tmp_path: Path) -> None:
    """Exact where token_count and small columns give it, also by length; else an estimate that is marked."""
    path = fineweb(tmp_path / "a.parquet", ROWS)
    expected = keep(ROWS, 20, 900)
    settings: dict[str, Any] = {"where": WHERE, "min_tokens": 20, "max_document_tokens": 900}
    extent = make_plan(runs.job_of(tmp_path / "out", path, **settings), trial_seconds=0.01).extent
    assert (extent.documents, extent.exact) == (len(expected), True)
    assert extent.tokens == sum(len(tokens_of(text)) + 1 for text in expected)
    (tmp_path / "b.jsonl").write_bytes(lines_of(ROWS))
    for source, condition in ((path, f"text != 'x' and {WHERE}"), (tmp_path / "b.jsonl", WHERE)):
        job = runs.job_of(tmp_path / "out", source, **{**settings, "where": condition})
        guess = make_plan(job, trial_seconds=0.01).extent
        assert not guess.exact
        assert guess.tokens == pytest.approx(extent.tokens, rel=0.25)
        assert guess.documents == pytest.approx(extent.documents, rel=0.25)


def test_the_report_tells_what_was_left_out(tmp_path: Path) -> None:
    """By each filter; the condition is among the settings."""
    (tmp_path / "a.jsonl").write_bytes(lines_of(ROWS))
    words = ["build", tmp_path / "a.jsonl", "--out", tmp_path / "out", "--where", WHERE, "--min-tokens", "20"]
    assert inline.run_command(*words, "--shard-tokens", "100M").returncode == 0
    page = (tmp_path / "out" / ".fineweb-shards" / "report.html").read_text()
    totals = json.loads((tmp_path / "out" / "manifest.json").read_text())["totals"]
    assert "Left out by --where: documents" in page
    for name in ("filtered_documents", "unknown_documents", "short_documents"):
        assert f">{totals[name]:,}</td>" in page
    assert "Left out by --max-document-tokens" not in page
