"""What `plan` says of a mix: which part runs out first, when, and what is taken of each."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.commands.build import plan_lines, plan_values
from fineweb_shards.run import plan as plan_module
from fineweb_shards.run.plan import Plan, forecast_parts, make_plan
from fineweb_shards.run.plan_text import short_lines
from fineweb_shards.stream.mix import MixRule
from fineweb_shards.types import Cursor, Cursors
from tests.support import inline, reference, runs
from tests.support.inputs import write_jsonl


def simulate(
    rule: MixRule, parts: list[list[int]], limit: int | None, before: int
) -> tuple[list[int], list[int | None], bool]:
    """A mix of documents of these lengths: always the next one of the part furthest behind. Return what is taken of
    each part, where its turn came and it had run out, and whether the limit came first."""
    taken, following = [0] * len(parts), [0] * len(parts)
    ends: list[int | None] = [None] * len(parts)
    while None in ends:
        left = [number for number, end in enumerate(ends) if end is None]
        turn = min(left, key=lambda number: (Fraction(taken[number], rule.weights[number]), number))
        if following[turn] == len(parts[turn]):
            ends[turn] = before + sum(taken)
            if not rule.until_all:
                break
            continue
        length = parts[turn][following[turn]]
        if limit is not None and before + sum(taken) + length >= limit:
            taken[turn] += limit - before - sum(taken)
            return taken, ends, True
        taken[turn] += length
        following[turn] += 1
    return taken, ends, False


@pytest.mark.parametrize("seed", range(60))
def test_a_forecast_is_a_simulation_to_one_document_of_each_part(seed: int) -> None:
    """Tokens of each part, where each runs out, which is the first, with and without a limit."""
    rng = random.Random(seed)
    weights = [rng.choice([1, 2, 3, 7, 30, 1000]) for _ in range(rng.randint(2, 6))]
    rule = MixRule(tuple(weights), until_all=rng.random() < 0.5)
    longest = rng.choice([1, 10, 1000])
    parts = [[rng.randint(1, longest) for _ in range(rng.choice([0, 1, 30, 500]))] for _ in weights]
    total, before = sum(map(sum, parts)), rng.choice([0, 77])
    limit = rng.choice([None, before + rng.randint(0, total + 2)])
    taken, ends, cut = simulate(rule, parts, limit, before)
    forecast = forecast_parts(rule, list(map(sum, parts)), limit, before=before)
    slack = [max(part, default=0) + 1 for part in parts]  # the forecast is rounded
    for said, found, one in zip(forecast.taken, taken, slack, strict=True):
        assert said is not None
        assert said - sum(slack) <= found <= said + one
    if limit is None:
        assert not forecast.cut
        if not rule.until_all:
            assert all(said is not None and said <= found for said, found in zip(forecast.taken, taken, strict=True))
    for part, said, found in zip(parts, forecast.ends, ends, strict=True):
        if part and said is not None and found is not None:
            assert abs(said - found) <= sum(slack)
    if not cut and rule.until_all and not forecast.cut:
        assert [said for said, part in zip(forecast.taken, parts, strict=True)] == list(map(sum, parts))
    if not cut and not rule.until_all and longest == 1:
        first = forecast.first_end
        assert first is not None
        assert taken[first] == sum(parts[first])


def test_parts_without_weights_are_taken_one_after_the_other() -> None:
    """Up to the limit; after a part of unknown size nothing is known."""
    assert forecast_parts(None, [5, 7, 3], 9).taken == (5, 4, 0)
    assert forecast_parts(None, [5, 7, 3], 9).cut
    assert forecast_parts(None, [5, 7, 3]).ends == (5, 12, 15)
    assert forecast_parts(None, [5, None, 3]).taken == (5, None, None)


def test_a_part_of_unknown_size_is_taken_for_one_that_lasts() -> None:
    """Then the forecast is the latest end; without any end nothing is known."""
    rule = MixRule((7, 3))
    assert forecast_parts(rule, [None, 30]).taken == (70, 30)
    assert forecast_parts(rule, [None, 30]).first_end == 1
    assert forecast_parts(rule, [None, None]).taken == (None, None)
    assert forecast_parts(rule, [None, None], 1000).taken == (700, 300)
    both = MixRule((7, 3), until_all=True)
    assert forecast_parts(both, [None, 30]).taken == (None, 30)
    assert forecast_parts(both, [None, 30]).shares() == (None, None)
    assert forecast_parts(both, [None, 30], 200).taken == (170, 30)


def write_counted(path: Path, documents: list[str], times: int = 1) -> int:
    """FineWeb's columns, and how many tokens they are, EOTs included; or so many times of them, which is wrong."""
    counts = [times * len(reference.encode(text)) for text in documents]
    others = {name: ["x"] * len(counts) for name in ("id", "dump", "url", "file_path")}
    pq.write_table(
        pa.table({"text": pa.array(documents, pa.string()), "token_count": counts, **others}), path, row_group_size=10
    )
    return sum(counts) + len(counts)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """Two files of which the tokens are known, and how many these are: about 6,000 and 3,000."""
    folder = tmp_path_factory.mktemp("data")
    long = write_counted(folder / "a.parquet", [f"number {n}: " + "some words " * 12 for n in range(200)])
    short = write_counted(folder / "b.parquet", [f"number {n}: " + "other words " * 12 for n in range(100)])
    write_jsonl(folder / "c.jsonl", ["x y " * 20] * 50)
    return folder, long, short


def plan_of(out: Path, folder: Path, *parts: dict[str, Any], start: Cursors = (), **settings: Any) -> Plan:
    tables = tuple({**part, "input": (f"{folder}/{part['input']}",)} for part in parts)
    return make_plan(runs.job_of(out, parts=tables, **settings), trial_seconds=0, start=start)


def mixed(lines: list[str]) -> list[str]:
    """The row about the mix, and those below it."""
    start = next(number for number, line in enumerate(lines) if line.startswith("mix"))
    rest = lines[start + 1 :]
    below = next(number for number, line in enumerate(rest) if line[0] != " ")
    return [line[11:] for line in [lines[start], *rest[:below]]]


A, B = {"input": "a.parquet", "weight": 7}, {"input": "b.parquet", "weight": 3}


def test_a_mix_ends_with_the_part_that_runs_out_first(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """What the stream has then, of each part; tokens, documents, shards and bytes are those of the mix."""
    folder, long, short = data
    plan = plan_of(tmp_path / "out", folder, A, B, shard_tokens=1000, val_tokens=1000)
    first = long * 10 // 7  # tokens when the first part is used up
    assert plan.forecast.first_end == 0
    assert plan.forecast.available == (long, short)
    assert plan.forecast.taken == (long, long * 3 // 7)
    assert plan.extent.tokens == pytest.approx(first, abs=2)
    assert plan.extent.documents == pytest.approx(200 + 100 * (long * 3 / 7) / short, abs=2)
    assert not plan.extent.exact  # to the last document
    assert not plan.extent.documents_exact
    assert plan.shards == -(-first // 1000)
    sizes = [(folder / name).stat().st_size for name in ("a.parquet", "b.parquet")]
    assert plan.read_bytes == pytest.approx(sizes[0] + sizes[1] * (long * 3 / 7) / short, rel=0.01)
    assert plan.bytes_to_fetch == 0
    lines = plan_lines(plan)
    assert lines[0].startswith("input      2 parts, mixed by tokens: 2 files")
    assert f"(parquet), {long:,} tokens" in lines[1]
    assert lines[2] == "weight     7 (70.00 %)"
    assert lines[4] == "weight     3 (30.00 %)"
    assert mixed(lines)[0].startswith("until part 1 runs out, after about ")
    assert mixed(lines)[1].startswith("part 1: all ")
    assert mixed(lines)[1].partition(" tokens, ")[2].startswith("70.01 %, runs out after ")
    assert mixed(lines)[2].endswith("k tokens, 29.99 %")
    assert any(line.startswith("tokens     about ") and line.endswith(" (an estimate)") for line in lines)
    assert mixed(short_lines(plan)) == mixed(lines)
    assert max(len(line) for line in lines if not line.startswith(("shards", "WARNING"))) < 80


def test_epochs_are_counted(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """The part that is read twice lasts twice as long, so the other one runs out first."""
    folder, long, short = data
    plan = plan_of(tmp_path / "out", folder, {**A, "epochs": 2}, B, shard_tokens=1000, val_tokens=1000)
    assert plan.forecast.available == (2 * long, short)
    assert plan.forecast.first_end == 1
    assert plan.forecast.taken == (short * 7 // 3, short)
    assert [one.tokens for one in plan.part_extents] == [long, short]
    assert "weight     7 (70.00 %), 2 epochs" in plan_lines(plan)
    alone = make_plan(runs.job_of(tmp_path / "o", folder / "b.parquet", epochs=3), trial_seconds=0)
    assert (alone.extent.tokens, alone.extent.documents, alone.extent.exact) == (3 * short, 300, True)
    assert alone.read_bytes == 3 * (folder / "b.parquet").stat().st_size


def test_a_mix_until_all_have_run_out(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """Has all their tokens, exactly; each part's end and the shares that come of it are shown."""
    folder, long, short = data
    plan = plan_of(tmp_path / "out", folder, A, B, mix_until="all-exhausted", val_tokens=1000)
    assert plan.extent == plan.part_extents[0] + plan.part_extents[1]
    assert plan.extent.exact
    assert plan.extent.documents_exact
    assert plan.forecast.ends == (pytest.approx(long * 10 / 7, abs=1), long + short)
    lines = plan_lines(plan)
    assert len(lines[5]) < 80
    assert mixed(lines)[0] == "until all parts run out"
    share = 100 * long / (long + short)
    assert f" tokens, {share:.2f} %, runs out after " in mixed(lines)[1]
    assert f" tokens, {100 - share:.2f} %, runs out after " in mixed(lines)[2]


def test_a_limit_may_come_first(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """It is exact then; one that comes too late changes nothing."""
    folder, long, _ = data
    plan = plan_of(tmp_path / "out", folder, A, B, max_tokens=1000, val_tokens=100)
    assert (plan.extent.tokens, plan.extent.exact, plan.forecast.taken) == (1000, True, (700, 300))
    assert plan.forecast.first_end is None
    lines = plan_lines(plan)
    assert mixed(lines)[0] == "until --max-tokens"
    assert mixed(lines)[2] == f"part 2: 300 of {mixed(lines)[2].split()[4]} tokens, 30.00 %"
    late = plan_of(tmp_path / "out", folder, A, B, max_tokens=10**6, val_tokens=100)
    assert late.extent.tokens == pytest.approx(long * 10 / 7, abs=2)
    assert mixed(plan_lines(late))[0].startswith("until part 1 runs out")
    both = plan_of(
        tmp_path / "out", folder, A, B, max_tokens=long * 10 // 7 + 50, val_tokens=100, mix_until="all-exhausted"
    )
    assert mixed(plan_lines(both))[0] == "until --max-tokens"
    assert ", runs out after " in mixed(plan_lines(both))[1]


def test_files_for_validation_are_read_once_and_before_the_mix(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """Neither weight nor epochs count for them."""
    folder, long, short = data
    part = {**A, "epochs": 2, "val_input": (f"{folder}/b.parquet",)}
    plan = plan_of(tmp_path / "out", folder, part, B)
    assert plan.forecast.available == (2 * long, short)
    assert plan.forecast.taken == (short * 7 // 3, short)
    assert plan.forecast.ends[1] == pytest.approx(short + short * 10 / 3, abs=1)
    assert plan.extent.tokens == pytest.approx(short + short * 10 / 3, abs=2)
    assert plan.part_extents[0].tokens == long + short


def test_a_resumed_mix_fetches_what_is_left(
    tmp_path: Path, data: tuple[Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each part what was not taken yet: here all of the first one but its second epoch, and half of the other."""
    folder, *_ = data
    monkeypatch.setattr(plan_module, "most_fetched_bytes", lambda part: part.read_bytes)  # as if it were on the hub
    parts, settings = ({**A, "epochs": 2}, B), {"val_tokens": 100, "batch_bytes": 1024}
    whole = plan_of(tmp_path / "out", folder, *parts, **settings)
    rest = plan_of(tmp_path / "out", folder, *parts, **settings, start=(Cursor(1, 0), Cursor(0, 5)))
    assert (rest.extent, rest.read_bytes) == (whole.extent, whole.read_bytes)
    long_bytes, short_bytes = ((folder / name).stat().st_size for name in ("a.parquet", "b.parquet"))
    assert whole.bytes_to_fetch == pytest.approx(whole.read_bytes, rel=0.2)
    assert whole.bytes_to_fetch - rest.bytes_to_fetch == pytest.approx(long_bytes + short_bytes / 2, rel=0.2)


def test_parts_of_unknown_size_and_estimates(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """An estimate is said to be one; beside standard input an end is a bound."""
    folder, _, short = data
    plan = plan_of(tmp_path / "out", folder, {"input": "c.jsonl", "weight": 1}, B, val_tokens=100)
    assert any(line.startswith("tokens     about") and line.endswith("(an estimate)") for line in plan_lines(plan))
    words = [
        "--part", "input=- weight=7 format=jsonl",
        "--part", f"input={folder}/b.parquet weight=3", "--val-tokens", "100", "--out", tmp_path / "out",
    ]  # fmt: skip
    done = runs.run_command("plan", *words, stdin=b'{"text": "one"}\n')
    assert done.returncode == 0, done.stderr
    assert "until part 2 runs out, after about" in done.stdout
    assert ", unless one of unknown size does first" in done.stdout
    assert "tokens     unknown until the end" in done.stdout
    answer = json.loads(runs.run_command("plan", *words, "--json", stdin=b'{"text": "one"}\n').stdout)
    assert answer["tokens"] is None
    assert [part["available_tokens"] for part in answer["parts"]] == [None, short]


def test_a_part_without_documents_is_warned_of(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """Before a mix that would end at once."""
    write_counted(tmp_path / "empty.parquet", [])
    paths = (data[0] / "a.parquet", tmp_path / "empty.parquet")
    tables = tuple({"input": (str(path),), "weight": 1} for path in paths)
    plan = make_plan(runs.job_of(tmp_path / "out", parts=tables), trial_seconds=0)
    assert any("part 2 has no documents, so the mix ends at its first turn" in line for line in short_lines(plan))
    plan = make_plan(runs.job_of(tmp_path / "out", parts=tables, mix_until="all-exhausted"), trial_seconds=0)
    assert not any("has no documents" in line for line in short_lines(plan))


def test_the_values_for_programs(tmp_path: Path, data: tuple[Path, int, int]) -> None:
    """`plan --json`: a part's weight, epochs, what it has, what is taken of it, its share, and where it ends."""
    folder, long, short = data
    values = plan_values(plan_of(tmp_path / "out", folder, {**A, "weight": 70}, {**B, "weight": 30}, val_tokens=100))
    assert values["parts"] == [
        {"weight": 7, "epochs": 1, "available_tokens": long, "tokens": long,
         "share": pytest.approx(0.7, abs=1e-3), "ends_after_tokens": pytest.approx(long * 10 / 7, abs=1)},
        {"weight": 3, "epochs": 1, "available_tokens": short, "tokens": long * 3 // 7,
         "share": pytest.approx(0.3, abs=1e-3), "ends_after_tokens": None},
    ]  # fmt: skip
    alone = plan_values(make_plan(runs.job_of(tmp_path / "o", folder / "b.parquet"), trial_seconds=0))
    (part,) = alone["parts"]
    assert (part["weight"], part["tokens"], part["share"], part["ends_after_tokens"]) == (None, short, 1.0, short)


@pytest.mark.parametrize("until", ["first-exhausted", "all-exhausted"])
@pytest.mark.parametrize("limit", [None, 5000])
def test_a_build_takes_what_was_planned(
    tmp_path: Path, data: tuple[Path, int, int], until: str, limit: int | None
) -> None:
    """To one document of each part: with epochs, files for validation, and a limit."""
    folder, *_ = data
    first = {"input": (f"{folder}/a.parquet",), "weight": 7, "epochs": 2, "val_input": (f"{folder}/b.parquet",)}
    tables = (first, {"input": (f"{folder}/b.parquet",), "weight": 3})
    settings = {"parts": tables, "mix_until": until, "max_tokens": limit, "shard_tokens": 1000}
    forecast = make_plan(runs.job_of(tmp_path / "out", **settings), trial_seconds=0).forecast
    manifest = runs.build_inline(tmp_path / "out", **settings)
    taken = [one.tokens for one in manifest.taken]
    assert list(forecast.taken) == [pytest.approx(tokens, abs=70) for tokens in taken]
    if limit is None and until == "all-exhausted":
        assert forecast.taken == (*taken,)


@pytest.mark.parametrize("times", [1, 2])
def test_a_part_that_runs_out_before_its_planned_end_is_reported(tmp_path: Path, times: int) -> None:
    """While the build runs, with both numbers: the rest of the mix is another one than planned."""
    documents = [f"number {n}: " + "some words " * 12 for n in range(60)]
    tokens = write_counted(tmp_path / "a.parquet", documents, times) // times
    write_counted(tmp_path / "b.parquet", documents * 3)
    parts = [f"--part=input={tmp_path}/{name}.parquet weight=1" for name in "ab"]
    done = inline.run_command("build", *parts, "--out", tmp_path / "out", "--shard-tokens", "900")
    said = [line for line in done.stderr.splitlines() if "has run out" in line]
    actual = sum(len(reference.encode(text)) + 1 for text in documents)
    assert abs(tokens - actual) < 60
    assert len(said) == times - 1, done.stderr
    if said:
        assert said[0].startswith(f"part 1 (a.parquet) has run out after {actual:,} tokens; the plan expected about ")
