"""What goes wrong with the files is said, before and after: splits without a token, files of others."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import inline
import pytest
import reference
import runs
from documents import make_documents
from inputs import write_jsonl

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.run.result_text import output_notes, output_warnings
from fineweb_shards.run.trainer_warnings import expect_files, reader_warnings, stray_warnings
from fineweb_shards.store.files import list_files
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.output_spec import OutputSpec
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.vocabulary import GPT2

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
    """Not "nothing is missing"; and the settings that it proposes give training shards."""
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
        ({"val_documents": 0}, "as was asked"),
        ({"last_shard": "drop", "val_tokens": 0}, "--last-shard keep"),
        ({"layout": "nanogpt"}, "of 60 documents, a share of one in 2,000 chooses none"),
        ({"layout": "nanogpt", "val_ratio": 0.0}, "as was asked"),
        ({"val_ratio": 0.0}, "as was asked"),
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
    [
        SplitRule(),
        SplitRule(val_tokens=1500),
        SplitRule(val_documents=12),
        SplitRule(val_ratio=Fraction(1, 8)),
    ],
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
    spec = OutputSpec(
        FolderStore(tmp_path), LAYOUTS["build-nanogpt"], GPT2, 10**6, SplitRule(val_tokens=10**6)
    )
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
def test_files_of_others_that_the_reader_would_open_are_named(
    tmp_path: Path, layout: str, names: list[str]
) -> None:
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
    done = inline.run_command("build", "--input", source, "--out", out)
    assert done.returncode == 0, done.stderr
    for text in (done.stderr, done.stdout):
        warnings = " ".join(text.split()).split("WARNING ")[1:]  # long lines are wrapped
        for words in ("nothing to train on", "would open: train_gpt2.py"):
            assert any(words in warning for warning in warnings)
    assert done.stdout.rstrip().endswith("move them away.")
    assert "nothing is missing" not in done.stdout
    done = inline.run_command("build", "--input", source, "--out", out, "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["warnings"]) == 3  # and the shard is shorter than a batch
    planned = inline.run_command("plan", "--input", source, "--out", out)
    assert "nothing to train on" in planned.stdout
    assert "train_gpt2.py" in planned.stdout
    exported = inline.run_command("export", out, "--out", tmp_path / "copy", "--layout", "llm.c")
    assert "nothing to train on" in " ".join(exported.stdout.split())


def test_an_input_without_a_document_is_no_success(tmp_path: Path) -> None:
    """Exit code 3 and a sentence, the second time too; never "the shards are complete"."""
    (tmp_path / "a.txt").write_bytes(b"")
    for words in ([], ["--json"]):
        done = inline.run_command("build", "--input", tmp_path / "a.txt", "--out", tmp_path / "out", *words)
        assert done.returncode == 3
        assert "holds no document" in done.stderr
        assert "complete" not in done.stdout
