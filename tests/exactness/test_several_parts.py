"""An input of several parts, each with settings of its own: one stream, part after part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fineweb_shards
from fineweb_shards.errors import UsageError
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.run.config_sources import load_config
from tests.support import inline, layout_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_csv, write_jsonl, write_text
from tests.support.layout_reference import Wanted

DOCUMENTS = [text for text in make_documents(110, seed=51) if text.strip() and "<|endoftext|>" not in text]
LINES, TEXTS, BODIES, RECORDS = (DOCUMENTS[start : start + 20] for start in range(0, 80, 20))
IDS = [reference.encode(text) for text in DOCUMENTS[80:95]]
LEAST = 12  # tokens, of the documents in text files


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind, each in another way."""
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "lines.jsonl", LINES)
    write_text(folder / "texts.txt", TEXTS)
    write_csv(folder / "records.csv", RECORDS)
    scores = [number % 3 for number in range(len(BODIES))]
    pq.write_table(pa.table({"body": BODIES, "score": scores}), folder / "bodies.parquet", row_group_size=6)
    pq.write_table(pa.table({"tokens": IDS}), folder / "ids.parquet", row_group_size=4)
    return folder


def parts_of(data: Path) -> list[dict[str, Any]]:
    """As TOML and Python have them."""
    return [
        {"input": [f"{data}/lines.jsonl"]},
        {"input": [f"{data}/bodies.parquet"], "text_column": "body", "where": "score > 0"},
        {"input": [f"{data}/ids.parquet"], "tokens_column": "tokens"},
        {"input": [f"{data}/texts.txt"], "min_tokens": LEAST, "separator": "<|endoftext|>"},
        {"input": [f"{data}/records.csv", f"{data}/lines.jsonl"]},
    ]


def expected_tokens() -> list[list[int]]:
    """The documents of all parts, by the reference."""
    bodies = [text for number, text in enumerate(BODIES) if number % 3 > 0]
    texts = [tokens for tokens in map(reference.encode, TEXTS) if len(tokens) >= LEAST]
    return [
        *map(reference.encode, [*LINES, *bodies]), *IDS, *texts, *map(reference.encode, [*RECORDS, *LINES])
    ]  # fmt: skip


@pytest.mark.full(but=["build-nanogpt"])
@pytest.mark.parametrize("layout", ["build-nanogpt", "llm.c", "megatron"])
def test_parts_of_every_kind_are_one_stream(tmp_path: Path, data: Path, layout: str) -> None:
    """Each part has its own columns, condition, lengths and separator; a file may be in two of them; the same from any
    record, with other batches."""
    wanted, out = Wanted(layout, 900), tmp_path / "out"
    expected = layout_reference.files_of_tokens(expected_tokens(), wanted)
    settings = {**wanted.settings(), "parts": tuple(parts_of(data))}
    manifest = runs.build_inline(out, batch_bytes=2000, **settings)
    assert runs.outputs_in(out) == expected
    assert verify_folder(FolderStore(out)).damages == []
    assert manifest.totals["filtered_documents"] == 7
    for records in range(0, len(manifest.shards), 3):
        runs.forget_after(out, records)
        assert runs.build_inline(out, batch_bytes=1024 + 99 * records, **settings).totals == manifest.totals
        assert runs.outputs_in(out) == expected


def test_flags_toml_and_the_library_mean_the_same(tmp_path: Path, data: Path) -> None:
    """--part, [[parts]] and `parts=`: each finds nothing to do in the folder that another one has made."""
    config, out = tmp_path / "mine.toml", tmp_path / "out"
    tables = ("".join(f"{key} = {json.dumps(value)}\n" for key, value in part.items()) for part in parts_of(data))
    config.write_text("".join(f"[[parts]]\n{table}" for table in tables))
    words = [
        "--part", f"input='{data}/lines.jsonl'",
        "--part", f"input='{data}/bodies.parquet' text-column=body where='score > 0'",
        "--part", f"input={data}/ids.parquet tokens_column=tokens",
        "--part", f"input={data}/texts.txt min_tokens={LEAST} separator='<|endoftext|>'",
        "--part", f"input={data}/records.csv input={data}/lines.jsonl",
    ]  # fmt: skip
    done = inline.run_command("build", *words, "--out", out, "--shard-tokens", 900)
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(out) == layout_reference.files_of_tokens(expected_tokens(), Wanted("build-nanogpt", 900))
    again = inline.run_command("build", config, "--out", out, "--shard-tokens", 900)
    assert "Nothing to do" in again.stdout, again.stderr
    assert fineweb_shards.build(parts=parts_of(data), out=out, shard_tokens=900, quiet=True).new_tokens == 0


def test_validation_files_of_all_parts_come_first(tmp_path: Path, data: Path) -> None:
    """Each part may name its own; training begins after the last of them, with the first part."""
    parts = (
        {"input": (f"{data}/lines.jsonl", f"{data}/texts.txt"), "val_input": (f"{data}/texts.txt",)},
        {"input": (f"{data}/records.csv",)},
        {"input": (f"{data}/bodies.parquet",), "text_column": "body", "val_input": (f"{data}/bodies.parquet",)},
    )
    out = tmp_path / "out"
    manifest = runs.build_inline(out, parts=parts, shard_tokens=700, separator="<|endoftext|>")
    texts = [*TEXTS, *BODIES, *LINES, *RECORDS]
    wanted = Wanted("build-nanogpt", 700, val_documents=len(TEXTS) + len(BODIES))
    assert runs.outputs_in(out) == layout_reference.files(texts, wanted)
    for records in range(len(manifest.shards)):
        runs.forget_after(out, records)
        runs.build_inline(out, parts=parts, shard_tokens=700, separator="<|endoftext|>", batch_bytes=1500)
        assert runs.outputs_in(out) == layout_reference.files(texts, wanted)


def test_the_plan_shows_each_part(tmp_path: Path, data: Path) -> None:
    """With its size, its tokens, and what is kept of it; and the sum."""
    words = [
        "--part",
        f"input={data}/lines.jsonl",
        "--part",
        f"input={data}/bodies.parquet text_column=body where='score > 0'",
    ]
    done = inline.run_command("plan", *words)
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert rows[0][0] == "input"
    assert rows[0][1].startswith("2 parts, one after the other: 2 files")
    shown = [line for line in done.stdout.splitlines() if line.startswith(("part 1", "part 2"))]
    assert len(shown) == 2
    assert shown[0].endswith("tokens")
    assert "(parquet)" in shown[1]


@pytest.mark.parametrize(("words", "message"), [
    (["--part", "input=a", "--dataset", "b/c", "--dataset", "d/e"], "Several --dataset and --part exclude each other."),
    (["--part", "input=a", "--dataset", "b/c"], "--dataset b/c: the parts of the input name their own."),
    (["--part", "input=a", "--input", "b"], "--input b: the parts of the input name their own."),
    (["--dataset", "a/b", "--dataset", "c/d", "--input", "e"], "--input e: the parts of the input name their own."),
    (["--dataset", "a/b", "--dataset", "c/d", "--name", "1", "--name", "2", "--name", "3"],
     "There are 2 --dataset and 3 --name."),
    (["--part", "text_column=x"], "Part 1: There is no input."),
    (["--part", ""], "a part needs at least dataset=ORG/NAME or input=PATH"),
    (["--part", "a/b"], "'a/b' is not a setting such as dataset=ORG/NAME"),
    (["--part", "input=a text-column=b text_column=c"], "text_column is given twice: b and c"),
    (["--part", "input=a text_colum=b"], "unknown key 'text_colum'"),
    (["--part", "input=a layout=llm.c"], "layout can't be set per part."),
    (["--part", "input='a"], "No closing quotation"),
    (["--part", "input=a min_tokens=many"], "min_tokens"),
    (["--part", "input=a", "--part", "input=b dataset=c/d"], "Part 2: --dataset and --input exclude each other."),
    (["--part", "input=a", "--val-input", "b"], "--val-input b: the parts of the input name their own."),
    (["--part", "input=a val_input=b", "--val-tokens", "5"], "--val-input and --val-tokens exclude each other."),
])  # fmt: skip
def test_each_mistake_has_its_message(tmp_path: Path, words: list[str], message: str) -> None:
    """The part it is in, and no folder."""
    done = inline.run_command("build", *words, "--out", tmp_path / "out")
    assert done.returncode == (3 if message.endswith("no input.") else 2)
    assert not (tmp_path / "out").exists()
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "message"), [
    ("parts = 3", "parts must be tables"),
    ("parts = []", "parts must be tables"),
    ("[[parts]]\nlayout = 'llm.c'", "part 1: layout can't be set per part"),
    ("[[parts]]\ninput = 'a'\n[[parts]]\ninput = 3", "part 2: input = 3: must be a string or a list of strings"),
    ("dataset = 'a/b'\n[[parts]]\ninput = 'a'", "--dataset a/b: the parts of the input name their own."),
    ("[[parts]]\ninput = 'a'\n[[parts.parts]]\ninput = 'b'", "parts can't be set per part"),
])  # fmt: skip
def test_each_mistake_in_a_file_has_its_message(tmp_path: Path, text: str, message: str) -> None:
    """The file, the part and the key."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_config(path, {"out": "out"}).check()
    assert message in str(raised.value)
