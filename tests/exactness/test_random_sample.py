"""--sample: the shards of a plain loop that hashes the beginning of each document by itself."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import ChangedError
from fineweb_shards.run.plan import make_plan
from tests.support import cut_rules, inline, layout_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_csv, write_jsonl, write_parquet, write_text
from tests.support.layout_reference import Wanted

SHARE, SEED = 0.4, 7
SAMPLE: dict[str, Any] = {"sample": SHARE, "sample_seed": SEED}


def is_kept(data: bytes, share: float = SHARE, seed: int = SEED) -> bool:
    digest = hashlib.blake2b(data[: 64 * 1024], digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") / 2**64 < share


def keep(texts: Sequence[str], share: float = SHARE, seed: int = SEED) -> list[str]:
    """The documents that the plain loop encodes."""
    return [text for text in texts if is_kept(text.encode(), share, seed)]


TEXTS = [
    text for text in make_documents(200, seed=61) if text.strip() and "<|endoftext|>" not in text and "\r" not in text
]
TEXTS += TEXTS[:20]  # copies


def write(folder: Path, form: str) -> Path:
    path = folder / f"a.{form}"
    match form:
        case "parquet":
            return write_parquet(path, TEXTS, 40)
        case "jsonl":
            return write_jsonl(path, TEXTS)
        case "csv":
            return write_csv(path, TEXTS)
        case "txt":
            return write_text(path, TEXTS)
    path.write_bytes(gzip.compress(write_text(folder / "plain", TEXTS).read_bytes(), 1))
    return path


@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv", "txt", "txt.gz"])
def test_the_same_shards_as_a_plain_loop(tmp_path: Path, form: str) -> None:
    """In every format, with any batches, resumed after every checkpoint: the same bytes and the same counts."""
    path, out = write(tmp_path, form), tmp_path / "out"
    expected = reference.shard_files(reference.stream(keep(TEXTS)), 4000)
    settings: dict[str, Any] = {**SAMPLE, "shard_tokens": 4000}
    totals = runs.build_inline(out, path, batch_bytes=1024, **settings).totals
    assert runs.shards_in(out) == expected
    assert (totals["documents"], totals["unsampled_documents"]) == (len(keep(TEXTS)), len(TEXTS) - len(keep(TEXTS)))
    assert totals["text_bytes"] == sum(len(text.encode()) for text in keep(TEXTS))
    assert len(expected) > 3
    for records in range(1, len(expected)):
        runs.forget_after(out, records)
        assert runs.build_inline(out, path, batch_bytes=50_000, **settings).totals == totals
        assert runs.shards_in(out) == expected


def test_lists_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document of a row by its own ids, also where a row is read in pieces that are shorter than its hash."""
    chooser = random.Random(62)
    documents = [[chooser.randrange(300) for _ in range(chooser.choice([0, 3, 40, 500]))] for _ in range(150)]
    documents += [[seven] * 33_000 + [number] for seven in (6, 7) for number in range(2)]  # 32,768 decide
    chooser.shuffle(documents)
    rows, i = list[list[int]](), 0
    while i < len(documents):
        n = chooser.randint(1, 6)
        rows.append([token for one in documents[i : i + n] for token in (*one, reference.EOT)][:-1])
        i += n
    # An EOT at either end of a row adds nothing.
    documents = [one for row in rows for one in split(row)]
    kept = [one for one in documents if is_kept(np.array(one, "<u2").tobytes())]
    assert 50 < len(kept) < 100
    expected = [token for one in kept for token in (reference.EOT, *one)]
    pq.write_table(pa.table({"ids": rows}), tmp_path / "a.parquet", row_group_size=9)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    for name, piece_ids in (("a.jsonl", 2**20), ("a.parquet", 2**20), ("a.parquet", 5000), ("a.parquet", 700)):
        monkeypatch.setattr("fineweb_shards.formats.rows._LONG_ROW_IDS", piece_ids)
        tokens, counts = runs.encode_inline(tmp_path / name, tokens_column="ids", **SAMPLE)
        assert tokens == expected
        assert counts.unsampled_documents == len(documents) - len(kept)


def split(row: list[int]) -> list[list[int]]:
    row = row[1:] if row[:1] == [reference.EOT] else row
    row = row[:-1] if row[-1:] == [reference.EOT] else row
    ends = [-1, *(place for place, token in enumerate(row) if token == reference.EOT), len(row)]
    return [row[start + 1 : end] for start, end in pairwise(ends)]


def make_long(seed: int, line: str) -> list[str]:
    """Documents of up to 150 kB: some differ only after the 64 KiB that decide, some have no safe cut."""
    chooser = random.Random(seed)
    made = []
    for number in range(40):
        word = chooser.choice(["some words ", "-", "一二三", f"é{line}", f"a{line}b "])
        start, more = chooser.choice([("", 0), ("", 0), (f"{number} ", 0), (f"{number} ", 0), ("", number)])
        length = chooser.choice([5, 100, 3000, 9000, 9000, 30_000])
        made.append((start + word * (length // len(word) + 1) + str(more) * (more > 0)).strip() + ".")
    return made


@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize("layout", ["build-nanogpt", "plain"])
@pytest.mark.parametrize(
    ("form", "separator", "line_end"),
    [("txt", "blank", "\n"), ("txt", "|", "\r\n"), ("txt.gz", "<|endoftext|>", "\n"), ("parquet", "auto", "\n")],
)
def test_documents_longer_than_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, separator: str, line_end: str, layout: str
) -> None:
    """A document is decided once, by its beginning, wherever it is cut; from every record a resume with other batches
    ends with the same bytes and counts."""
    documents = make_long(63, line_end)
    documents += [documents[3], "x " * 40_000 + "1", "x " * 40_000 + "2"]
    path = tmp_path / f"a.{form}"
    monkeypatch.setattr("fineweb_shards.formats.ranges._WINDOW_BYTES", 512)  # else no text is cut
    if form == "parquet":
        monkeypatch.setattr("fineweb_shards.formats.rows._LONG_CELL_BYTES", 4375)
        write_parquet(path, documents, 20)
    else:
        mark = line_end * 2 if separator == "blank" else separator
        data = write_text(tmp_path / "plain", documents, mark).read_bytes()
        path.write_bytes(gzip.compress(data, 1) if form == "txt.gz" else data)
    documents = [text.replace("\r\n", "\n") for text in documents]
    kept = keep(documents)
    assert 5 < len(kept) < len(documents) - 5
    wanted, out = Wanted(layout, 8000), tmp_path / "out"
    expected = layout_reference.files(kept, wanted)
    settings = {**wanted.settings(), **SAMPLE, "separator": separator}
    manifest = runs.build_inline(out, path, batch_bytes=4096, **settings)
    assert runs.outputs_in(out) == expected
    assert manifest.totals["unsampled_documents"] == len(documents) - len(kept)
    assert not any(cursor.starts_mid_document for record in manifest.shards for cursor in record.end)
    for records in range(1, len(manifest.shards), 4):
        runs.forget_after(out, records)
        batch_bytes = (1024, 30_000, 2**20)[records % 3]
        assert runs.build_inline(out, path, batch_bytes=batch_bytes, **settings).totals == manifest.totals
        assert runs.outputs_in(out) == expected


def test_a_text_that_can_not_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a document that is too long without a place to cut is in the sample or not by how it begins in
    the file, with any batches."""
    cut_rules.use_rule(monkeypatch, "words")
    cut_rules.use_limits(monkeypatch, 2000)
    begin, end = "some words and others, " * 210, " others, "
    documents = [f"{number} {begin}{'-' * 10_000 * (number % 2)} end {number}" for number in range(20)]
    write_text(tmp_path / "a.txt", documents, "|")
    kept = [f"{number} {begin.removesuffix(end)}" if number % 2 else text for number, text in enumerate(documents)]
    expected = [text for text, whole in zip(kept, documents, strict=True) if is_kept(whole.encode())]
    assert 5 < len(expected) < 15
    for batch_bytes in (1024, 1500, 3000, 7000, 10**6):
        settings = {**SAMPLE, "separator": "|", "batch_bytes": batch_bytes, "on_bad_file": "skip"}
        tokens, counts = runs.encode_inline(tmp_path / "a.txt", **settings)
        assert tokens == reference.stream(expected).tolist()
        assert counts.unsampled_documents == len(documents) - len(expected)


def test_a_smaller_share_is_a_part_of_a_larger_one(tmp_path: Path) -> None:
    """Of 100,000 documents a tenth is kept, to three percent of it; a twentieth is in it; another seed keeps others."""
    lines = [f"document {number}" for number in range(100_000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))

    def sample(share: float, seed: int = 0) -> set[str]:
        source = runs.job_of("out", tmp_path / "a.txt", separator="line", sample=share, sample_seed=seed).source
        chunks = (chunk for batch in source.batches(runs.START) for chunk in source.chunks(batch))
        return {text for chunk in chunks for text in chunk.texts}

    tenth, twentieth, other = sample(0.1), sample(0.05), sample(0.1, seed=1)
    assert tenth == {*keep(lines, 0.1, 0)}
    assert abs(len(tenth) - 10_000) < 300
    assert abs(len(twentieth) - 5000) < 300
    assert twentieth < tenth
    assert abs(len(tenth & other) - 1000) < 100


def test_with_other_filters_and_parts(tmp_path: Path) -> None:
    """After --where and before the lengths; each part has its own share, and a part of ids is sampled like others."""
    rows = [{"text": text, "n": number % 3} for number, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_parquet(tmp_path / "b.parquet", TEXTS)
    parts = (
        {"input": (f"{tmp_path}/a.jsonl",), "where": "n > 0", **SAMPLE, "min_tokens": 20},
        {"input": (f"{tmp_path}/b.parquet",), "sample": 0.5},
        {"input": (f"{tmp_path}/b.parquet",), "epochs": 2, "sample": 0.25},
    )
    first = keep([text for number, text in enumerate(TEXTS) if number % 3])
    kept = [text for text in first if len(reference.encode(text)) >= 20] + keep(TEXTS, 0.5, 0)
    manifest = runs.build_inline(tmp_path / "out", parts=parts, shard_tokens=3000)
    expected = reference.shard_files(reference.stream(kept + 2 * keep(TEXTS, 0.25, 0)), 3000)
    assert runs.shards_in(tmp_path / "out") == expected
    assert manifest.totals["filtered_documents"] == len(TEXTS) - sum(number % 3 > 0 for number in range(len(TEXTS)))
    assert manifest.totals["short_documents"] == len(first) + len(keep(TEXTS, 0.5, 0)) - len(kept)


def test_a_kill_between_file_operations(tmp_path: Path) -> None:
    """Nothing is lost, and the next run, with other batches, has the same bytes."""
    wanted, documents = Wanted("build-nanogpt", 3000), make_long(65, "\n")[:15]
    path = write_text(tmp_path / "a.txt", documents)
    job = {"kind": "build", "input": str(path), "out": str(tmp_path / "out")}
    settings = {**wanted.settings(), **SAMPLE}
    expected = reference.digests(layout_reference.files(keep(documents), wanted))
    assert len(expected) > 3
    own = {"settings": {**settings, "batch_bytes": 2048}, "resumed": {**settings, "batch_bytes": 5000}}
    assert runs.crash_everywhere({**job, **own, "expected": expected, "step": 20}) > 3


@pytest.mark.parametrize("workers", [1, 2])
def test_real_workers(tmp_path: Path, workers: int) -> None:
    """The command counts what it leaves out; a copy of the documents in another format adds the same ones."""
    write_parquet(tmp_path / "a.parquet", TEXTS, 30)
    write_jsonl(tmp_path / "b.jsonl", TEXTS)
    words = ["build", tmp_path, "--out", tmp_path / "out", "--shard-tokens", "9k", "--workers", workers]
    done = runs.run_command(*words, "--batch-bytes", "4k", "--sample", "40%", "--sample-seed", SEED)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(2 * keep(TEXTS)), 9000)
    assert f"Left out by --sample: {2 * (len(TEXTS) - len(keep(TEXTS)))} documents." in done.stdout


def test_another_sample_is_refused(tmp_path: Path) -> None:
    """By its name; a folder that was begun before there were samples has all documents, and resumes."""
    path, out = write(tmp_path, "jsonl"), tmp_path / "out"
    runs.build_inline(out, path, shard_tokens=9000, **SAMPLE)
    for changed, told in (
        ({"sample": 0.5}, "--sample was 0.4 when this folder was begun and is 0.5 now"),
        ({"sample_seed": 8}, "--sample-seed was 7 when this folder was begun and is 8 now"),
    ):
        with pytest.raises(ChangedError, match=told):
            runs.build_inline(out, path, shard_tokens=9000, **{**SAMPLE, **changed})
    runs.build_inline(tmp_path / "old", path, shard_tokens=9000)
    expected = runs.shards_in(tmp_path / "old")
    runs.forget_after(tmp_path / "old", 1)
    data = json.loads((tmp_path / "old" / "manifest.json").read_text())
    for name in SAMPLE:
        del data["parts"][0]["settings"][name]
    for shard in data["shards"]:
        del shard["counts"]["unsampled_documents"]
    runs.write_manifest(tmp_path / "old", data)
    assert runs.build_inline(tmp_path / "old", path, shard_tokens=9000, sample=1.0).complete
    assert runs.shards_in(tmp_path / "old") == expected


@pytest.mark.parametrize("share", ["0", "1.5", "-0.1", "101%", "many", "nan"])
def test_what_is_no_share(tmp_path: Path, share: str) -> None:
    """Exit code 2 and one sentence, before a folder is made."""
    write_text(tmp_path / "a.txt", TEXTS)
    done = inline.run_command("build", tmp_path / "a.txt", "--out", tmp_path / "out", f"--sample={share}")
    assert (done.returncode, "--sample" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_nothing_is_kept(tmp_path: Path) -> None:
    """Of a few documents a small share may be none: there is no shard, and the message says why."""
    write_text(tmp_path / "a.txt", ["one", "two"])
    words = ["build", tmp_path / "a.txt", "--out", tmp_path / "out", "--sample", "1e-9"]
    done = inline.run_command(*words, "--shard-tokens", "1k")
    assert done.returncode == 3
    assert "or none was kept, so there is no shard." in done.stderr


def test_plans(tmp_path: Path) -> None:
    """An estimate: the share of what the whole input has, also where token_count gives that exactly."""
    others = {"id": "i", "dump": "d", "url": "u", "file_path": "f"}
    rows = [{"text": text, **others, "token_count": len(reference.encode(text))} for text in TEXTS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write_jsonl(tmp_path / "b.jsonl", TEXTS)
    for name in ("a.parquet", "b.jsonl"):
        whole, some = (
            make_plan(runs.job_of("out", tmp_path / name, sample=share), trial_seconds=0.01) for share in (1.0, 0.25)
        )
        assert (whole.extent.exact, some.extent.exact) == (name == "a.parquet", False)
        assert some.extent.tokens == round((whole.extent.tokens or 0) / 4)
        assert some.extent.documents == round((whole.extent.documents or 0) / 4)
