"""What goes wrong with the files is said, before and after: splits without a token, files of others."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.shard_files import list_files
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.run import build
from fineweb_shards.run.output_text import expect_files, output_notes, output_warnings, reader_warnings, stray_warnings
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.vocabulary import GPT2
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl, write_parquet

DOCUMENTS = make_documents(60, seed=7)
TOKENS = len(reference.stream(DOCUMENTS))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("source") / "a.jsonl", DOCUMENTS)


def settings_in(sentence: str) -> dict[str, int | float]:
    """The settings that a warning proposes, the first one."""
    names = "shard-tokens|val-tokens|val-documents|val-ratio"
    name, value = re.findall(rf"--({names}) ([0-9.]*[0-9])", sentence)[0]
    return {name.replace("-", "_"): float(value) if "." in value else int(value)}


@pytest.mark.parametrize("layout", ["build-nanogpt", "llm.c", "modded-nanogpt"])
def test_an_input_below_a_shard_says_that_there_is_nothing_to_train_on(
    source: Path, tmp_path: Path, layout: str
) -> None:
    """Not "that is normal"; and the settings that it proposes give training shards."""
    manifest = runs.build_inline(tmp_path / "out", source, layout=layout)
    spec = runs.job_of(tmp_path / "out", source, layout=layout).output
    assert output_notes(spec, manifest) == []
    (warning,) = [text for text in output_warnings(spec, manifest) if "nothing to train on" in text]
    assert f"all {TOKENS:,} tokens" in warning
    assert "--shard-tokens" in warning
    assert "--val-tokens" in warning
    again = runs.build_inline(tmp_path / "again", source, layout=layout, **settings_in(warning))
    assert any(record.split == "train" for record in again.shards)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"val_tokens": 10**9}, "nothing to train on"),
        ({"val_documents": 60}, "which takes the first 60 documents"),
        ({"layout": "nanogpt", "val_documents": 10**9}, "which takes the first 1,000,000,000 documents"),
        ({"val_documents": 0}, "as requested"),
        ({"last_shard": "drop", "val_tokens": 0}, "--last-shard keep"),
        ({"layout": "nanogpt"}, "nothing for validation, which takes 0.0005 of the documents"),
        ({"layout": "nanogpt", "val_ratio": 0.0}, "as requested"),
        ({"val_ratio": 0.0}, "as requested"),
        ({"layout": "llm.c", "val_tokens": 0}, "failed to glob pattern"),
    ],
)
def test_a_split_without_a_token_is_told_with_its_cause(
    source: Path, tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    """Too much for validation, a dropped shard, a share of too few documents, or nothing asked for."""
    manifest = runs.build_inline(tmp_path / "out", source, **settings)
    spec = runs.job_of(tmp_path / "out", source, **settings).output
    (warning,) = [text for text in output_warnings(spec, manifest) if words in text]
    assert "too small" not in warning
    if "--fresh" in warning and "--last-shard" not in warning:
        again = runs.build_inline(tmp_path / "again", source, **{**settings, **settings_in(warning)})
        assert {record.split for record in again.shards} == {"val", "train"}


@pytest.mark.parametrize("layout", ["plain", "megatron"])
def test_a_reader_that_needs_no_validation_gets_no_warning(source: Path, tmp_path: Path, layout: str) -> None:
    """Its default is to have none."""
    manifest = runs.build_inline(tmp_path / "out", source, layout=layout)
    assert output_warnings(runs.job_of(tmp_path / "out", source, layout=layout).output, manifest) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "split_rule",
    [SplitRule(), SplitRule(val_tokens=1500), SplitRule(val_documents=12), SplitRule(val_ratio=Fraction(1, 8))],
)
@pytest.mark.parametrize("shard_tokens", [700, 10**6])
def test_what_is_expected_is_what_comes(
    source: Path, tmp_path: Path, layout: str, split_rule: SplitRule, shard_tokens: int
) -> None:
    """The same files and tokens where the number of tokens is known; by documents, about as many."""
    chosen: dict[str, object] = {"val_tokens": split_rule.val_tokens}
    if split_rule.val_ratio:
        chosen = {"val_ratio": float(split_rule.val_ratio)}
    elif split_rule.val_documents:
        chosen = {"val_documents": split_rule.val_documents}
    manifest = runs.build_inline(tmp_path, source, layout=layout, shard_tokens=shard_tokens, **chosen)
    found = list_files(manifest.shards)
    spec = OutputSpec(FolderStore(tmp_path), LAYOUTS[layout], GPT2, shard_tokens, split_rule)
    expected = expect_files(spec, TOKENS, len(DOCUMENTS), exact=True)
    if not split_rule.counts_tokens:
        assert sum(file.tokens for file in expected) == TOKENS
        assert {file.split for file in expected} == {"val", "train"}
    else:
        sizes = [(file.name, file.split, file.tokens) for file in expected]
        assert sizes == [(file.name, file.split, file.tokens) for file in found]


def test_a_forecast_says_nothing_about_what_it_can_not_know(tmp_path: Path) -> None:
    """Where the last shard ends, where tokens are only estimated; and no list of a billion shards."""
    spec = OutputSpec(FolderStore(tmp_path), LAYOUTS["build-nanogpt"], GPT2, 10**6, SplitRule(val_tokens=10**6))
    for tokens in (3_000_001, 3_900_000):
        assert reader_warnings(spec, expect_files(spec, tokens, 5000, exact=False)) == []
    assert len(reader_warnings(spec, expect_files(spec, 3_000_001, 5000, exact=True))) == 1
    tiny = OutputSpec(FolderStore(tmp_path), LAYOUTS["plain"], GPT2, 1, SplitRule())
    assert expect_files(tiny, 10**10, 10**7, exact=True) == []


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ("build-nanogpt", ["evals", "train_gpt2.py", "val.txt"]),
        ("llm.c", ["edu_fineweb_train_old.bin"]),
        ("modded-nanogpt", ["fineweb_val_copy.bin"]),
        ("plain", ["train_shard_1.bin"]),
        ("nanogpt", []),
        ("megatron", []),
    ],
)
def test_files_of_others_that_the_reader_would_open_are_named(tmp_path: Path, layout: str, names: list[str]) -> None:
    """Only those: not the files of the layout, not what the reader passes over."""
    for name in [*names, "README.md", "report.html", LAYOUTS[layout].shard_name("train", 0)]:
        (tmp_path / name).write_bytes(b"")
    warnings = stray_warnings(FolderStore(tmp_path), LAYOUTS[layout])
    assert len(warnings) == bool(names)
    assert all(name in warnings[0] for name in names)


def test_the_command_warns_at_the_start_and_at_the_end(source: Path, tmp_path: Path) -> None:
    """Both warnings: on standard error before the work, last on standard output, and in the JSON."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "train_gpt2.py").write_text("")
    settings = ["--input", source, "--out", out, "--shard-tokens", "100M"]
    done = inline.run_command("build", *settings)
    assert done.returncode == 0, done.stderr
    for text in (done.stderr, done.stdout):
        warnings = " ".join(text.split()).split("WARNING ")[1:]  # long lines are wrapped
        for words in ("nothing to train on", "would open: train_gpt2.py"):
            assert any(words in warning for warning in warnings)
    assert done.stdout.rstrip().endswith("move them away.")
    assert "that is normal" not in done.stdout
    done = inline.run_command("build", *settings, "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["warnings"]) == 3  # and the shard is shorter than a batch
    planned = inline.run_command("plan", *settings)
    assert "nothing to train on" in planned.stdout
    assert "train_gpt2.py" in planned.stdout
    words = ["--out", tmp_path / "copy", "--layout", "llm.c", "--shard-tokens", "100M"]
    exported = inline.run_command("export", out, *words)
    assert "nothing to train on" in " ".join(exported.stdout.split())


def test_an_input_without_a_document_is_no_success(tmp_path: Path) -> None:
    """Exit code 3 and a sentence, the second time too; never "the shards are complete"."""
    (tmp_path / "a.txt").write_bytes(b"")
    for words in ([], ["--json"]):
        done = inline.run_command("build", "--input", tmp_path / "a.txt", "--out", tmp_path / "out", *words)
        assert done.returncode == 3
        assert "has no documents" in done.stderr
        assert "complete" not in done.stdout


def suggested(done: subprocess.CompletedProcess[str], out: Path) -> list[str]:
    """The words after the program's name in the command that a refusal proposes; checks the refusal."""
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert "nothing to train on" in said
    assert {path.name for path in out.glob("*")} <= {".fineweb-shards", "manifest.json"}
    return shlex.split(said.rpartition("-m fineweb_shards ")[2])


def check_rebuilt(done: subprocess.CompletedProcess[str], out: Path, tokens: int | None = None) -> None:
    """A command that was proposed has made both splits of the stream."""
    assert done.returncode == 0, done.stderr
    assert "nothing to train on" not in done.stdout
    found = {path.name: np.load(path).tolist() for path in sorted(out.glob("*.npy"), reverse=True)}
    assert [name.split("_")[1] for name in found] == ["val", "train"]
    assert [*itertools.chain(*found.values())] == reference.stream(DOCUMENTS).tolist()[:tokens]


@pytest.mark.full(but=["jsonl-words0-True", "parquet-words2-False"])
@pytest.mark.parametrize(
    ("form", "words", "is_certain"),
    [("jsonl", [], True), ("token_count", [], True), ("parquet", [], False), ("parquet", ["--max-tokens", "9k"], True)],
)
def test_an_input_of_at_most_one_shard_stops_with_the_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, words: list[str], is_certain: bool
) -> None:
    """Exit code 2 and not one file; before anything is encoded where size, token_count or a limit tell."""
    path, out = tmp_path / "my data.parquet", tmp_path / "out"
    begun: list[Any] = []
    if form == "jsonl":
        path = write_jsonl(tmp_path / "my data.jsonl", DOCUMENTS)
    elif form == "parquet":
        write_parquet(path, DOCUMENTS)
    else:
        counts = [len(reference.encode(text)) for text in DOCUMENTS]
        others = {name: ["x"] * len(counts) for name in ("id", "dump", "url", "file_path")}
        pq.write_table(pa.table({"text": DOCUMENTS, "token_count": counts, **others}), path)

    stages = build.run

    def run(*given: Any) -> Manifest:
        begun.append(given)
        return stages(*given)

    with monkeypatch.context() as patch:
        patch.setattr(build, "run", run)
        refused = inline.run_command("build", path, "--out", out, *words)
    assert (not begun) == is_certain
    tokens = 9000 if "--max-tokens" in words else None
    check_rebuilt(inline.run_command(*suggested(refused, out)), out, tokens)
    planned = inline.run_command("plan", path, "--out", tmp_path / "other", *words)
    assert planned.returncode == (2 if is_certain else 0)
    assert "nothing to train on" in planned.stdout + planned.stderr


@pytest.mark.full
def test_of_a_pipe_it_is_told_at_its_end(source: Path, tmp_path: Path) -> None:
    """Before the first file has its name, and with the number of tokens that there were."""
    run, out = partial(runs.run_command, stdin=source.read_bytes()), tmp_path / "out"
    refused = run("build", "-", "--format", "jsonl", "--out", out)
    assert f"there are only {TOKENS:,}" in " ".join(refused.stderr.split())
    check_rebuilt(run(*suggested(refused, out)), out)


@pytest.mark.parametrize("words", [["--shard-tokens", "100M"], ["--val-tokens", "1M"], ["--val-documents", "1000"]])
def test_what_was_asked_for_is_made(source: Path, tmp_path: Path, words: list[str]) -> None:
    """All of the input for validation, with a warning, if the settings that decide it were named."""
    done = inline.run_command("build", source, "--out", tmp_path / "out", *words)
    assert done.returncode == 0, done.stderr
    assert "nothing to train on" in " ".join(done.stdout.split())


def test_an_export_leaves_something_to_train_on(source: Path, tmp_path: Path) -> None:
    """Into a layout whose first shard is for validation: the same refusal, and the same way out."""
    runs.build_inline(tmp_path / "plain", source, layout="plain")
    out = tmp_path / "out"
    refused = inline.run_command("export", tmp_path / "plain", "--layout", "build-nanogpt", "--out", out)
    check_rebuilt(inline.run_command(*suggested(refused, out)), out)
