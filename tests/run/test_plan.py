"""`plan`: what it says is what happens, and estimates say that they are."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.commands.build import plan_lines, verdict_on
from fineweb_shards.run.estimate import take_sample
from fineweb_shards.run.job import open_manifest
from fineweb_shards.run.plan import make_plan
from fineweb_shards.run.plan_text import short_lines
from fineweb_shards.sources import files
from fineweb_shards.units import show_bytes
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_gzip, write_jsonl, write_parquet, write_text

DOCUMENTS = [text for text in make_documents(400, seed=61) if text and "<|endoftext|>" not in text]
TOKENS = len(reference.stream(DOCUMENTS))


def plan_of(tmp_path: Path, path: Path, **settings: object):  # type: ignore[no-untyped-def]
    return make_plan(runs.job_of(tmp_path / "out", path, **settings), trial_seconds=0.01)


def test_token_count_makes_it_exact(tmp_path: Path) -> None:
    """FineWeb's column is summed up; EOTs are added. A column of this name in another schema may count anything."""
    counts = [len(reference.encode(text)) for text in DOCUMENTS]
    others = {name: ["x"] * len(counts) for name in ("id", "dump", "url", "file_path")}
    pq.write_table(pa.table({"text": DOCUMENTS, "token_count": counts}), tmp_path / "b.parquet")
    assert not plan_of(tmp_path, tmp_path / "b.parquet", shard_tokens=1000).extent.exact
    pq.write_table(pa.table({"text": DOCUMENTS, "token_count": counts, **others}), tmp_path / "a.parquet")
    plan = plan_of(tmp_path, tmp_path / "a.parquet", shard_tokens=1000)
    assert plan.extent.exact
    assert plan.extent.tokens == TOKENS
    assert plan.extent.documents == len(DOCUMENTS)
    assert plan.shards == -(-TOKENS // 1000)
    assert plan.output_bytes == 2 * TOKENS
    assert "exact, from token_count" in "\n".join(plan_lines(plan))
    limited = plan_of(tmp_path, tmp_path / "a.parquet", max_tokens=2500, shard_tokens=1000)
    assert (limited.extent.tokens, limited.shards) == (2500, 3)


@pytest.mark.full(but=["parquet", "txt.gz"])
@pytest.mark.parametrize("form", ["parquet", "jsonl", "txt", "txt.gz"])
def test_estimates_are_near_and_said_to_be_estimates(tmp_path: Path, form: str) -> None:
    """Within a quarter on a small file."""
    path = tmp_path / f"a.{form}"
    if form == "txt.gz":
        write_gzip(path, write_text(tmp_path / "plain", DOCUMENTS).read_bytes())
    else:
        {"parquet": write_parquet, "jsonl": write_jsonl, "txt": write_text}[form](path, DOCUMENTS)
    plan = plan_of(tmp_path, path)
    assert plan.extent.tokens == pytest.approx(TOKENS, rel=0.25)
    assert plan.extent.documents == pytest.approx(len(DOCUMENTS), rel=0.25)
    assert not plan.extent.exact
    assert "an estimate" in "\n".join(plan_lines(plan))


@pytest.mark.full(but=["jsonl"])
@pytest.mark.parametrize("form", ["parquet", "jsonl", "txt"])
def test_plan_and_build_show_the_same_estimate(tmp_path: Path, form: str) -> None:
    """Of tokens, shards, disk and separators, however long the trial of the speed takes: documents that get longer and
    longer tell a large sample from a small one."""
    growing = [f"{number}: " + "some words " * (number // 40 + 1) for number in range(4000)]
    counts = iter(range(40))
    for first in range(0, 4000, 100):  # more files than a build looks at
        write = {"parquet": write_parquet, "jsonl": write_jsonl, "txt": write_text}[form]
        write(tmp_path / f"{next(counts):02}.{form}", growing[first : first + 100])
    job = runs.job_of(tmp_path / "out", tmp_path / f"*.{form}", workers=1)
    built = short_lines(make_plan(job, trial_seconds=0))
    planned = [*plan_lines(make_plan(job, trial_seconds=0.01)), *plan_lines(make_plan(job, trial_seconds=1))]
    shown = [line.partition(" needed, ")[0] for line in planned]  # without the free space, which changes
    for line in built:
        assert shown.count(line.partition(" needed, ")[0]) == 2
    assert any(line.startswith("tokens     about ") for line in built)


def test_it_shows_what_the_issue_of_a_run_depends_on(tmp_path: Path) -> None:
    """Separator, engine, workers, disk, memory, time and the first words of three documents."""
    path = write_text(tmp_path / "a.txt", ["First \x1b[31mdocument", "Second one", "Third one", "Fourth"])
    text = "\n".join(plan_lines(plan_of(tmp_path, path, workers=1)))
    assert "'<|endoftext|>'" in text
    assert "gigatoken" in text
    assert "1 worker," in text
    assert "free" in text
    assert "memory budget" in text
    assert "document 1 First ·[31mdocument" in text
    assert "document 3 Third one" in text
    assert "Fourth" not in text
    assert not (tmp_path / "out").exists()


def test_a_bad_file_is_told_before_the_run(tmp_path: Path) -> None:
    """Instead of in the middle of the night."""
    from fineweb_shards.errors import BadFileError

    path = tmp_path / "a.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(BadFileError, match=r"a\.parquet"):
        plan_of(tmp_path, path)
    assert plan_of(tmp_path, path, on_bad_file="skip").extent.documents == 0


def test_what_is_kept_of_the_input_does_not_grow_with_it(tmp_path: Path) -> None:
    """A glance at forty files of long documents holds no more than at one: the parent's memory is small."""
    for number in range(40):
        write_parquet(tmp_path / f"{number:02}.parquet", [f"{number} " + "some words " * 20_000] * 3)
    job = runs.job_of(tmp_path / "out", tmp_path)
    sample = take_sample(job, 0, 2**18, runs.START[0])
    assert 0 < sum(map(len, sample.texts)) <= 2**18
    assert sample.documents >= 3 * 8
    assert sample.read_bytes > 8 * 3 * 220_000


def test_it_says_what_a_build_would_do_in_this_folder(tmp_path: Path) -> None:
    """Begin; nothing; resume after a shard, with what is left to write; refused, in build's own words."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    out = tmp_path / "out"

    def verdict(limit: int | None) -> str:
        manifest = open_manifest(runs.job_of(out, path, shard_tokens=1000, max_tokens=limit), same_source=False)
        return verdict_on(manifest, held=False)

    assert verdict(2500) == "would start from the beginning"
    assert not out.exists()
    runs.build_inline(out, path, shard_tokens=1000, max_tokens=2500)
    assert verdict(2500) == "nothing to do: complete, 2,500 tokens"
    assert verdict(None) == "would resume after 2 shards, 2k tokens"
    words = ["--input", path, "--out", out, "--shard-tokens", "1k", "--max-tokens", "2k"]
    refused = inline.run_command("plan", *words)
    assert refused.returncode == 4
    assert "build      would be refused; the reason is below" in refused.stdout
    assert refused.stderr == inline.run_command("build", *words).stderr
    assert "--max-tokens 2,000: the folder already has 2,500 tokens" in refused.stderr


def test_a_resumed_run_needs_less(tmp_path: Path) -> None:
    """Bytes on the disk are those that are still to come."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    job = runs.job_of(tmp_path / "out", path, shard_tokens=1000, max_tokens=3000)
    plan = make_plan(job, trial_seconds=0, done_tokens=1000)
    assert plan.output_bytes == 4000
    assert "about 4.0 kB needed" in "\n".join(plan_lines(plan))


def test_a_build_shows_how_a_text_is_split(tmp_path: Path) -> None:
    """Separator, documents per MB and the first documents, in 80 columns; a parquet file has none of it."""
    path = write_text(tmp_path / "a.txt", [f"{i}: " + "some words " * 18 for i in range(100)], "\n\n")
    job = runs.job_of(tmp_path / "out", path, workers=1)
    lines = short_lines(make_plan(job, trial_seconds=0))
    assert "separator  a blank line (about 4,953 documents per MB of text)" in lines
    assert [line[:16] for line in lines if line.startswith("document ")] == [
        "document 1 0: so",
        "document 2 1: so",
        "document 3 2: so",
    ]
    assert max(len(line) for line in lines if not line.startswith(("shards", "WARNING"))) < 80
    assert not any("a document has" in line for line in lines)
    rows = write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    lines = short_lines(make_plan(runs.job_of(tmp_path / "out", rows), trial_seconds=0))
    assert not any(line.startswith(("separator", "document ")) for line in lines)


def test_one_document_is_not_called_several(tmp_path: Path) -> None:
    """Where a document is as long as a megabyte."""
    path = write_text(tmp_path / "a.txt", ["some words " * 90_000], "\n\n")
    lines = short_lines(make_plan(runs.job_of(tmp_path / "out", path, separator="blank"), trial_seconds=0))
    assert "separator  a blank line (about 1 document per MB of text)" in lines


@pytest.mark.parametrize("separator", ["auto", "line"])
def test_documents_shorter_than_a_sentence_are_warned_of(tmp_path: Path, separator: str) -> None:
    """By `plan` and `build`, with what would help; not where a file is a document."""
    path = tmp_path / "a.txt"
    path.write_text("A few words.\n\n" * 500)
    plan = make_plan(runs.job_of(tmp_path / "out", path, separator=separator), trial_seconds=0)
    for lines in (short_lines(plan), plan_lines(plan)):
        text = "\n".join(lines)
        assert "WARNING    documents have 12 bytes on average, less than a sentence." in text
        assert "--separator none" in text
        assert ("--separator blank" in text) == (separator == "line")
        short = [line for line in lines if not line.startswith("shards") and "Estimated" not in line]
        assert max(map(len, short)) < 80
    whole = make_plan(runs.job_of(tmp_path / "out", path, separator="none"), trial_seconds=0)
    assert "a document has" not in "\n".join(short_lines(whole))


def test_a_pipe_has_no_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows before its end how many bytes come: the input is named, alone or beside files."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    monkeypatch.setattr(files, "open_pipe", lambda path: Namespace(head=b""))

    def shown(*inputs: Path | str) -> str:
        plan = make_plan(runs.job_of(tmp_path / "out", *inputs, format="jsonl"), trial_seconds=0)
        return short_lines(plan)[0]

    assert shown("-") == "input      standard input (jsonl)"
    os.mkfifo(tmp_path / "pipe")
    assert shown(tmp_path / "pipe") == "input      1 pipe (jsonl)"
    size = show_bytes(path.stat().st_size)
    assert shown(path, "-") == f"input      1 file, {size}, and standard input (jsonl)"


def test_a_plan_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It proposes a name that is free, and makes nothing of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.txt").write_text("One document.\n\nAnother one.\n")
    (tmp_path / "shards").mkdir()
    done = inline.run_command("plan", "small.txt", "--val-tokens", "1")
    assert done.returncode == 0, done.stderr
    assert "would start from the beginning; choose the folder with --out shards-2" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards", "small.txt"]
