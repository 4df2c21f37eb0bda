"""--tokens-column: rows that are lists of ids, from parquet and JSON lines, are written as they are."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import BadFileError, ChangedError, UsageError
from fineweb_shards.formats import parquet
from fineweb_shards.formats import rows as row_module
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.sources.files import find_files
from fineweb_shards.tokenizers.encoder import TokenJoiner
from fineweb_shards.types import Batch
from fineweb_shards.vocabulary import Vocabulary
from tests.support import inline, layout_reference, reference, runs, vocabularies
from tests.support.inputs import write_csv, write_text
from tests.support.layout_reference import Wanted
from tests.support.promises import Tries

EOT = reference.EOT
Row = list[int] | None
INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]


def make_rows(count: int, seed: int, *, largest: int = EOT - 1, eots: bool = True) -> list[Row]:
    """Random lists of ids: empty ones, nulls, EOTs at their ends and inside."""
    chooser = random.Random(seed)
    rows: list[Row] = []
    for _ in range(count):
        row = [chooser.randint(0, largest) for _ in range(chooser.choice([0, 1, 2, 30, 200]))]
        if eots:
            for _ in range(chooser.choice([0, 0, 1, 3])):
                row.insert(chooser.choice([0, len(row), chooser.randint(0, len(row))]), EOT)
        rows.append(None if chooser.random() < 0.1 else row)
    return rows


def documents_of(rows: Iterable[Row]) -> list[list[int]]:
    """What the rows mean, one id after the other."""
    documents: list[list[int]] = []
    for row in rows:
        if row is None:
            continue
        ids = row[1:] if row[:1] == [EOT] else row
        ids = ids[:-1] if ids[-1:] == [EOT] else ids
        documents.append([])
        for token in ids:
            if token == EOT:
                documents.append([])
            else:
                documents[-1].append(token)
    return documents


def stream_of(rows: Iterable[Row]) -> list[int]:
    return [token for document in documents_of(rows) for token in (EOT, *document)]


def shards_of(rows: Iterable[Row], shard_tokens: int = 10**9) -> dict[str, bytes]:
    return reference.shard_files(np.array(stream_of(rows), np.uint16), shard_tokens)


def write_rows(
    path: Path, rows: Sequence[Row], kind: pa.DataType | None = None, group: int = 50, **more: list[Any]
) -> Path:
    column = pa.array(rows, kind or pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": column, **more}), path, row_group_size=group)
    return path


def write_lines(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps({"tokens": row, "n": i}) + "\n" for i, row in enumerate(rows)))
    return path


@pytest.mark.promise("workers, batches, engine and executor change no byte")
def test_any_rows_in_any_batches(tmp_path: Path, tries: Tries) -> None:
    """Lists of every length, nulls, EOTs anywhere; any row groups, batches and pieces: the same ids."""
    for seed in tries(15, 1000):
        chooser = random.Random(seed)
        rows = make_rows(chooser.choice([1, 5, 150]), seed, eots=chooser.random() < 0.7)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_module, "_LONG_ROW_IDS", chooser.choice([1, 3, 50, 2**20]))
            patch.setattr(parquet, "_SLICE_TOKEN_ROWS", chooser.choice([1, 7, 128]))
            patch.setattr(parquet, "_CHUNK_BYTES", chooser.choice([1, 500, 2**23]))
            path = write_rows(tmp_path / "a.parquet", rows, group=chooser.choice([1, 10, 1000]))
            batch_bytes = chooser.choice([1024, 10**6])
            tokens, counts = runs.encode_inline(path, tokens_column="tokens", batch_bytes=batch_bytes)
        # Every byte is of ids, not of text.
        assert (tokens, counts.skipped_documents, counts.text_bytes) == (stream_of(rows), rows.count(None), 0)


@pytest.mark.parametrize("item", INTEGERS, ids=str)
@pytest.mark.parametrize("outer", ["list", "large_list"])
def test_every_kind_of_list(tmp_path: Path, item: pa.DataType, outer: str) -> None:
    """Lists of any kind, of whole numbers of any width."""
    largest = 127 if item.bit_width == 8 else 30_000 if item.bit_width == 16 else EOT - 1
    rows = make_rows(60, seed=1, largest=largest, eots=largest == EOT - 1)
    make_type = pa.list_ if outer == "list" else getattr(pa, outer)
    path = write_rows(tmp_path / "a.parquet", rows, make_type(item))
    tokens, counts = runs.encode_inline(path, tokens_column="tokens", batch_bytes=1024)
    assert (tokens, counts.skipped_documents) == (stream_of(rows), rows.count(None))


def test_lists_of_a_fixed_size(tmp_path: Path) -> None:
    """Packed rows of one length, nulls among them: an EOT inside a row separates two documents."""
    chooser = random.Random(3)
    rows = [[chooser.choice([EOT, 5, 6, 7]) for _ in range(4)] if chooser.random() < 0.8 else None for _ in "x" * 99]
    path = write_rows(tmp_path / "a.parquet", rows, pa.list_(pa.int64(), 4), group=30)
    tokens, counts = runs.encode_inline(path, tokens_column="tokens", batch_bytes=1024)
    assert (tokens, counts.skipped_documents) == (stream_of(rows), rows.count(None))


def test_an_extension_type_of_lists(tmp_path: Path) -> None:
    """Of a tensor the rows are its lists."""
    storage = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), [2]), storage)
    pq.write_table(pa.table({"tokens": column}), tmp_path / "a.parquet")
    assert runs.encode_inline(tmp_path / "a.parquet", tokens_column="tokens")[0] == [EOT, 1, 2, EOT, 3, 4]


def test_eots_at_the_ends_are_not_doubled(tmp_path: Path) -> None:
    """One at either end of a row adds nothing; one inside separates; an empty list is an empty document."""
    rows: list[Row] = [[EOT, 1, 2], [3, EOT], [EOT, 4, EOT], [5, EOT, 6], [], [EOT], [EOT, EOT], None, [7]]
    tokens, counts = runs.encode_inline(write_rows(tmp_path / "a.parquet", rows), tokens_column="tokens")
    assert tokens == [EOT, 1, 2, EOT, 3, EOT, 4, EOT, 5, EOT, 6, EOT, EOT, EOT, EOT, 7]
    assert counts.skipped_documents == 1


@pytest.mark.parametrize("eot_first", [True, False])
def test_a_vocabulary_with_its_eot_first(tmp_path: Path, eot_first: bool) -> None:
    """70,000 ids, of which 0 is EOT: a token has four bytes, and 69,999 is the last one that is right."""
    vocabulary = Vocabulary("other", "0" * 64, size=70_000, eot=0)
    path = write_rows(tmp_path / "a.parquet", [[0, 69_999, 0, 50_256], [7, 0]])
    (file,) = find_files((str(path),), "auto")
    settings = ReadSettings("text", "auto", 1024, False, vocabulary, tokens_column="tokens")
    (chunk,) = ParquetFormat(settings).chunks(file, Batch(0, 0, 1, 0))
    block = TokenJoiner(vocabulary, eot_first=eot_first).join(chunk)
    expected = [0, 69_999, 0, 50_256, 0, 7] if eot_first else [69_999, 0, 50_256, 0, 7, 0]
    assert (block.array.dtype, block.array.tolist()) == (np.uint32, expected)
    assert block.eots.tolist() == np.flatnonzero(np.array(expected) == 0).tolist()
    write_rows(path, [[70_000]])
    (file,) = find_files((str(path),), "auto")
    with pytest.raises(BadFileError, match="row 0 has the id 70000, but those of other are 0 to 69999"):
        list(ParquetFormat(settings).chunks(file, Batch(0, 0, 1, 0)))


def test_json_lines_give_the_same(tmp_path: Path) -> None:
    """ClimbMix has its ids in both."""
    rows = make_rows(300, seed=4)
    path = write_lines(tmp_path / "a.jsonl", rows)
    tokens, counts = runs.encode_inline(path, tokens_column="tokens", batch_bytes=1024)
    assert (tokens, counts.skipped_documents, counts.text_bytes) == (stream_of(rows), rows.count(None), 0)


@pytest.mark.parametrize("layout", ["build-nanogpt", "nanogpt", "llm.c"])
def test_layouts_splits_and_limits(tmp_path: Path, layout: str) -> None:
    """--where, --min-tokens, --val-ratio and --max-tokens mean what they mean for text."""
    rows = make_rows(400, seed=5)
    path = write_rows(tmp_path / "a.parquet", rows, score=[i % 3 for i in range(400)])
    chosen = [row for i, row in enumerate(rows) if i % 3]
    documents = [document for document in documents_of(chosen) if len(document) >= 2]
    wanted = Wanted(layout, 3000, val_ratio=Fraction(1, 20), max_tokens=9_000)
    settings = {**wanted.settings(), "where": "score > 0", "min_tokens": 2, "batch_bytes": 2048}
    manifest = runs.build_inline(tmp_path / "out", path, tokens_column="tokens", **settings)
    assert runs.outputs_in(tmp_path / "out") == layout_reference.files_of_tokens(documents, wanted)
    assert manifest.tokens == 9_000


def test_resume_from_every_shard(tmp_path: Path) -> None:
    """With another batch size, in the middle of long rows that come in pieces."""
    rows = make_rows(100, seed=6)
    path = write_rows(tmp_path / "a.parquet", rows)
    expected = shards_of(rows, 500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_module, "_LONG_ROW_IDS", 70)
        first = runs.build_inline(tmp_path / "out", path, tokens_column="tokens", shard_tokens=500)
        assert runs.shards_in(tmp_path / "out") == expected
        for kept in range(len(first.shards)):
            runs.forget_after(tmp_path / "out", kept)
            patch.setattr(row_module, "_LONG_ROW_IDS", 30 + kept)
            again = runs.build_inline(
                tmp_path / "out", path, tokens_column="tokens", shard_tokens=500, batch_bytes=1024
            )
            assert (runs.shards_in(tmp_path / "out"), again.totals) == (expected, first.totals)


@pytest.mark.full
@pytest.mark.promise("kill -9 loses only the unfinished shard")
def test_a_kill_at_a_file_operation(tmp_path: Path, soak: bool) -> None:
    """At some of them, in a soak at every one; the resume has other batches, and the same bytes."""
    rows = make_rows(30, seed=8)
    path = write_rows(tmp_path / "a.parquet", rows, group=10)
    settings = {"engine": "auto", "tokens_column": "tokens", "shard_tokens": 800}
    expected = shards_of(rows, 800)
    assert len(expected) >= 2
    tries = runs.crash_everywhere(
        {
            "kind": "build",
            "input": str(path),
            "out": str(tmp_path / "out"),
            "settings": {**settings, "batch_bytes": 1024},
            "resumed": {**settings, "batch_bytes": 10**6},
            "expected": reference.digests(expected),
            "step": 1 if soak else 12,
        }
    )
    assert tries >= 4


WRONG: list[tuple[Any, str]] = [
    ([1, 50257], "has the id 50257, but those of gpt2 are 0 to 50256"),
    ([-1, 1], "has the id -1, but those of gpt2 are 0 to 50256"),
    ([2**62], f"has the id {2**62}, but"),
    ([1, None], "null"),
]


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize(("wrong", "phrase"), WRONG)
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_bad_row_is_named_or_skipped_alone(tmp_path: Path, wrong: Any, phrase: str, kind: str) -> None:
    """`stop` names file, row and value; `skip` leaves the row out, counts it, and takes all others."""
    rows: list[Any] = make_rows(300, seed=7)
    rows[230] = wrong
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        write_rows(path, rows, pa.list_(pa.int64()), group=100)
    else:
        write_lines(path, rows)
    with pytest.raises(BadFileError) as error:
        runs.build_inline(tmp_path / "stopped", path, tokens_column="tokens")
    assert error.value.message.startswith(f"{path}: ")
    assert phrase.replace("null", "null" if kind == "parquet" else "NoneType") in error.value.message
    assert kind == "jsonl" or "row 230 " in error.value.message
    manifest = runs.build_inline(tmp_path / "out", path, tokens_column="tokens", on_bad_file="skip")
    assert runs.shards_in(tmp_path / "out") == shards_of(rows[:230] + rows[231:])
    assert manifest.totals["bad_parts"] == 1
    assert "left out: " in (tmp_path / "out" / ".fineweb-shards" / "log.txt").read_text()


def test_a_bad_row_that_is_filtered_out_is_not_read(tmp_path: Path) -> None:
    """--where comes first."""
    path = write_rows(tmp_path / "a.parquet", [[1], [60_000], [2]], score=[1, 0, 1])
    assert runs.encode_inline(path, tokens_column="tokens", where="score = 1")[0] == [EOT, 1, EOT, 2]


@pytest.mark.parametrize("value", ['"1 2"', "7", "[1, 2.0]", "[1, true]", "[[1]]", '{"a": 1}', "[1e3]", f"[{10**400}]"])
def test_json_values_that_are_no_lists_of_ids(tmp_path: Path, value: str) -> None:
    """Each is a bad line, with its place."""
    (tmp_path / "a.jsonl").write_text(f'{{"tokens": [1]}}\n{{"tokens": {value}}}\n')
    with pytest.raises(BadFileError, match=r"a\.jsonl: the line at byte 16: 'tokens' (is not|has) a "):
        runs.encode_inline(tmp_path / "a.jsonl", tokens_column="tokens")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("ids", [[1]], r"a\.parquet: there is no column 'tokens'; the columns are: ids\."),
        ("tokens", ["text"], r"a\.parquet: column 'tokens' holds string, not lists of whole numbers\."),
        ("tokens", [7], "holds int64, not lists"),
        ("tokens", [[1.5]], "holds list<.*double>, not lists of whole"),
        ("tokens", [[[1]]], "holds list<.*list<.*>>, not lists of whole"),
    ],
)
def test_columns_that_hold_no_lists_of_ids(tmp_path: Path, column: str, values: list[Any], message: str) -> None:
    """Each is refused by name, with its type or with the columns there are."""
    pq.write_table(pa.table({column: values}), tmp_path / "a.parquet")
    with pytest.raises(BadFileError, match=message) as error:
        runs.encode_inline(tmp_path / "a.parquet", tokens_column="tokens")
    assert "--tokens-column" in str(error.value.hint)


def test_a_column_of_ids_is_no_text(tmp_path: Path) -> None:
    """Without --tokens-column the type is in the message."""
    path = write_rows(tmp_path / "a.parquet", [[1]])
    with pytest.raises(BadFileError, match=r"column .tokens. holds list<.*>, not text"):
        runs.encode_inline(path, text_column="tokens")


def test_columns_with_similar_names(tmp_path: Path) -> None:
    """`tokens.list` and a struct beside it are other columns."""
    columns = {
        "token": [{"list": 1, "more": [{"a": 1, "b": 2}]}, None],
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        "tokens.list": [[9], [9]],
        "kind": pa.array(["x", "y"]).dictionary_encode(),
        "tokens": [[1], [2]],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert runs.encode_inline(tmp_path / "a.parquet", tokens_column="tokens")[0] == [EOT, 1, EOT, 2]
    assert runs.encode_inline(tmp_path / "a.parquet", tokens_column="tokens.list")[0] == [EOT, 9, EOT, 9]
    for column in ("tokens", "tokens.list"):
        source = runs.job_of(tmp_path / "out", tmp_path / "a.parquet", tokens_column=column).source.parts[0]
        assert source.reader_of(source.files[0]).footer(source.files[0]).paths == (f"{column}.list.element",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text_column": "body"}, "--text-column body and --tokens-column exclude each other"),
        ({"engine": "tiktoken"}, "--engine tiktoken and --tokens-column exclude each other"),
    ],
)
def test_settings_that_make_no_sense_with_it(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        runs.job_of(tmp_path / "out", tmp_path, tokens_column="tokens", **settings)


def test_files_that_can_hold_no_lists_are_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    for path, kind in (
        (write_text(tmp_path / "a.txt", ["x"]), "plain text"),
        (write_csv(tmp_path / "a.csv", ["x"]), "CSV"),
    ):
        with pytest.raises(UsageError, match=f"{path}.* is {kind}, which has no lists of ids"):
            runs.job_of(tmp_path / "out", path, tokens_column="tokens")


def test_another_column_is_another_stream(tmp_path: Path) -> None:
    """A folder that was begun with one is not continued with another."""
    path = write_rows(tmp_path / "a.parquet", [[1], [2]], others=[[3], [4]])
    runs.build_inline(tmp_path / "out", path, tokens_column="tokens")
    with pytest.raises(ChangedError, match=r"--tokens-column was tokens .* and is others now"):
        runs.build_inline(tmp_path / "out", path, tokens_column="others")


@pytest.mark.full
def test_the_command_with_workers(tmp_path: Path) -> None:
    """No engine in the manifest; the plan shows what the ids say, and how many there are about."""
    text = "The cat sat on the mat. " * 20
    rows: list[Row] = [[EOT, *reference.encode(f"{i}. {text}")] for i in range(3000)]
    path = write_rows(tmp_path / "a.parquet", rows, group=500)
    plan = inline.run_command("plan", path, "--tokens-column", "tokens", "--out", tmp_path / "out")
    assert plan.returncode == 0, plan.stderr
    assert "0. The cat sat on the mat. The cat" in plan.stdout
    assert "no tokenizer" in plan.stdout
    assert "about 3k" in plan.stdout.split("documents", 1)[1].splitlines()[0]
    done = runs.run_command(
        "build", path, "--tokens-column", "tokens", "--out", tmp_path / "out",
        "--shard-tokens", "100k", "--workers", "2", "--batch-bytes", "64k",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == shards_of(rows, 100_000)
    versions = json.loads((tmp_path / "out" / "manifest.json").read_text())["versions"]
    assert sorted(versions) == ["fineweb_shards", "numpy", "python"]


def test_the_ids_of_another_tokenizer(tmp_path: Path) -> None:
    """Its file decides which ids there are; the plan decodes with it, and it is kept for `inspect`."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256}
    vocabularies.write_ranks(tmp_path / "small.tiktoken", ranks)
    path = write_rows(tmp_path / "a.parquet", [[*b"hello"], [256, *b"e", 257], [*b"end"]])
    words: list[Path | str] = [
        path, "--tokens-column", "tokens", "--tokenizer", tmp_path / "small.tiktoken",
        "--pattern", "gpt2", "--eot", "257", "--layout", "plain", "--out", tmp_path / "out",
    ]  # fmt: skip
    plan = inline.run_command("plan", *words)
    assert plan.returncode == 0, plan.stderr
    assert "document 2 the" in plan.stdout
    done = inline.run_command("build", *words)
    assert done.returncode == 0, done.stderr
    done = inline.run_command("inspect", tmp_path / "out", "--token-bytes", tmp_path / "token_bytes.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "token_bytes.npy").tolist() == [1] * 256 + [2, 0]
    write_rows(path, [[258]])
    refused = inline.run_command("build", *words[:-1], tmp_path / "other")
    assert (refused.returncode, "row 0 has the id 258" in refused.stderr) == (3, True)


def test_reading_imports_no_pandas(tmp_path: Path) -> None:
    """pyarrow would, for conversions that seem harmless: 0.3 s and 50 MB in every worker."""
    path = write_rows(tmp_path / "a.parquet", [[1, 2], None, [3]])
    code = f"""
import sys
from fineweb_shards.storage.place import InputFile
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.types import Batch
from fineweb_shards.vocabulary import GPT2
file = InputFile(0, {str(path)!r}, "a", "parquet", None, {path.stat().st_size}, 0, "")
settings = ReadSettings("text", "auto", 1024, False, GPT2, tokens_column="tokens")
(chunk,) = ParquetFormat(settings).chunks(file, Batch(0, 0, 1, 0))
print(chunk.documents.ids, chunk.documents.lengths, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1 2 3] [2 1] False"
