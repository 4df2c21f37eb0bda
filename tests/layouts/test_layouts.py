"""Every layout, byte for byte: any split, any shard size, long documents, resumed."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import OutputError, UsageError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.stream.split import SplitRule
from tests.support import layout_reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_gzip, write_jsonl, write_parquet, write_text
from tests.support.layout_reference import Wanted

DOCUMENTS = make_documents(90, seed=91)
LONG = ["word " * 3000, "", "的一是不了人我在有他" * 700, "", "z" * 9000, "end"]
WANTED = [
    *(Wanted(layout, 2000) for layout in LAYOUTS),
    *(Wanted(layout, 2000, val_tokens=3100, index=True) for layout in LAYOUTS),
    *(Wanted(layout, 1500, val_ratio=Fraction(3, 10), val_seed=4, index=True) for layout in LAYOUTS),
    *(Wanted(layout, 1000, val_ratio=Fraction(7, 10)) for layout in ("llm.c", "plain", "megatron")),
    *(Wanted(layout, 2000, val_tokens=0) for layout in ("build-nanogpt", "nanogpt")),
    *(Wanted(layout, 3000, drop=True) for layout in ("build-nanogpt", "llm.c", "plain")),
    Wanted("plain", 3000, val_ratio=Fraction(1, 10), drop=True),
    *(Wanted(layout, 2000, max_tokens=9001) for layout in LAYOUTS),
    # Less than a shard, several, and a document that is longer than a shard at the boundary.
    *(Wanted(layout, 2000, val_documents=7) for layout in LAYOUTS),
    *(Wanted(layout, 700, val_documents=31, max_tokens=9001) for layout in ("llm.c", "nanogpt", "megatron")),
    *(Wanted(layout, 2000, val_documents=number) for layout in ("llm.c", "plain") for number in (0, 1, 90)),
    Wanted("plain", 3000, val_documents=10, drop=True),
    Wanted("llm.c", 10**6),
    Wanted("build-nanogpt", 2000, val_tokens=10**6),
]


def name_of(wanted: Wanted) -> str:
    given = {key: value for key, value in dataclasses.asdict(wanted).items() if value}
    return " ".join(str(value) for value in given.values())


# In `make test`: every layout once, with all that it may have, and the other settings with one of them.
@pytest.mark.full(
    but=[
        "* 1500 3/10 4 True",
        "llm.c 2000 9001",
        "nanogpt 2000 7",
        "build-nanogpt 3000 True",
        "megatron 2000 3100 True",
    ]
)
@pytest.mark.parametrize("wanted", WANTED, ids=name_of)
def test_a_build_is_the_reference_resumed_or_not(tmp_path: Path, wanted: Wanted) -> None:
    """Every file equals a plain loop's, the folder verifies; the same after resuming from checkpoints."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    expected = layout_reference.files(DOCUMENTS, wanted)
    out = tmp_path / "out"
    manifest = runs.build_inline(out, path, batch_bytes=3000, **wanted.settings())
    assert runs.outputs_in(out) == expected
    assert verify_folder(FolderStore(out)).damages == []
    assert manifest.complete
    for records in range(0, len(manifest.shards), max(1, len(manifest.shards) // 4)):
        runs.forget_after(out, records)
        runs.build_inline(out, path, batch_bytes=1024 + 37 * records, **wanted.settings())
        assert runs.outputs_in(out) == expected
    assert verify_folder(FolderStore(out)).damages == []


@pytest.mark.full(but=["parquet-nanogpt", "gzip-llm.c", "text-plain", "jsonl-llm.c"])
@pytest.mark.parametrize("layout", ["nanogpt", "plain", "llm.c"])
@pytest.mark.parametrize("form", ["parquet", "jsonl", "text", "gzip"])
def test_long_documents_cut_in_pieces(tmp_path: Path, layout: str, form: str) -> None:
    """Documents of many batches, with and without safe places to cut, with EOT on either side."""
    documents = LONG
    if form == "parquet":
        path = write_parquet(tmp_path / "a.parquet", documents, 2)
    elif form == "jsonl":
        path = write_jsonl(tmp_path / "a.jsonl", documents)
    else:
        documents = [text for text in documents if text]
        path = write_text(tmp_path / "a.txt", documents)
        if form == "gzip":
            path = write_gzip(tmp_path / "a.txt.gz", path.read_bytes())
    wanted = Wanted(layout, 700, val_ratio=Fraction(1, 4), val_seed=1)
    expected = layout_reference.files(documents, wanted)
    out = tmp_path / "out"
    manifest = runs.build_inline(out, path, batch_bytes=1024, **wanted.settings())
    assert runs.outputs_in(out) == expected
    for records in range(0, len(manifest.shards), 12):
        runs.forget_after(out, records)
        runs.build_inline(out, path, batch_bytes=1024 + 700 * records, **wanted.settings())
        assert runs.outputs_in(out) == expected


@pytest.mark.full
def test_real_workers_put_eot_on_the_layouts_side(tmp_path: Path) -> None:
    """The command as a user types it gives the same bytes."""
    layout = "megatron"
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 10)
    wanted = Wanted(layout, 4000, val_ratio=Fraction(1, 5))
    done = runs.run_command(
        "build", "--input", path, "--out", tmp_path / "out", "--layout", layout, "--shard-tokens", "4000",
        "--val-ratio", "20%", "--workers", "2", "--batch-bytes", "2k",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert runs.outputs_in(tmp_path / "out") == layout_reference.files(DOCUMENTS, wanted)


@pytest.mark.parametrize("ratio", ["0.0005", "0.5", "0.3", "0.999", "0.123456"])
def test_the_share_is_exact_and_a_function_of_the_number(ratio: str) -> None:
    """Of the first n documents, for every n, the share is right to within one document; another seed chooses others;
    and it does not matter how the numbers are asked for."""
    exact = Fraction(ratio)
    numbers = np.arange(20_000)
    split_rule = SplitRule(val_ratio=exact, seed=7)
    chosen = split_rule.chooses(numbers)
    counted = np.cumsum(chosen)
    assert all(abs(int(counted[n - 1]) - exact * n) <= 1 for n in range(1, 20_001, 7))
    assert chosen.tolist() == [layout_reference.is_chosen(n, exact, 7) for n in range(20_000)]
    parts = [split_rule.chooses(numbers[i : i + 77]) for i in range(0, 20_000, 77)]
    assert np.array_equal(np.concatenate(parts), chosen)
    assert not np.array_equal(SplitRule(val_ratio=exact, seed=8).chooses(numbers), chosen)


@pytest.mark.full
def test_a_lost_file_is_made_again(tmp_path: Path) -> None:
    """Deleted, cut short or grown: the same command makes it good, also where two splits grow together."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    more = Wanted("plain", 1500, val_ratio=Fraction(3, 10), drop=True), Wanted("llm.c", 2000, val_documents=7)
    for wanted in [*WANTED[:30:4], *more]:
        out = tmp_path / name_of(wanted)
        runs.build_inline(out, path, **wanted.settings())
        expected = runs.outputs_in(out)
        for name in [*expected][:: max(1, len(expected) // 2)]:
            for data in (None, expected[name][:-2], expected[name] + b"\0\0"):
                if data is None:
                    (out / name).unlink()
                elif not name.endswith(".csv.gz"):  # its length can't be told without reading the tokens
                    (out / name).write_bytes(data)
                runs.build_inline(out, path, **wanted.settings())
                assert runs.outputs_in(out) == expected


@pytest.mark.full(but=["megatron"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("build-nanogpt", "llm.c", "plain")])
def test_damage_is_found(tmp_path: Path, layout: str) -> None:
    """A flipped bit anywhere in a file or in a sidecar, one that is missing, one that is too long."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    chooser = random.Random(3)
    out = tmp_path / layout
    wanted = Wanted(layout, 4000, val_ratio=Fraction(1, 4), index=True)
    runs.build_inline(out, path, **wanted.settings())
    for name, data in runs.outputs_in(out).items():
        flipped = bytearray(data)
        if data:
            flipped[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        for bad in (flipped, data + b"\0\0", None):
            if bad is None:
                (out / name).unlink()
            elif bad != data:
                (out / name).write_bytes(bad)
            else:
                continue
            damages = verify_folder(FolderStore(out)).damages
            assert damages
            assert damages[0].startswith(f"{name}: ")
            if not LAYOUTS[layout].holds_tokens(name):
                assert len(damages) == 1
            (out / name).write_bytes(data)
    assert verify_folder(FolderStore(out)).damages == []


@pytest.mark.parametrize("layout", ["build-nanogpt", "olmo-core", "torchtitan"])
def test_an_index_is_added_and_stays(tmp_path: Path, layout: str) -> None:
    """To a finished folder, without a change of its shards; a later run that does not ask for it keeps it and makes it
    again where it is lost. A file of others in its place is never replaced."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    out = tmp_path / "out"
    without, with_index = (Wanted(layout, 2000, val_tokens=3100), Wanted(layout, 2000, val_tokens=3100, index=True))
    expected = layout_reference.files(DOCUMENTS, with_index)
    runs.build_inline(out, path, **without.settings())
    index = next(name for name in expected if name.startswith("index/"))
    (out / "index").mkdir()
    (out / index).write_text("mine")
    with pytest.raises(OutputError, match=f"{index} is here, but no manifest.json of this folder lists it"):
        runs.build_inline(out, path, **with_index.settings())
    (out / index).unlink()
    times = {name: (out / name).stat().st_mtime_ns for name in expected if LAYOUTS[layout].holds_tokens(name)}
    assert runs.build_inline(out, path, **with_index.settings()).complete
    assert runs.outputs_in(out) == expected
    assert times == {name: (out / name).stat().st_mtime_ns for name in times}
    (out / index).unlink()
    assert runs.build_inline(out, path, **without.settings()).complete
    assert runs.outputs_in(out) == expected
    assert np.load(out / index).dtype == np.int64


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"val_tokens": 5, "val_ratio": 0.1}, "exclude each other"),
        ({"val_tokens": 5, "val_documents": 1}, "--val-tokens and --val-documents exclude each other"),
        ({"val_documents": 5, "val_ratio": 0.1}, "--val-documents and --val-ratio exclude each other"),
        ({"val_input": ("x",), "val_tokens": 0}, "--val-input and --val-tokens exclude each other"),
        ({"val_input": ("x",), "val_documents": 1}, "--val-input and --val-documents exclude each other"),
        ({"val_input": ("x",), "val_ratio": 0.1}, "--val-input and --val-ratio exclude each other"),
        ({"val_documents": -1}, "--val-documents -1: must be at least 0"),
        ({"val_ratio": 1.5}, "from 0 to below 1"),
        ({"val_ratio": -0.1}, "from 0 to below 1"),
        ({"layout": "nanogpt", "last_shard": "drop"}, "no last shard"),
        ({"layout": "llm.c", "shard_tokens": 2**30}, "2,147,483,647 bytes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: dict[str, object], word: str) -> None:
    """With a sentence and the next step."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS[:3])
    with pytest.raises(UsageError, match=word):
        runs.job_of(tmp_path / "out", path, **settings)
