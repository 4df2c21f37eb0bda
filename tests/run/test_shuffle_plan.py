"""`plan` of a shuffle: what both passes take of disks and of time, and in which of them a build would resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.commands.build import plan_lines, plan_values, verdict_on
from fineweb_shards.errors import DiskFullError
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.run import resources, shuffle
from fineweb_shards.run.estimate import Extent
from fineweb_shards.run.plan import Plan, make_plan
from fineweb_shards.run.resources import DiskNeed, Rest, check_needs, find_needs
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.system.machine import disk_of
from fineweb_shards.types import Cursor
from fineweb_shards.watching.run_files import second_pass_seconds
from fineweb_shards.writing.placement import shards_at_once
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl, write_parquet
from tests.support.shuffle_steps import interrupted_in, small_steps

DOCUMENTS = [text for text in make_documents(200, seed=93) if text]
TOKENS = len(reference.stream(DOCUMENTS))
REST = Rest(tokens=10_000_000, documents=20_000, done_tokens=0, workers=2)
NEW = PileState.beginning(10, (Cursor(0, 0),))
HALF = replace(NEW, tokens=(0, *[500_000] * 10), list_bytes=100_000)
ENDED = replace(NEW, tokens=(0, *[1_000_000] * 10), list_bytes=320_000, ended=True)
VAL = replace(ENDED, tokens=(3_000_000, *[700_000] * 10))
UNDER_WAY = shards_at_once(2) * 200_000 + 2_000_000  # shards that are not recorded, and a pile


@pytest.fixture
def spec(tmp_path: Path) -> OutputSpec:
    source = write_jsonl(tmp_path / "a.jsonl", ["one"])
    return runs.job_of(tmp_path / "out", source, shard_tokens=100_000).output


@pytest.fixture
def two_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in a folder `scratch` is on a disk of its own, with a kilobyte free."""

    def is_scratch(folder: Path) -> bool:
        return "scratch" in folder.parts

    monkeypatch.setattr(resources, "disk_of", is_scratch)
    monkeypatch.setattr(resources, "free_disk_bytes", lambda folder: 1000 if is_scratch(folder) else 10**12)


def sizes(needs: list[DiskNeed]) -> list[tuple[int, int]]:
    return [(need.size_bytes, need.pile_bytes) for need in needs]


@pytest.mark.parametrize(("rest", "needed", "piles"), [
    (REST, 20_000_000, 0),
    (replace(REST, piles=NEW), 20_320_000 + UNDER_WAY, 20_320_000),
    (replace(REST, piles=HALF), 10_220_000 + UNDER_WAY, 10_220_000),
    (replace(REST, piles=ENDED), UNDER_WAY, 0),
    (replace(REST, piles=ENDED, done_tokens=9_900_000), 200_000, 0),
    # The pile of files for validation is the largest, until it is done.
    (replace(REST, piles=NEW, val_tokens=3_000_000), 20_320_000 + UNDER_WAY + 4_000_000, 20_320_000),
    (replace(REST, piles=VAL), UNDER_WAY + 4_000_000, 0),
    (replace(REST, piles=VAL, done_tokens=4_000_000), UNDER_WAY, 0),
    # The piles were lost, and are made again beside finished shards.
    (replace(REST, piles=NEW, done_tokens=9_900_000), 20_320_000 + 200_000, 20_320_000),
], ids=["plain", "new", "first pass", "second pass", "last shard", "val", "pile", "train", "again"])  # fmt: skip
def test_a_disk_holds_the_result_once_and_what_is_under_way(
    spec: OutputSpec, rest: Rest, needed: int, piles: int
) -> None:
    """Not twice, and of a resume only what is not there yet."""
    assert sizes(find_needs(spec, spec.folder / "piles", rest)) == [(needed, piles)]


@pytest.mark.usefixtures("two_disks")
def test_piles_on_another_disk_are_looked_at_by_themselves(spec: OutputSpec, tmp_path: Path) -> None:
    """Each disk has its own message, which names the folder and what to change."""
    needs = find_needs(spec, tmp_path / "scratch", replace(REST, piles=HALF))
    assert sizes(needs) == [(20_000_000, 0), (10_220_000, 10_220_000)]
    with pytest.raises(DiskFullError) as caught:
        check_needs(needs, spec, exact=True)
    assert caught.value.message.startswith(f"{tmp_path / 'scratch'}: the piles of the shuffle need 10.2 MB, 1.0 kB are")
    assert "choose another --scratch, or end" in str(caught.value.hint)
    check_needs(find_needs(spec, tmp_path / "scratch", replace(REST, piles=ENDED)), spec, exact=True)
    full = [replace(needs[0], free_bytes=5), needs[1]]
    with pytest.raises(DiskFullError, match="out: the shards need 20"):
        check_needs(full, spec, exact=True)


def test_what_a_first_pass_has_left_is_free_for_the_next(spec: OutputSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that `plan` says what a build will find that removes it; what is continued stays."""
    monkeypatch.setattr(resources, "free_disk_bytes", lambda folder: 1000)
    (spec.folder / "piles").mkdir(parents=True)
    (spec.folder / "piles" / "0001").write_bytes(bytes(500))
    for state, free in ((NEW, 1500), (HALF, 1000), (ENDED, 1000)):
        (need,) = find_needs(spec, spec.folder / "piles", replace(REST, piles=state))
        assert need.free_bytes == free


def test_disks_are_told_apart(tmp_path: Path) -> None:
    """Also where a folder will only be."""
    assert disk_of(tmp_path) == disk_of(tmp_path / "a" / "b")
    assert disk_of(tmp_path) != disk_of(Path("/proc"))


def plan_of(tmp_path: Path, **settings: Any) -> Plan:
    settings = {"shuffle": 7, "shard_tokens": 2000, **settings}
    return make_plan(runs.job_of(tmp_path / "out", tmp_path / "a.parquet", **settings), trial_seconds=0.01)


def row(plan: Plan, name: str) -> str:
    (line,) = [line for line in plan_lines(plan) if line.startswith(f"{name} ")]
    return line[11:]


def test_the_plan_says_what_a_shuffle_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which seed, in how many piles and passes; of what; how long both take; that validation is a sample."""
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 5)
    write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    plan = plan_of(tmp_path)
    assert row(plan, "shuffle") == "all documents, by seed 7, in two passes: into 5 piles, then into shards"
    assert row(plan, "validation") == "the first 2,000 tokens: a random sample"
    assert " for both passes (" in row(plan, "time")
    assert plan.extent.tokens is not None
    assert plan.tokens_per_second is not None
    seconds = plan.extent.tokens / plan.tokens_per_second
    seconds += second_pass_seconds(plan.extent.tokens, plan.tokens_per_second)
    assert plan_values(plan)["seconds"] == plan.seconds == pytest.approx(seconds)
    assert "kB of it for the piles of the shuffle, " in row(plan, "disk")
    limited = plan_of(tmp_path, max_tokens=5000)
    assert row(limited, "shuffle").startswith("the beginning of the stream, up to --max-tokens, by seed 7, ")
    assert row(plan_of(tmp_path, val_ratio=0.5), "validation") == "0.5 of the documents (seed 0)"
    plain = plan_of(tmp_path, shuffle=None)
    assert "shuffle" not in "".join(plan_lines(plain))
    assert plain.seconds == pytest.approx(plain.extent.tokens / (plain.tokens_per_second or 1), rel=0.01)


def test_a_plan_counts_the_pile_of_files_for_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there until its shards are: here it has half of all tokens."""
    monkeypatch.setattr(shuffle, "choose_count", lambda *_: 20)
    for name in "ab":
        write_parquet(tmp_path / f"{name}.parquet", DOCUMENTS)
    whole = plan_of(tmp_path, shard_tokens=200, val_input=(str(tmp_path / "b.parquet"),))
    (need,) = whole.disk_needs
    (plain,) = replace(whole, part_extents=(Extent(0, 0, exact=True),)).disk_needs
    assert need.size_bytes - plain.size_bytes > TOKENS


@pytest.mark.usefixtures("two_disks")
def test_the_plan_has_a_row_for_each_disk(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    plan = plan_of(tmp_path, scratch=str(tmp_path / "scratch"))
    lines = plan_lines(plan)
    number = next(number for number, line in enumerate(lines) if line.startswith("disk "))
    assert "needed, 1.0 TB free" in lines[number]
    assert "needed for the piles of the shuffle, in " in lines[number + 1]
    assert lines[number + 1].endswith(", 1.0 kB free")


@pytest.mark.parametrize("words", ["build", "plan"])
@pytest.mark.usefixtures("two_disks")
def test_a_disk_that_is_too_small_for_piles_is_refused(tmp_path: Path, words: str) -> None:
    """Before anything is read or written."""
    path, out = write_parquet(tmp_path / "a.parquet", DOCUMENTS), tmp_path / "out"
    flags = ["--input", path, "--out", out, "--shard-tokens", 2000, "--shuffle", 7]
    done = inline.run_command(words, *flags, "--scratch", tmp_path / "scratch")
    assert done.returncode == 5
    assert "the piles of the shuffle need about " in done.stderr
    assert not [*tmp_path.glob("scratch/**/documents")]


def test_an_export_asks_for_the_space_of_piles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as a build."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    runs.build_inline(tmp_path / "out", path, shard_tokens=2000)
    for shuffled, refused in (([], False), (["--shuffle", 7], True)):
        free = 2 * TOKENS + 1000
        monkeypatch.setattr(resources, "free_disk_bytes", lambda folder, free=free: free)
        done = inline.run_command("export", tmp_path / "out", "--out", tmp_path / f"new-{refused}", *shuffled)
        assert (done.returncode == 5) == refused, done.stderr
        assert ("the piles of the shuffle and the shards need" in done.stderr) == refused


@pytest.mark.parametrize("passes", [1, 2])
def test_a_plan_of_a_resume_has_the_rest(tmp_path: Path, passes: int) -> None:
    """Of time, disk and tokens; it says in which pass a build would resume."""
    path, out = write_parquet(tmp_path / "a.parquet", DOCUMENTS), tmp_path / "out"
    words = ["--input", path, "--out", out, "--shard-tokens", 2000, "--batch-bytes", 4096, "--shuffle", 7]
    with small_steps(), interrupted_in(passes):
        assert inline.run_command("build", *words).returncode == 130
    manifest = load_manifest(out)
    assert manifest is not None
    told = inline.run_command("plan", *words).stdout
    piled, done = manifest.piled_tokens, manifest.tokens
    if passes == 1:
        assert 0 < piled < TOKENS
        assert "would resume in the first pass, after " in told
        assert " for both passes (" in told
    else:
        assert piled == TOKENS
        assert 0 < done < TOKENS
        assert f"tokens     {TOKENS:,} (exact)" in told
        assert f"would resume in the second pass, after {manifest.shard_count} shard" in told
        assert " for the second pass (" in told
        assert "of the shuffle, " not in told
    assert verdict_on(manifest, held=False) in told
