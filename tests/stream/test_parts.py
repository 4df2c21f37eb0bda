"""Several parts of the input, a cursor for each: stitcher, packer, output, manifest, and every resume."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import ChangedError, DamageError
from fineweb_shards.events import Observer
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.output.manifest import FILE_NAME, load_manifest
from fineweb_shards.run.job import Job
from fineweb_shards.run.stream import QUARANTINE_NAME, report_problems
from fineweb_shards.stream.length_limits import LengthLimits, leave_out
from fineweb_shards.stream.packer import PackedTotals, Packer
from fineweb_shards.stream.section import NO_POSITIONS, Section
from fineweb_shards.stream.stitcher import add_cursors
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.retry import Disk
from fineweb_shards.tokenizers.encoder import make_mender
from fineweb_shards.types import Counts, Cursor, Cursors, EncodedBlock, Quarantined
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_files import EventLog
from tests.support import collecting, layout_reference, reference, runs
from tests.support.layout_reference import Wanted
from tests.support.stitching import stitch

EOT = reference.EOT
# Documents by their lengths, and in which part each of them is.
documents = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=25)


@given(documents, st.integers(1, 20), st.lists(st.integers(1, 9), min_size=1), st.integers(0, 6), st.booleans())
def test_parts_take_turns_at_any_document(
    lengths: list[tuple[int, int]], n: int, sizes: list[int], least: int, only_some: bool
) -> None:
    """The packed stream is that of a plain loop, wherever blocks end and whichever part comes next; and from every
    checkpoint, each part from its own cursor on, the rest and the counts are the same."""
    texts = [[number] * length for number, (_, length) in enumerate(lengths)]
    expected = [token for text in texts if len(text) >= least for token in (EOT, *text)]
    # Of each document: its part, and where in the part's tokens it begins.
    begins: list[tuple[int, int]] = []
    ends = [0, 0, 0]
    for (part, _), text in zip(lengths, texts, strict=True):
        begins.append((part, ends[part]))
        ends[part] += 1 + len(text)

    def blocks_from(starts: Cursors) -> Iterator[EncodedBlock]:
        """Each document in blocks of its own. A part can be read from the beginnings of documents on and, unless
        `only_some`, from cuts inside them."""
        cut = itertools.cycle(sizes)
        for (part, begin), text in zip(begins, texts, strict=True):
            tokens = np.array([EOT, *text], np.uint16)
            done = max(0, starts[part].position - begin)
            while done < len(tokens):
                end = min(len(tokens), done + next(cut))
                is_last = end == len(tokens)
                here = None if only_some and done else Cursor(0, begin + done, 0, done > 0)
                there = None if only_some and not is_last else Cursor(0, begin + end, 0, not is_last)
                piece = tokens[done:end]
                eots = np.flatnonzero(piece == EOT)
                counts = Counts(text_bytes=end - done)
                yield EncodedBlock(here, there, piece, eots, ends_mid_document=not is_last, counts=counts, part=part)
                done = end

    def pack_from(
        starts: Cursors, done: PackedTotals
    ) -> tuple[list[int], Counts, list[tuple[Cursors, PackedTotals, Counts]]]:
        packer = Packer(n, done=done, starts=starts)
        found: list[int] = []
        counts, checkpoints = Counts(), []
        kept = leave_out(blocks_from(starts), [LengthLimits(least)] * 3, starts, eot_first=True)
        for block in add_cursors(kept, starts):
            for one in packer.pack(Section.of(block)):
                for begin, end in one.ranges:
                    found += np.asarray(block.tokens)[begin:end].tolist()
                counts += one.counts
                if one.checkpoint:
                    eots = done.documents + found.count(EOT)
                    totals = PackedTotals(0, done.train_tokens + len(found), eots)
                    checkpoints.append((one.end, totals, counts))
        return found, counts, checkpoints

    starts = (Cursor(0, 0),) * 3
    found, counts, checkpoints = pack_from(starts, PackedTotals())
    assert found == expected
    assert len(checkpoints) == len(expected) // n
    for before, after in itertools.pairwise([starts, *(end for end, _, _ in checkpoints)]):
        for old, new in zip(before, after, strict=True):
            assert (old.position, old.skip_tokens) <= (new.position, new.skip_tokens), "a cursor goes back"
    for end, totals, counted in checkpoints:
        rest, later, _ = pack_from(end, totals)
        assert rest == expected[totals.train_tokens :]
        assert counted + later == counts


def make_texts(seed: int, count: int) -> list[str]:
    """Documents of words, some of them long enough to be cut."""
    generator = random.Random(seed)
    words = ["one", "zwei", "trois", "четыре", "five's", "6", "seven,", "acht\n"]
    return [" ".join(generator.choices(words, k=generator.choice([1, 5, 40, 900]))).strip() for _ in range(count)]


def job_of_parts(out: Path, *inputs: Path, **settings: Any) -> Job:
    """A job whose input has a part for each path."""
    return runs.job_of(out, parts=tuple({"input": (str(path),)} for path in inputs), **settings)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[str]]:
    """Two parts: two files of JSON lines and three of text, and their documents in order."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    texts: list[str] = []
    for number in range(2):
        some = make_texts(number, 12)
        lines = "".join(json.dumps({"text": text}) + "\n" for text in some)
        (folder / "a" / f"{number}.jsonl").write_text(lines)
        texts += some
    for number in range(3):
        some = [text.replace("\n", " ") for text in make_texts(10 + number, 9)]
        (folder / "b" / f"{number}.txt").write_text("\n\n".join(some))
        texts += some
    return [folder / "a", folder / "b"], texts


@pytest.mark.full(but=["build-nanogpt", "nanogpt"])
@pytest.mark.parametrize("wanted", [
    Wanted("build-nanogpt", 1500),
    Wanted("nanogpt", 1500, val_documents=20),
    Wanted("llm.c", 1500, val_documents=30),
], ids=lambda wanted: wanted.layout)  # fmt: skip
def test_two_parts_are_one_stream_and_resume_from_every_record(
    tmp_path: Path, inputs: tuple[list[Path], list[str]], wanted: Wanted
) -> None:
    """The bytes are those of both parts' documents, one after the other; and the same after a crash at any checkpoint,
    with other batches, before, in and after the first document of the second part."""
    paths, texts = inputs
    settings = wanted.settings()
    expected = layout_reference.files(texts, wanted)
    out = tmp_path / "out"
    manifest = runs.build_job(job_of_parts(out, *paths, batch_bytes=1024, **settings))
    assert runs.outputs_in(out) == expected
    assert manifest.documents == len(texts)
    assert [len(part.files) for part in manifest.parts] == [2, 3]
    ends = [record.end for record in manifest.shards]
    assert any(first != Cursor(0, 0) and second == Cursor(0, 0) for first, second in ends)
    assert any(first.file == 1 and not first.skip_tokens and second.skip_tokens for first, second in ends)
    for records in range(len(manifest.shards)):
        again = tmp_path / f"after-{records}"
        shutil.copytree(out, again)
        runs.forget_after(again, records)
        batch_bytes = (1024, 1500, 2**20)[records % 3]
        resumed = runs.build_job(job_of_parts(again, *paths, batch_bytes=batch_bytes, **settings))
        assert runs.outputs_in(again) == expected
        assert resumed.totals == manifest.totals
        shutil.rmtree(again)


def test_a_changed_part_is_refused_by_name(tmp_path: Path, inputs: tuple[list[Path], list[str]]) -> None:
    """Another number of parts, another file in one of them, another setting of one of them."""
    paths, _ = inputs
    parts = shutil.copytree(paths[0].parent, tmp_path / "in")
    begun = [parts / "a", parts / "b"]
    out = tmp_path / "out"
    runs.build_job(job_of_parts(out, *begun, shard_tokens=1500))
    runs.forget_after(out, 1)
    with pytest.raises(ChangedError, match="The input had 2 parts when this folder was begun and has 1 now"):
        runs.build_job(job_of_parts(out, begun[0], shard_tokens=1500))
    data = json.loads((out / FILE_NAME).read_text())
    data["parts"][1]["settings"]["separator"] = "line"
    runs.write_manifest(tmp_path / "out", data)
    with pytest.raises(ChangedError, match="--separator was line when this folder was begun and is auto now"):
        runs.build_job(job_of_parts(out, *begun, shard_tokens=1500))
    data["parts"][1]["settings"]["separator"] = "auto"
    runs.write_manifest(out, data)
    (parts / "b" / "1.txt").write_text("something else")
    with pytest.raises(ChangedError, match=r"1\.txt"):
        runs.build_job(job_of_parts(out, *begun, shard_tokens=1500))


@pytest.mark.parametrize(("edit", "words"), [
    (lambda data: data["shards"][0]["end"].pop(), "a record has 1 cursors for 2 parts"),
    (lambda data: data["shards"][1]["end"][0].update(position=0, skip_tokens=0), "a cursor goes back"),
    (lambda data: data["shards"][0]["end"][1].update(file=9), "a cursor is outside the input"),
    (lambda data: data.update(parts=[]), "it names no part of the input"),
    (lambda data: data["parts"][1]["files"][1].update(for_validation=True), "a file for validation"),
])  # fmt: skip
def test_a_manifest_whose_parts_do_not_fit_is_damaged(
    tmp_path: Path, inputs: tuple[list[Path], list[str]], edit: Any, words: str
) -> None:
    """Nothing is resumed from a place that may be another one."""
    out = tmp_path / "out"
    runs.build_job(job_of_parts(out, *inputs[0], shard_tokens=1500))
    data = json.loads((out / FILE_NAME).read_text())
    edit(data)
    runs.write_manifest(out, data)
    with pytest.raises(DamageError, match=words):
        load_manifest(out)


def test_a_quarantined_document_is_named_by_its_own_part(tmp_path: Path, inputs: tuple[list[Path], list[str]]) -> None:
    """Two parts have a file of the same number: the log and `quarantine.jsonl` name the right one."""
    job = job_of_parts(tmp_path / "out", *inputs[0])
    (job.folder / WORK_FOLDER).mkdir(parents=True)
    log = EventLog(job.folder)
    lost = [Quarantined(1, 0, 0, None, None, 5, "ab" * 32, "begin", "it ended", part=part) for part in (0, 1)]
    nothing = np.empty(0, np.uint16), NO_POSITIONS
    blocks = [EncodedBlock(None, None, *nothing, quarantined=(one,), part=one.part) for one in lost]
    disk = Disk(job.folder, 0, Observer())
    list(report_problems(blocks, job, [], disk, Progress(log)))
    work = job.folder / WORK_FOLDER
    lines = [json.loads(line) for line in (work / QUARANTINE_NAME).read_text().splitlines()]
    assert [(line["part"], line["file"]) for line in lines] == [(0, "1.jsonl"), (1, "1.txt")]
    told = (work / "log.txt").read_text()
    assert "quarantined: 1.jsonl: a document of 5 bytes" in told
    assert "quarantined: 1.txt: a document of 5 bytes" in told


@pytest.mark.full
def test_worker_processes_read_the_right_part(tmp_path: Path, inputs: tuple[list[Path], list[str]]) -> None:
    """Batches of both parts go to real workers, small files in one batch among them."""
    paths, texts = inputs
    for batch_bytes in (1024, 2**20):
        source = job_of_parts(tmp_path / "out", *paths, batch_bytes=batch_bytes).source
        with LocalExecutor(runs.spec_of(source), 2, 10**6, MemoryGuard(2**40)) as executor:
            encoded = list(collecting.encode(executor, source.batches(source.starts)))
        blocks = list(stitch(encoded, partial(make_mender, GPT2), source.starts))
        assert [token for block in blocks for token in np.asarray(block.tokens)] == (reference.stream(texts).tolist())
        assert {block.part for block in blocks} == {0, 1}
