"""Poison: the one document that ends workers is found, left out and counted; the run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import ChangedError, WorkerError
from fineweb_shards.executors import schedule, task
from fineweb_shards.executors.local import pool
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.executors.local.pool import WorkerProcess
from fineweb_shards.output.resume_rules import check_batch_bytes
from fineweb_shards.sources.source import Parts
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.tokenizers.encoder import make_mender
from fineweb_shards.types import EncodedBlock
from fineweb_shards.vocabulary import GPT2
from tests.executors import poison
from tests.support import collecting, reference, runs
from tests.support.documents import make_documents
from tests.support.doubles import Listener
from tests.support.inputs import write_jsonl, write_parquet, write_text
from tests.support.stitching import stitch

HEALTHY = [text for text in make_documents(60, seed=51) if text]
DRIVER = Path(__file__).parent / "poison_driver.py"
executors: list[LocalExecutor] = []  # all that were made


def with_poison(*poisons: str) -> list[str]:
    """Healthy documents, with each poison somewhere among them."""
    documents = list(HEALTHY)
    for number, text in enumerate(poisons):
        documents.insert(17 + 13 * number, text)
    return documents


def encode(source: Parts, workers: int = 2) -> tuple[list[EncodedBlock], Listener]:
    spec = poison.poisoned(runs.spec_of(source))
    listener = Listener()
    with LocalExecutor(spec, workers, 10**6, MemoryGuard(2**40), observer=listener) as executor:
        executors.append(executor)
        return list(collecting.encode(executor, source.batches(runs.START))), listener


def hunt(folder: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> Path:
    """So many workers will be killed over poison.KILLED; returns the folder that counts those to come."""
    left = folder / "kills left"
    left.mkdir()
    for number in range(kills):
        (left / str(number)).touch()
    monkeypatch.setenv(poison.KILLS_LEFT, str(left))
    return left


def stream_of(blocks: list[EncodedBlock]) -> list[int]:
    return np.concatenate([block.tokens for block in stitch(blocks, partial(make_mender, GPT2), runs.START)]).tolist()  # type: ignore[no-any-return]


@pytest.mark.full
@pytest.mark.promise("poison is isolated, quarantined and counted")
@pytest.mark.parametrize("text", [poison.DEADLY, poison.OUT_OF_MEMORY, poison.RAISING])
def test_poison_is_narrowed_down_to_its_document(tmp_path: Path, text: str) -> None:
    """Whatever it does to its worker: only it is missing, it is named by its row, and counted."""
    documents = with_poison(text)
    path = write_parquet(tmp_path / "a.parquet", documents, 10)
    blocks, _ = encode(runs.job_of(tmp_path / "out", path, batch_bytes=5000).source)
    assert stream_of(blocks) == reference.stream([d for d in documents if d != text]).tolist()
    (lost,) = [document for block in blocks for document in block.quarantined]
    assert lost.row == documents.index(text)
    assert lost.begins == text
    assert sum(block.counts.quarantined_documents for block in blocks) == 1
    assert lost.cause


@pytest.mark.full
@pytest.mark.promise("a tokenizer's exception loses no document")
@pytest.mark.parametrize("text", [poison.DEADLY_FOR_FIRST, poison.RAISING_FIRST])
def test_what_one_engine_cannot_do_the_other_does(tmp_path: Path, text: str) -> None:
    """A document that ends, or makes raise, only one of the engines is not lost."""
    documents = with_poison(text)
    path = write_parquet(tmp_path / "a.parquet", documents, 10)
    blocks, _ = encode(runs.job_of(tmp_path / "out", path, batch_bytes=5000).source)
    assert stream_of(blocks) == reference.stream(documents).tolist()
    assert not any(block.quarantined for block in blocks)


@pytest.mark.full
def test_a_build_of_nothing_but_poison_says_what_happened(tmp_path: Path) -> None:
    """Not that there was nothing to do; a second start says the same."""
    path = write_jsonl(tmp_path / "a.jsonl", [poison.RAISING])
    words = ["build", "--input", path, "--out", tmp_path / "out", "--workers", "1", "--shard-tokens", "100M"]
    for _ in range(2):
        done = subprocess.run([sys.executable, DRIVER, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 11, done.stderr
        assert "The input has no other documents, so no shards were made." in done.stdout
        assert "The input has no documents" not in done.stdout
        assert done.stdout.splitlines()[0] == "No shards were made."


@pytest.mark.full
@pytest.mark.promise("a worker's death never hangs the run", "poison is isolated, quarantined and counted")
def test_kills_from_outside_never_cost_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool) -> None:
    """However often they come over the same document: in the end it is there."""
    if not soak:
        monkeypatch.setattr(task, "MAXIMUM_DEATHS", 1)
    kills = 2 * task.MAXIMUM_DEATHS + 1  # more than would be enough to leave it out
    hunt(tmp_path, monkeypatch, kills)
    documents = with_poison(poison.KILLED, poison.DEADLY)
    path = write_parquet(tmp_path / "a.parquet", documents, 10)
    blocks, listener = encode(runs.job_of(tmp_path / "out", path, batch_bytes=5000).source, workers=1)
    assert stream_of(blocks) == reference.stream([d for d in documents if d != poison.DEADLY]).tolist()
    assert [lost.begins for block in blocks for lost in block.quarantined] == [poison.DEADLY]
    assert sum("killed by signal 9" in text for text in listener.texts("worker")) == kills


@pytest.mark.full
def test_endless_kills_from_outside_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says who was hit and what to do, and no document is lost: the same command goes on."""
    hunt(tmp_path, monkeypatch, 100)
    monkeypatch.setattr(task, "MAXIMUM_KILLS", 3)
    path = write_parquet(tmp_path / "a.parquet", with_poison(poison.KILLED), 10)
    with pytest.raises(WorkerError, match=r"3 workers were killed from outside .* in row 17; the last one"):
        encode(runs.job_of(tmp_path / "out", path, batch_bytes=5000).source, workers=1)


@pytest.mark.full
@pytest.mark.promise("poison is isolated, quarantined and counted")
@pytest.mark.parametrize("kills", [5, 100])
def test_the_kernels_kills_for_want_of_memory_count_only_alone(
    tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs may have filled the memory: only what ends a worker with nobody else at work is lost."""
    left = hunt(tmp_path, monkeypatch, kills)
    monkeypatch.setattr(pool, "oom_kills", lambda: -len(list(left.iterdir())))  # grows with every kill
    alone = []
    start = WorkerProcess.note_order

    def note(worker: WorkerProcess) -> None:
        alone.append(executors[-1]._schedule.tries_alone and executors[-1].workers == 1)
        start(worker)

    monkeypatch.setattr(WorkerProcess, "note_order", note)
    documents = with_poison(poison.KILLED)
    path = write_parquet(tmp_path / "a.parquet", documents, 10)
    blocks, listener = encode(runs.job_of(tmp_path / "out", path, batch_bytes=5000).source)
    assert alone[:2] == [False, True]
    assert any("killed by the kernel, which was out of memory" in text for text in listener.texts("worker"))
    if kills < 6:
        assert stream_of(blocks) == reference.stream(documents).tolist()
        return
    (lost,) = [document for block in blocks for document in block.quarantined]
    assert (lost.begins, len(list(left.iterdir()))) == (poison.KILLED, kills - 6)
    assert stream_of(blocks) == reference.stream([d for d in documents if d != poison.KILLED]).tolist()


@pytest.mark.full
@pytest.mark.promise("poison is isolated, quarantined and counted")
def test_several_poisons_and_copies_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool) -> None:
    """Each is found; a copy shares its fate; everything between them is there."""
    if not soak:
        monkeypatch.setattr(task, "MAXIMUM_DEATHS", 1)
    documents = with_poison(poison.DEADLY, poison.DEADLY_FOR_FIRST, poison.RAISING, poison.DEADLY)
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    blocks, listener = encode(runs.job_of(tmp_path / "out", path, batch_bytes=5000).source)
    healthy = [d for d in documents if d not in (poison.DEADLY, poison.RAISING)]
    assert stream_of(blocks) == reference.stream(healthy).tolist()
    assert sum(block.counts.quarantined_documents for block in blocks) == 3
    assert len(listener.texts("worker")) >= task.MAXIMUM_DEATHS + 2


@pytest.mark.full
@pytest.mark.promise("poison is isolated, quarantined and counted")
@pytest.mark.parametrize("filler", ["Plain words and more of them. " * 10_000, "没有空格的文字" * 15_000])
def test_a_poisoned_piece_of_a_long_document(tmp_path: Path, filler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the piece is missing: the document keeps its one EOT, and those around it are whole."""
    monkeypatch.setattr(task, "MAXIMUM_DEATHS", 1)
    long = filler + poison.DEADLY + filler
    path = write_text(tmp_path / "a.txt", ["Before.", long, "After."])
    blocks, _ = encode(runs.job_of(tmp_path / "out", path, batch_bytes=65536).source, workers=1)
    (lost,) = [document for block in blocks for document in block.quarantined]
    assert lost.piece_of_bytes == 65536
    _, before, rest, after = runs.decode(stream_of(blocks)).split("<|endoftext|>")
    assert (before, after) == ("Before.", "After.")
    assert poison.DEADLY not in rest
    assert len(rest.encode()) == len(long.encode()) - lost.text_bytes
    with pytest.raises(ChangedError, match="batch-bytes"):
        check_batch_bytes([lost], 8192)


@pytest.mark.full
def test_too_many_deaths_are_not_the_documents_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which everything dies must not end in an empty result that says it is complete."""
    monkeypatch.setattr(schedule, "MAXIMUM_QUARANTINED", 2)
    monkeypatch.setattr(task, "MAXIMUM_DEATHS", 1)
    path = write_jsonl(tmp_path / "a.jsonl", [f"{i} {poison.DEADLY}" for i in range(4)])
    with pytest.raises(WorkerError, match="More than 2 documents"):
        encode(runs.job_of(tmp_path / "out", path).source, workers=1)


@pytest.mark.promise("poison is isolated, quarantined and counted")
def test_a_build_with_poison_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    """The file names file, row, id and cause; a resume, and a second start, come to the same end."""
    documents = with_poison(poison.DEADLY)
    path = write_parquet(tmp_path / "a.parquet", documents, 10)
    out = tmp_path / "out"

    def drive() -> subprocess.CompletedProcess[str]:
        words = ["build", "--input", path, "--out", out, "--shard-tokens", "4000", "--batch-bytes", "5000"]
        return subprocess.run(
            [sys.executable, DRIVER, *map(str, words), "--workers", "1"], capture_output=True, text=True, check=False
        )

    expected = reference.shard_files(reference.stream(HEALTHY), 4000)
    for _ in range(2):
        done = drive()
        assert done.returncode == 11, done.stderr
        assert "1 document could not be encoded" in done.stderr
        assert runs.shards_in(out) == expected
    (line,) = (out / ".fineweb-shards" / "quarantine.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["file"], record["row"], record["id"]) == ("a.parquet", 17, None)
    assert "killed by signal 11" in record["cause"]
    log = (out / ".fineweb-shards" / "log.txt").read_text()
    assert "quarantined: a.parquet: a document of 24 bytes at row 17" in log
    for name in sorted(expected)[1:]:  # the shards after the first again, from the manifest's cursor
        (out / name).unlink()
    # With the real engine the document is harmless, but the shards that are kept were cut without it.
    words = ["build", "--input", path, "--out", out, "--shard-tokens", "4000", "--workers", "1"]
    again = runs.run_command(*words)
    assert again.returncode == 11, again.stderr
    assert runs.shards_in(out) == expected


@pytest.mark.full
def test_poison_among_small_files_is_found_in_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are read together are tried one by one; what is quarantined is named by its file, and what an engine
    only raises on costs no worker."""
    monkeypatch.setattr(task, "MAXIMUM_DEATHS", 1)
    documents = with_poison(poison.DEADLY, poison.RAISING)
    for number, text in enumerate(documents):
        write_jsonl(tmp_path / f"{number:02}.jsonl", [text])
    source = runs.job_of(tmp_path / "out", tmp_path).source
    assert [len(batch.members) for batch in source.batches(runs.START)] == [len(documents)]
    blocks, _ = encode(source, workers=1)
    poisons = (poison.DEADLY, poison.RAISING)
    assert stream_of(blocks) == reference.stream([d for d in documents if d not in poisons]).tolist()
    lost = [(one.file, one.position, one.document) for block in blocks for one in block.quarantined]
    assert lost == [(documents.index(text), 0, 0) for text in poisons]
