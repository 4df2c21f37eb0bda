"""The two passes of a shuffle are shown as one job, and which one is at work is told everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.output.manifest import Manifest, load_manifest
from fineweb_shards.run.config import Config
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.types import Counts, Cursor, ShardRecord
from fineweb_shards.watching import monitor as monitor_module
from fineweb_shards.watching import screen
from fineweb_shards.watching.monitor import Monitor
from fineweb_shards.watching.progress import Progress, Total
from fineweb_shards.watching.run_files import SECOND_PASS_COST, EventLog, Snapshot, State, load_history
from tests.support import inline, reference, runs, shuffle_steps
from tests.support.documents import make_documents
from tests.support.doubles import InlineExecutor
from tests.support.example_run import SNAPSHOT
from tests.support.inputs import write_jsonl
from tests.support.shuffle_steps import interrupted_in

DOCUMENTS = [text for text in make_documents(120, seed=91) if text]
TOKENS = len(reference.stream(DOCUMENTS))
FIRST = replace(SNAPSHOT, pass_number=1, tokens=5_000_000)
SECOND = replace(SNAPSHOT, pass_number=2, tokens=5_000_000, other_pass_tokens=10_000_000, expected_exact=True)
WHOLE = 1 + SECOND_PASS_COST


def shuffled(piled: int = 0, shards: int = 0, *, ended: bool = False) -> Manifest:
    """A manifest with so many tokens in piles and in shards."""
    state = PileState(1, (Cursor(0, 7),), (0, piled), documents=3, ended=ended)
    record = ShardRecord("a.npy", "train", 0, shards, 1, 2 * shards, "ab" * 32, (Cursor(1, 5),), Counts())
    settings = {**Config().fingerprint(), "shuffle": 7}
    return runs.manifest_of(settings, [], piles=state, shards=(record,) if shards else ())


def test_the_share_is_of_both_passes() -> None:
    """Tokens of the second pass weigh less; what is there of the other pass counts; it never exceeds 1."""
    assert SNAPSHOT.share == pytest.approx(0.371)
    assert FIRST.share == pytest.approx(0.5 / WHOLE)
    assert replace(FIRST, tokens=10_000_000).share == pytest.approx(1 / WHOLE)
    assert replace(SECOND, tokens=0).share == pytest.approx(1 / WHOLE)
    assert SECOND.share == pytest.approx((1 + 0.5 * SECOND_PASS_COST) / WHOLE)
    assert replace(SECOND, tokens=10_000_000).share == 1
    assert replace(FIRST, other_pass_tokens=10_000_000, tokens=10_000_000).share == 1  # the piles were made again
    assert replace(FIRST, expected_tokens=None).share is None


@pytest.mark.parametrize(("manifest", "number", "tokens", "other"), [
    (shuffled(), 1, 0, 0), (shuffled(60), 1, 60, 0), (shuffled(60, 20), 1, 60, 20),
    (shuffled(100, ended=True), 2, 0, 100), (shuffled(100, 30, ended=True), 2, 30, 100),
])  # fmt: skip
def test_a_resume_begins_with_what_the_manifest_has(manifest: Manifest, number: int, tokens: int, other: int) -> None:
    """In the first pass the tokens in piles, in the second one those in shards; both count for the job."""
    progress = Progress(EventLog(Path("unused")), begun=manifest)
    progress.expect(Total(90), lambda places: 0.9)  # of the input; the second pass knows better
    assert (progress.pass_number, progress.tokens, progress.other_pass_tokens) == (number, tokens, other)
    assert (progress.resumed_tokens, progress.begun) == (tokens, False)
    assert progress.expected_left() == (90 if number == 1 else 100) - tokens
    progress.advance(5, 0, (Cursor(0, 9),))
    assert progress.begun
    left = progress.expected_left()
    assert left is not None
    second = left + progress.tokens - other if number == 1 else 0
    for speed, cost in ((10**6, 15e-9), (10**8, SECOND_PASS_COST / 10**8)):
        assert progress.seconds_left(left + progress.tokens, speed) == pytest.approx(left / speed + second * cost)
    assert progress.shard_tokens == (5 if number == 2 else 0)


@pytest.fixture
def small_steps() -> Iterator[None]:
    with shuffle_steps.small_steps():
        yield


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
    """Every snapshot that the monitor could take of a run, one after each change; its threads take none."""
    monkeypatch.setattr(monitor_module, "LOOK_EVERY_SECONDS", 3600.0)
    taken: list[Snapshot] = []
    monitors: list[Monitor] = []
    enter, advance = Monitor.__enter__, Progress.advance

    def note_monitor(self: Monitor) -> Monitor:
        monitors[:] = [self]
        return enter(self)

    def look(self: Progress, *arguments: Any) -> None:
        advance(self, *arguments)
        monitors[0]._update()
        taken.append(monitors[0]._take_snapshot(*monitors[0]._state()))

    monkeypatch.setattr(Monitor, "__enter__", note_monitor)
    monkeypatch.setattr(Progress, "advance", look)
    return taken


def build(out: Path, source: Path) -> Any:
    words = ("--shard-tokens", 2000, "--batch-bytes", 4096, "--workers", 1)
    return inline.run_command("build", "--input", source, "--out", out, "--shuffle", 7, *words)


def is_in_order(values: Iterable[float | None]) -> bool:
    found = [value or 0 for value in values]
    return len(found) > 5 and found == sorted(found)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("stop", [None, 1, 2])
def test_a_build_is_one_job(tmp_path: Path, seen: list[Snapshot], stop: int | None) -> None:
    """Share and tokens in the history never become less in a run, not at the second pass either; a run that resumes in
    either pass begins where the records end, and what it made is counted."""
    source, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    if stop is not None:
        with interrupted_in(stop):
            assert build(out, source).returncode == 130
    begun = load_manifest(out)
    seen.clear()
    done = build(out, source)
    assert done.returncode == 0, done.stderr
    ends = [one.share for one in seen if one.pass_number == 1][-1:]  # before that an estimate moves it
    assert is_in_order([*ends, *(one.share for one in seen if one.pass_number == 2)])
    assert ends in ([], [pytest.approx(1 / WHOLE)])
    assert is_in_order(one.processed_tokens for one in seen)
    assert [*dict.fromkeys(one.pass_number for one in seen)] == ([2] if stop == 2 else [1, 2])
    first, last = seen[0], seen[-1]
    before = begun.tokens + begun.piled_tokens if begun else 0
    assert first.resumed_tokens + first.other_pass_tokens == before
    assert (before > 0) == (stop is not None)
    assert last.processed_tokens == 2 * TOKENS
    assert last.share == 1
    run = load_history(out).runs[-1]
    assert (run.first_tokens, run.last_tokens) == (before, 2 * TOKENS)
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("Done")]
    assert (" tokens/s" in told) == (stop is None)  # of a part of the work it would be no speed
    resumed = {None: "", 1: "resuming   in the first pass, after ", 2: "resuming   in the second pass, after "}
    assert resumed[stop] in done.stderr
    assert ("resuming" in done.stderr) == (stop is not None)


@pytest.mark.usefixtures("small_steps")
def test_piles_that_are_made_again_are_work(tmp_path: Path, seen: list[Snapshot]) -> None:
    """The run begins with the shards alone; what is shown never becomes less, and ends where both passes end."""
    source, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    with interrupted_in(2):
        assert build(out, source).returncode == 130
    begun = load_manifest(out)
    assert begun is not None
    [*_, last_pile, _] = sorted((out / WORK_FOLDER / "piles").iterdir())
    last_pile.unlink()
    seen.clear()
    done = build(out, source)
    assert f"resuming   in the first pass, after 0 tokens; {begun.shard_count} shard" in done.stderr
    assert (seen[0].pass_number, seen[0].resumed_tokens, seen[0].other_pass_tokens) == (1, 0, begun.tokens)
    assert is_in_order([one.processed_tokens for one in seen])
    assert (seen[-1].share, seen[-1].processed_tokens) == (1, 2 * TOKENS)
    run = load_history(out).runs[-1]
    assert (run.first_tokens, run.last_tokens) == (begun.tokens, 2 * TOKENS)


@pytest.mark.usefixtures("small_steps", "seen")
def test_a_dead_run_says_in_which_pass_it_was(tmp_path: Path) -> None:
    """Without a shard, too: to people and to programs; a finished one says by which seed."""
    source, out = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS), tmp_path / "out"
    with interrupted_in(1):
        assert build(out, source).returncode == 130
    manifest = load_manifest(out)
    assert manifest is not None
    text = inline.run_command("status", out).stdout
    assert f"by seed 7; pass 1 of 2: piles; {manifest.piled_tokens:,} tokens are in 3 piles" in text
    values = json.loads(inline.run_command("status", out, "--json").stdout)
    assert values["shuffle"] == {"seed": 7, "pass_number": 1, "piles": 3, "piled_tokens": manifest.piled_tokens}
    assert (values["shards"], values["heartbeat"]["snapshot"]["pass_number"]) == (0, 1)
    done = build(out, source)
    assert "shuffle    by seed 7" in done.stdout
    assert "by seed 7, in two passes, through 3 piles" in inline.run_command("status", out).stdout


@pytest.mark.usefixtures("small_steps", "seen")
def test_the_log_has_each_pass(tmp_path: Path) -> None:
    """When it begins, and what it has made when it ends; the screen says when the second one begins."""
    out = tmp_path / "out"
    done = build(out, write_jsonl(tmp_path / "a.jsonl", DOCUMENTS))
    log = (out / WORK_FOLDER / "log.txt").read_text()
    told = [line.partition("  pass ")[2].strip() for line in log.splitlines() if "  pass " in line]
    assert [line.partition(" took ")[0] for line in told] == [
        "pass 1 of 2: piles; 3 piles", "pass 1 of 2", "pass 2 of 2: shards; 3 piles", "pass 2 of 2",
    ]  # fmt: skip
    count = f"{TOKENS:,} tokens, {len(DOCUMENTS):,} documents"
    assert told[1].endswith(f": {count} in 3 piles")
    manifest = load_manifest(out)
    assert manifest is not None
    assert told[3].endswith(f": {count} from 3 piles in {manifest.shard_count} shards")
    assert told[1] in done.stderr
    assert "pass 2 of 2 took" not in done.stderr


def test_memory_is_that_of_both_executors(tmp_path: Path) -> None:
    """The peak is the highest of the two, and the speed only that of the one at work."""
    job = runs.job_of(tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", DOCUMENTS))

    class Using(InlineExecutor):
        peak_bytes = 900  # type: ignore[assignment]

    class UsingLess(InlineExecutor):
        peak_bytes = 500  # type: ignore[assignment]

    progress = Progress(EventLog(tmp_path))
    watching = Monitor(job.output, progress, Using(job.source, runs.encoder()), None, print, lambda run: [])  # type: ignore[arg-type]
    for moment in range(3):
        watching._speed.add(moment, 100 * moment, working=True)
    assert watching._take_snapshot(State.ENCODING, "").tokens_per_second == 100
    watching.replace_executor(UsingLess(job.source, runs.encoder()), is_remote=False)
    snapshot = watching._take_snapshot(State.ENCODING, "")
    assert (snapshot.peak_memory_bytes, snapshot.tokens_per_second) == (900, None)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_screen_names_the_pass(columns: int) -> None:
    """The first bar is of both passes; the second one of the piles, or of a shard; no line is too wide."""
    for snapshot, share, name in ((FIRST, 37, "piles      50%"), (SECOND, 87, "shard 3    71%")):
        lines = screen.make_frame(snapshot, columns, 24)
        assert max(map(len, lines)) <= columns
        assert lines[0].startswith(f"total      {share}%")
        assert lines[1].startswith(name)
        assert columns == 40 or snapshot.pass_name in lines[1]  # a text that is too long is cut
        assert f"{share}." in screen.describe(snapshot)
        assert snapshot.pass_name in screen.describe(snapshot)
    assert "encoding" not in "".join(screen.make_frame(SECOND, columns, 24))
    fetching = replace(FIRST, state=State.FETCHING, fetched_bytes_per_second=46.2e6)
    assert "fetching 46.2 MB/s, pass 1 of 2: piles" in screen.make_frame(fetching, 120, 24)[1]
