"""The one contract: the same source gives the same bytes, whatever else is different."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.run.build import build
from fineweb_shards.sources.source import Parts, open_source
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.tokenizers import FAST_ENGINES
from fineweb_shards.tokenizers.encoder import make_mender
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.watching.screen import Screen
from tests.support import collecting, inline, reference, runs
from tests.support.corpus import corpus_files, read_texts
from tests.support.documents import make_documents
from tests.support.inputs import write_csv, write_gzip, write_jsonl, write_parquet, write_text, write_zstd
from tests.support.stitching import stitch

LARGE_SHARD_SIZES = [1_000_000, 777_777, 10**9]
SHARD_SIZES = [100_000, 77_777, 10**9]
SMALL_SHARD_SIZES = [10_000, 7_777, 10**9]
EVERY_DAY = [("gigatoken", 3), ("fastokens", 1), ("tiktoken", 3)]
FILES = ("parquet", "jsonl", "txt", "csv", "tsv")
PACKED_FILES = ("jsonl.gz", "txt.gz", "txt.zst", "csv.gz", "csv.zstd")
PIPES = ("stdin", "stdin jsonl", "stdin csv")
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.full(but=["fastokens-1"])
@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize(
    ("engine", "workers"),
    [
        pytest.param(engine, workers, marks=() if (engine, workers) in EVERY_DAY else pytest.mark.soak)
        for engine in (*FAST_ENGINES, "tiktoken")
        for workers in (1, 2, 3, 8)
    ],
)
def test_workers_engines_batches_and_shard_sizes(tmp_path: Path, workers: int, engine: str) -> None:
    """Any number of workers, either engine, three batch sizes, three shard sizes: the reference's stream."""
    documents = make_documents(600, seed=21)
    for number in range(3):
        write_parquet(tmp_path / f"{number}.parquet", documents[200 * number :][:200], 16)
    whole = reference.stream(documents)
    job = runs.job_of(tmp_path / "out", tmp_path)
    spec = runs.spec_of(job.source, engine)
    with LocalExecutor(spec, workers, 10**6, MemoryGuard(2**40)) as executor:
        for batch_bytes in (1024, 10_000, 10**8):
            source = _with_batches(job.source, batch_bytes)
            encoded = list(collecting.encode(executor, source.batches(runs.START)))
            blocks = list(stitch(encoded, partial(make_mender, GPT2), runs.START))
            for shard_tokens in SMALL_SHARD_SIZES:
                shards = [[]]
                packer = Packer(shard_tokens)
                for block in blocks:
                    for part in packer.pack(Section.of(block)):
                        shards[-1] += [np.asarray(block.tokens)[begin:end] for begin, end in part.ranges]
                        if part.fills_shard:
                            shards.append([])
                found = [np.concatenate(parts) for parts in shards if parts]
                cuts = range(shard_tokens, len(whole), shard_tokens)
                assert all(map(np.array_equal, found, np.split(whole, cuts)))
                assert len(found) == len(cuts) + 1


def _with_batches(source: Parts, batch_bytes: int) -> Parts:
    part = source.parts[0]
    return Parts((open_source(part.files, dataclasses.replace(part.settings, batch_bytes=batch_bytes)),))


@pytest.mark.full
def test_real_text(tmp_path: Path) -> None:
    """Fifty documents of each file of the corpus: three shard sizes, every file as numpy.save writes it; one of them by
    the real command, the others in this process."""
    files = corpus_files(tmp_path, documents=50)
    check_command(runs.run_command, files, tmp_path, SHARD_SIZES[:1])
    check_command(inline.run_command, files, tmp_path, SHARD_SIZES[1:])


@pytest.mark.soak
@pytest.mark.promise("workers, batches, engine and executor change no byte")
def test_the_whole_corpus(tmp_path: Path) -> None:
    """The same for all of it, in larger shards, by the real command."""
    check_command(runs.run_command, corpus_files(tmp_path), tmp_path, LARGE_SHARD_SIZES)


def check_command(run: Command, files: list[Path], scratch: Path, shard_sizes: list[int]) -> None:
    """The command makes of these files what the reference does, in shards of every one of the sizes."""
    whole = reference.stream([text for file in files for text in read_texts(file)])
    inputs = [word for file in files for word in ("--input", file)]
    for shard_tokens in shard_sizes:
        out = scratch / str(shard_tokens)
        done = run("build", *inputs, "--out", out, "--shard-tokens", str(shard_tokens))
        assert done.returncode == 0, done.stderr
        expected = reference.digests(reference.shard_files(whole, shard_tokens))
        assert reference.digests(runs.shards_in(out)) == expected
        manifest = json.loads((out / "manifest.json").read_text())
        assert {shard["name"]: shard["sha256"] for shard in manifest["shards"]} == expected
        assert manifest["complete"]


@pytest.mark.full(but=["parquet", "jsonl", "txt.gz", "csv.zstd", "stdin"])
@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize("form", [*FILES, *PACKED_FILES, *PIPES])
def test_the_same_documents_in_every_form(tmp_path: Path, form: str, soak: bool) -> None:
    """Parquet, JSON lines, text, CSV, compressed and through a pipe, with the real command (every day, for some of the
    files, in this process)."""
    documents = [text for text in make_documents(300, seed=22) if text and "<|endoftext|>" not in text]
    text = write_text(tmp_path / "plain", documents).read_bytes()
    lines = write_jsonl(tmp_path / "lines", documents).read_bytes()
    records = write_csv(tmp_path / "records", documents, "\t" if form == "tsv" else ",").read_bytes()
    path = tmp_path / f"input.{form}"
    arguments, stdin = ["--input", str(path)], None
    if form == "parquet":
        write_parquet(path, documents, 50)
    elif form.startswith("stdin"):
        arguments, stdin = ["--input", "-"], text
        if kind := form.partition(" ")[2]:
            arguments += ["--format", kind]
            stdin = lines if kind == "jsonl" else records
    else:
        data = {"jsonl": lines, "txt": text}.get(form.partition(".")[0], records)
        writers = {"gz": write_gzip, "zst": write_zstd, "zstd": write_zstd}
        writers.get(form.rsplit(".")[-1], Path.write_bytes)(path, data)
    out = tmp_path / "out"
    words = ["build", *arguments, "--out", out, "--shard-tokens", "9k", "--batch-bytes", "20k"]
    if soak or stdin is not None or form == "parquet":
        done = runs.run_command(*words, stdin=stdin)
    else:
        done = inline.run_command(*words)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == reference.shard_files(reference.stream(documents), 9000)


@pytest.mark.promise("workers, batches, engine and executor change no byte")
@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.none(), st.text(max_size=200)), max_size=30),
    st.integers(1, 12),
    st.integers(1, 300),
    st.sampled_from([1024, 5000]),
)
def test_any_documents(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str | None],
    rows: int,
    shard_tokens: int,
    batch_bytes: int,
) -> None:
    """Whatever hypothesis makes up."""
    folder = tmp_path_factory.mktemp("any")
    texts = [None if text is None else text.encode("utf-8", "replace").decode() for text in documents]
    path = write_parquet(folder / "a.parquet", texts, rows)
    runs.build_inline(folder / "out", path, shard_tokens=shard_tokens, batch_bytes=batch_bytes)
    expected = reference.stream([text for text in texts if text is not None])
    assert runs.shards_in(folder / "out") == reference.shard_files(expected, shard_tokens)


def test_documents_longer_than_three_shards_and_a_stream_that_ends_on_a_boundary(tmp_path: Path) -> None:
    """No shard is skipped, and no empty file is left."""
    documents = ["word " * 4000, "x", "的一是不了" * 3000]
    whole = reference.stream(documents)
    path = write_parquet(tmp_path / "a.parquet", documents)
    for divisor in (1, 2, 3, 7):
        if len(whole) % divisor == 0 or divisor == 7:
            shard_tokens = len(whole) // divisor
            out = tmp_path / f"out{divisor}"
            runs.build_inline(out, path, shard_tokens=shard_tokens)
            assert runs.shards_in(out) == reference.shard_files(whole, shard_tokens)
            assert (len(runs.shards_in(out)) == divisor) == (len(whole) % divisor == 0)


@pytest.mark.parametrize("limit", [1, 999, 1000, 1001, 2500, 10**9])
def test_max_tokens_ends_the_stream_exactly_there(tmp_path: Path, limit: int) -> None:
    """The shards are the reference's first tokens, and resuming a finished run does nothing."""
    documents = make_documents(60, seed=23)
    path = write_parquet(tmp_path / "a.parquet", documents)
    whole = reference.stream(documents)[:limit]
    for _ in range(2):
        manifest = runs.build_inline(tmp_path / "out", path, shard_tokens=1000, max_tokens=limit)
        assert runs.shards_in(tmp_path / "out") == reference.shard_files(whole, 1000)
        assert manifest.tokens == len(whole)


@pytest.mark.full
@pytest.mark.promise("workers, batches, engine and executor change no byte")
@pytest.mark.parametrize("shard_tokens", SMALL_SHARD_SIZES)
def test_a_build_with_processes_and_one_without_leave_the_same_folder(tmp_path: Path, shard_tokens: int) -> None:
    """The double used all over these tests stands for the real thing, in every byte and every cursor."""
    path = write_parquet(tmp_path / "a.parquet", make_documents(120, seed=24), 16)
    settings = {"shard_tokens": shard_tokens, "batch_bytes": 4096}
    inline = runs.build_inline(tmp_path / "inline", path, **settings)
    job = runs.job_of(tmp_path / "local", path, workers=2, **settings)
    local = build(job.config, screen=Screen(), command="").manifest
    assert runs.shards_in(tmp_path / "local") == runs.shards_in(tmp_path / "inline")
    assert local.shards == inline.shards


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """300 small files of three formats, some of them empty, and a larger one; and their documents."""
    folder = tmp_path_factory.mktemp("small")
    documents: list[str] = []
    found = make_documents(600, seed=61)
    texts = [text for text in found if text.strip() and text.isprintable() and "<|endof" not in text]
    for number in range(300):
        some = texts[number * 2 % 500 :][: number % 3]
        documents += some
        if number == 150:
            documents += ["word " * 2000]
            write_jsonl(folder / f"{number:03}.jsonl", [*some, documents[-1]])
        elif number < 200:
            write_jsonl(folder / f"{number:03}.jsonl", some)
        elif number < 250:
            write_csv(folder / f"{number:03}.csv", some)
        else:
            write_text(folder / f"{number:03}.txt", some)
    return folder, documents


@pytest.mark.full
@pytest.mark.parametrize("batch_bytes", [1024, 8000, 10**6])
def test_small_files_share_a_batch_and_a_resume_ends_with_the_same_cursors(
    tmp_path: Path, small_files: tuple[Path, list[str]], batch_bytes: int
) -> None:
    """However many are in one batch: the reference's bytes, and from every shard on the same manifest."""
    folder, documents = small_files
    out, settings = (tmp_path / "out", {"shard_tokens": 3000, "batch_bytes": batch_bytes, "separator": "<|endoftext|>"})
    source = runs.job_of(out, folder, **settings).source
    sizes = [batch.size_bytes for batch in source.batches(runs.START)]
    assert len(sizes) < 2 + 300 / 128 + 4 * sum(sizes) / batch_bytes
    manifest = runs.build_inline(out, folder, **settings)
    shards = reference.shard_files(reference.stream(documents), 3000)
    assert runs.shards_in(out) == shards
    for records in range(0, len(manifest.shards), 3):
        runs.forget_after(out, records)
        resumed = runs.build_inline(out, folder, **settings)
        assert runs.shards_in(out) == shards
        assert resumed.shards == manifest.shards
        assert resumed.totals == manifest.totals
    for records in reversed(range(0, len(manifest.shards), 3)):
        runs.forget_after(out, records)
        resumed = runs.build_inline(out, folder, **{**settings, "batch_bytes": 3000})
        assert runs.shards_in(out) == shards
        assert resumed.totals == manifest.totals
