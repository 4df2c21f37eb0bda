"""A mix with real workers: it never stalls, whatever its parts are, and has the bytes of the plain loop."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fineweb_shards.errors import BadFileError, InputError
from fineweb_shards.executors import messages, scheduled_executor
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.executors.schedule import Schedule
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.run.build import run
from fineweb_shards.run.job import open_manifest
from fineweb_shards.sources.source import Parts
from fineweb_shards.storage.hub import HubOnDiskPlace
from fineweb_shards.storage.place import BUCKET, HUB, HUB_ON_DISK, HubRef
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.types import Batch
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_files import EventLog
from tests.executors import hostile
from tests.support import layout_reference, mix_reference, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl, write_parquet, write_text
from tests.support.layout_reference import Wanted
from tests.support.promises import Tries

LONGEST_SECONDS = 120  # a build here takes a few
WANTED = Wanted("build-nanogpt", 20_000)
TEXTS = [text[:2000].strip() or "d" for text in make_documents(300, seed=5) if "<|endoftext|>" not in text]
TEXTS = [text.replace("\r", " ") for text in TEXTS]
LONG = " ".join(f"the {number}th word" for number in range(9000))  # longer than most windows here
# Texts of very different lengths: the shortest have a token, the longest more than all of another part together.
DOCUMENTS = (TEXTS[:60], [LONG, "a", LONG[:5000]], ["b", *TEXTS[60:90], LONG[:90_000], *["c"] * 300])


@contextlib.contextmanager
def no_longer(seconds: int = LONGEST_SECONDS) -> Iterator[None]:
    """Fails where it would hang."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs: after {seconds} s it is not finished")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def write_parts(folder: Path, weights: tuple[int, ...], **settings: Any) -> tuple[dict[str, Any], ...]:
    """A part for each list of documents: in parquet, and in text, of which long documents are cut."""
    paths = [folder / f"{number}.{kind}" for number, kind in enumerate(("parquet", "txt", "txt"))]
    write_parquet(paths[0], DOCUMENTS[0], 5)
    write_text(paths[1], DOCUMENTS[1])
    write_text(paths[2], DOCUMENTS[2])
    text = {"separator": "<|endoftext|>"}
    return tuple(
        {"input": (str(path),), "weight": weight, **(text if path.suffix == ".txt" else {}), **settings}
        for path, weight in zip(paths, weights, strict=True)
    )


def expected(weights: tuple[int, ...], until: str, least: int = 0, wanted: Wanted = WANTED) -> dict[str, bytes]:
    encoded = [[reference.encode(text) for text in documents] for documents in DOCUMENTS]
    kept = [[[reference.EOT, *one] for one in part if len(one) >= least] for part in encoded]
    mixed = [tokens[1:] for _, tokens in mix_reference.mix(kept, weights, until)]
    return layout_reference.files_of_tokens(mixed, wanted)


def build(
    out: Path,
    parts: tuple[dict[str, Any], ...],
    until: str | None,
    *,
    workers: int = 1,
    window: int = 6000,
    wanted: Wanted = WANTED,
    batch_bytes: int = 2048,
) -> Manifest:
    """A build with workers whose disk may be hostile; the parent is this process."""
    settings = {**wanted.settings(), "engine": "tiktoken", "batch_bytes": batch_bytes, "mix_until": until}
    job = runs.job_of(out, parts=parts, **settings)
    progress = Progress(EventLog(job.folder))
    spec = hostile.HostileSpec(job.source, "tiktoken", 0, job.output.shard_format, job.output.store, 0)
    guard = MemoryGuard(2**40)
    with (
        no_longer(),
        job.output.store.lock(progress),
        LocalExecutor(spec, workers, window, guard, observer=progress) as executor,
    ):
        manifest = run(job, open_manifest(job, same_source=False), executor, progress)
        while executor._schedule.in_flight_bytes:  # soon nobody holds tokens
            executor._give_out()
            executor._listen()
        return manifest


@pytest.fixture(autouse=True)
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test can plan faults of the workers."""
    folder = hostile.plan(tmp_path / "faults")
    monkeypatch.setenv(hostile.FAULTS, str(folder))
    return folder


@pytest.mark.promise("a mix is that of a plain loop")
@pytest.mark.parametrize("least", [0, 40])
@pytest.mark.parametrize("weights", [(1, 1000, 30), (1000, 1, 7)])
def test_one_worker_and_a_tiny_window_never_stall(
    tmp_path: Path, weights: tuple[int, ...], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that is longer than the window, another part that waits for its end, blocks that are held back until
    it is known how long their documents are. What is in flight stays bounded: at most a batch of each part is beyond
    the window."""
    parts, peaks, add = write_parts(tmp_path, weights, min_tokens=least), [0], Schedule.add

    def add_and_look(schedule: Schedule[Any], batch: Batch, lane: int) -> None:
        add(schedule, batch, lane)
        largest[lane] = max(largest.get(lane, 0), batch.size_bytes)
        peaks.append(schedule.in_flight_bytes)

    largest: dict[int, int] = {}  # batch of each part
    monkeypatch.setattr(Schedule, "add", add_and_look)
    build(tmp_path / "out", parts, "all-exhausted")
    assert runs.outputs_in(tmp_path / "out") == expected(weights, "all-exhausted", least)
    assert max(peaks) <= 6000 + sum(largest.values())


@pytest.mark.promise("a mix is that of a plain loop")
@pytest.mark.parametrize("limit", [1, 19_999, 20_000, 45_000])
def test_a_limit_of_tokens_is_reached(tmp_path: Path, limit: int) -> None:
    """Though there are many bytes under way, of a part that the mix does not need."""
    wanted = replace(WANTED, max_tokens=limit)
    build(tmp_path / "out", write_parts(tmp_path, (1, 1000, 30)), "all-exhausted", wanted=wanted, window=10**6)
    assert runs.outputs_in(tmp_path / "out") == expected((1, 1000, 30), "all-exhausted", wanted=wanted)


@pytest.mark.promise("a mix is that of a plain loop", "a worker's death with unwritten tokens costs only time")
def test_workers_that_are_killed_while_they_hold_a_part_of_a_block(tmp_path: Path, faults: Path, tries: Tries) -> None:
    """At any moment between encoding and the name of a file: the same bytes."""
    parts, until = write_parts(tmp_path, (3, 5, 1)), "first-exhausted"
    for attempt in tries(2, 40):
        chooser, out = random.Random(attempt), tmp_path / f"out {attempt}"
        for point in hostile.POINTS:
            (faults / f"passed {point}").unlink(missing_ok=True)
            (faults / f"{point}@{chooser.randrange(6 if point in ('seal', 'hashed', 'synced') else 40)}=kill").touch()
        build(out, parts, until, workers=1 + attempt % 3, window=chooser.choice([6000, 60_000]))
        assert runs.outputs_in(out) == expected((3, 5, 1), until)
        log = (out / ".fineweb-shards" / "log.txt").read_text()
        assert log.count("was killed by signal 9; replaced") > 1


def test_a_batch_that_would_wait_for_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group with more text than may be in flight, and with more tokens than its worker may hold: with its size,
    and the next step. Without a mix it is only written as it is encoded."""
    for module in (messages, scheduled_executor):
        monkeypatch.setattr(module, "MOST_HELD_BYTES", 60_000)
    path = write_parquet(tmp_path / "large.parquet", [LONG[:50_000]], 1)
    small = write_jsonl(tmp_path / "small.jsonl", ["b"] * 10)
    parts = tuple({"input": (str(one),), "weight": 1} for one in (small, path))
    with pytest.raises(InputError) as refused:
        build(tmp_path / "out", parts, "all-exhausted")
    assert refused.value.message == (
        f"{path}: row group 0 has 50.1 kB of text. In a mix it has to wait for the other parts, and the memory "
        "has room for 6.0 kB of text in flight."
    )
    assert refused.value.hint == "Give more memory with --max-memory. Rerun the same command to resume."
    build(tmp_path / "out", parts, "all-exhausted", window=60_000)
    plain = tuple({"input": part["input"]} for part in parts)
    build(tmp_path / "plain", plain, None)


@pytest.mark.parametrize(("place", "local"), [(HUB, "Use --download"), (BUCKET, "Copy it to this machine")])
def test_the_next_step_reads_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, local: str) -> None:
    """From the hub or a bucket a row group comes as a whole; from the disk, downloaded or not, it comes in slices."""
    monkeypatch.setattr(scheduled_executor, "MOST_HELD_BYTES", 60_000)
    path = write_parquet(tmp_path / "large.parquet", [LONG[1000 * i :][:1000] for i in range(60)], 60)
    job = runs.job_of(tmp_path / "out", path, batch_bytes=2048)
    (source,) = job.source.parts
    (file,) = source.files
    remote = replace(source, files=(replace(file, place=place),))
    spec = runs.spec_of(Parts((remote,)))
    executor = LocalExecutor(spec, 1, 6000, MemoryGuard(2**40))
    (batch, *_) = source.batches(job.source.starts[0])
    assert batch.rows is not None
    assert batch.size_bytes < 6000
    assert executor._refuse_large(batch) is None
    refused = executor._refuse_large(replace(batch, rows=None, size_bytes=50_000))
    assert refused is not None
    assert refused.hint.startswith(f"{local}: a local file is read in slices. Or give more memory")
    hub = HubRef("a/b", "", "", "0" * 40, str(tmp_path), keep_downloads=True)
    reader = ParquetFormat(source.settings, HubOnDiskPlace(hub))
    sliced = list(reader.batches(replace(file, place=HUB_ON_DISK), 0, False))
    assert len(sliced) > 10
    assert all(one.rows is not None and one.size_bytes < 6000 for one in sliced)


@pytest.mark.promise("a mix is that of a plain loop")
@pytest.mark.parametrize("damage", ["line", "file"])
def test_what_the_mix_does_not_need_may_be_damaged(tmp_path: Path, damage: str) -> None:
    """It is read ahead, while a long document of another part is encoded: the run ends with that part. Where the mix
    needs it, the run ends with its error, and all before it is recorded."""
    documents, long = [f"{number} " * 100 for number in range(8)], LONG * 5
    short, path = write_jsonl(tmp_path / "short.jsonl", ["a", long]), tmp_path / "damaged.jsonl"
    lines = write_jsonl(path, documents).read_bytes()
    if damage == "line":
        path.write_bytes(lines + b"{damaged\n" + 200 * write_jsonl(tmp_path / "more", ["more"]).read_bytes())
        inputs: tuple[str, ...] = (str(path),)
    else:
        other = tmp_path / "other.parquet"
        other.write_bytes(b"PAR1 and no more")
        inputs = (str(path), str(other))
    parts = ({"input": inputs, "weight": 1}, {"input": (str(short),), "weight": 5000})
    tokens = [[[reference.EOT, *reference.encode(text)] for text in part] for part in (documents, ["a", long])]
    mixed = [one[1:] for _, one in mix_reference.mix(tokens, (1, 5000), "first-exhausted")]
    build(tmp_path / "out", parts, "first-exhausted", workers=2, window=10**7)
    assert runs.outputs_in(tmp_path / "out") == layout_reference.files_of_tokens(mixed, WANTED)
    with pytest.raises(BadFileError, match="damaged.jsonl" if damage == "line" else "other.parquet"):
        build(tmp_path / "all", parts, "all-exhausted", workers=2, window=10**7)
    full = sum(len(one) for part in tokens for one in part) // 20_000
    assert len(runs.outputs_in(tmp_path / "all")) == full > 0
