"""The command as people type it: output, exit codes, and mistakes made on purpose."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from pathlib import Path

import pytest

from fineweb_shards.commands.arguments import SETTING_GROUPS
from fineweb_shards.commands.main import SUBCOMMANDS, make_parsers
from fineweb_shards.run import resources
from fineweb_shards.run.config import Config
from fineweb_shards.run.config_sources import load_config
from fineweb_shards.system.shell_commands import PROGRAM
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet, write_text
from tests.support.promises import Measure, Tries

DOCUMENTS = make_documents(120, seed=71)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input and a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    write_parquet(folder / "a.parquet", DOCUMENTS)
    done = runs.run_command("build", "--input", folder / "a.parquet", "--out", folder / "out", "--shard-tokens", "9k")
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_a_build_says_what_it_does_and_how_to_use_it(finished: Path) -> None:
    """The short plan first; at the end the folder, that it is verified, and the lines for a loader."""
    assert "tokens" in (finished / "stderr").read_text()
    text = (finished / "stdout").read_text()
    assert "verified" in text
    assert str(finished / "out") in text
    assert "np.load(" in text
    assert "that is normal" in text


def test_a_start_that_fails_names_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing in it: the last lines are the error and the next step."""
    path = write_text(tmp_path / "a.txt", ["one", "two"])
    monkeypatch.setattr(resources, "free_disk_bytes", lambda folder: 1)
    done = inline.run_command("build", path, "--out", tmp_path / "out", "--workers", "1", "--val-tokens", "1")
    assert done.returncode == 5
    assert "are missing" in done.stderr
    assert "report" not in done.stderr


@pytest.mark.promise("a finished run does nothing when rerun")
def test_a_finished_run_does_nothing_and_says_so(finished: Path, tries: Tries, within: Measure) -> None:
    """Without starting a worker or touching a file."""
    before = {path: path.stat().st_mtime_ns for path in (finished / "out").iterdir() if path.is_file()}
    for _ in tries(1, 10):
        with within(2.0):
            done = runs.run_command(
                "build", "--input", finished / "a.parquet", "--out", finished / "out", "--shard-tokens", "9k"
            )
    assert done.returncode == 0
    assert "Nothing to do" in done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in (finished / "out").iterdir() if path.is_file()}


@pytest.mark.promise("a changed source or setting is refused by name")
@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("--shard-tokens was 9,000", ["--shard-tokens", "8k"]),
        ("max-tokens", ["--shard-tokens", "9k", "--max-tokens", "10"]),
        ("separator", ["--shard-tokens", "9k", "--separator", "line"]),
        ("--text-column", ["--shard-tokens", "9k", "--text-column", "id"]),
        ("format", ["--shard-tokens", "9k", "--format", "parquet"]),
    ],
)
def test_a_changed_setting_is_refused(finished: Path, field: str, words: list[str]) -> None:
    """With the field's name and exit code 4."""
    done = inline.run_command("build", "--input", finished / "a.parquet", "--out", finished / "out", *words)
    assert done.returncode == 4
    assert field in done.stderr
    assert "Traceback" not in done.stderr


def test_every_setting_that_changes_bytes_is_in_the_fingerprint() -> None:
    """A new field must decide on which side it stands."""
    free = {"input", "out", "workers", "engine", "max_memory", "batch_bytes", "on_bad_file", "verify", "seed"}
    free |= {"download", "keep_downloads", "max_outage", "priority", "index", "gpus"}
    free |= {"scratch", "executor", "ray_address"}
    free |= {"tokenizer", "pattern", "eot"}  # the vocabulary that they name is compared
    free |= {"val_input"}  # as the files are
    free |= {"parts"}  # each has a fingerprint of its own
    names = {field.name for field in dataclasses.fields(Config)}
    assert set(Config().fingerprint()) == names - free


@pytest.mark.promise("a changed source or setting is refused by name")
def test_a_swapped_file_is_refused(tmp_path: Path) -> None:
    """Same name, same size, other bytes; --fresh says what it deletes and starts over."""
    path = write_text(tmp_path / "a.txt", ["one", "two"])
    words = ["build", path, "--out", tmp_path / "out", "--shard-tokens", "100", "--workers", "1"]
    assert inline.run_command(*words).returncode == 0
    path.write_bytes(path.read_bytes().replace(b"two", b"owt"))
    refused = inline.run_command(*words)
    assert refused.returncode == 4
    assert "a.txt" in refused.stderr
    asked = inline.run_command(*words, "--fresh")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    fresh = inline.run_command(*words, "--fresh", "--yes", "--quiet")
    assert fresh.returncode == 0
    assert "deleting 2 files" in fresh.stderr
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(["one", "owt"]), 10**8)


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_help_has_examples_that_can_be_pasted(subcommand: str) -> None:
    """Each is a command of this program that the parser accepts."""
    text = make_parsers([subcommand])[1][subcommand].format_help()
    examples = re.findall(rf"^  {PROGRAM} (.*)$", text.partition("examples:\n")[2], re.M)
    assert examples
    for example in examples:
        name, *words = shlex.split(example, comments=True)
        assert name == subcommand
        make_parsers([subcommand])[1][subcommand].parse_args(words)


def test_help_shows_defaults_as_people_write_them_and_explains_the_units() -> None:
    """1h and 4MiB, not 3,600 and 4,194,304; N, SIZE and TIME have examples of their own."""
    text = " ".join(make_parsers(["build"])[1]["build"].format_help().split())
    for words in ("(default: 1h)", "(default: 4MiB)", "(default: 100M)", "(default: 0)"):
        assert words in text
    for words in ("N 8, 250_000, 100M or 1e8", "SIZE 4MiB, 500MB", "TIME 90s, 15min, 1h"):
        assert words in text


def test_help_has_every_setting_in_a_group() -> None:
    """What belongs together stands together, and the usage fits three lines."""
    grouped = [name for names in SETTING_GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(field.name for field in dataclasses.fields(Config))
    parser = make_parsers(["build"])[1]["build"]
    titles = {group.title: group for group in parser._action_groups}
    assert {action.dest for action in titles["validation"]._group_actions} >= {"val_tokens", "val_seed"}
    assert len(parser.format_usage().splitlines()) <= 3


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 2, "subcommand is missing"),
        (["frobnicate"], 2, "unknown subcommand"),
        (["build"], 2, "nothing to build"),
        (["build", "--out", "o"], 3, "no input"),
        (["build", "--out", "o", "--input", "nowhere.txt"], 3, "nowhere.txt"),
        (["build", "--out", "o", "--shard-tokens", "many"], 2, "'many' is not a number"),
        (["build", "--out", "o", "--shard-tokens", "0"], 2, "at least 1"),
        (["build", "--out", "o", "--engine", "magic"], 2, "'magic' is not one of auto, gigatoken, fastokens, tiktoken"),
        (["build", "--out", "o", "--layout", "magic"], 2, "no such layout"),
        (["build", "--out", "o", "--max-memory", "10MB"], 2, "too small"),
        (["build", "--out", "o", "--separator", ""], 2, "--separator"),
        (["build", "--out", "o", "--workers", "-1"], 2, "--workers"),
        (["build", "--config", "nowhere.toml"], 2, "nowhere.toml"),
        (["plan", "--out", "o", "--input", "nowhere/*.txt"], 3, "no file matches"),
        (["verify", "nowhere"], 5, "no such folder"),
        (["status", "nowhere"], 5, "no such folder"),
        (["report", "."], 5, "nothing is built here"),
    ],
)
def test_mistakes_get_one_sentence_and_the_next_step(
    tmp_path: Path, words: list[str], code: int, sentence: str
) -> None:
    """The right exit code, no traceback, nothing written."""
    done = inline.run_command(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("unknown = 1", "unknown key 'unknown'"),
        ("shard_tokens = 'x'", "shard_tokens"),
        ("shard_tokens = true", "shard_tokens"),
        ("input = 5", "input"),
        ("broken", "not valid TOML"),
        ("engine = 'magic'", "engine"),
    ],
)
def test_mistakes_in_a_config_are_told_with_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    """And the key."""
    (tmp_path / "c.toml").write_text(text)
    done = inline.run_command("build", "--config", tmp_path / "c.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "c.toml" in done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_flags_override_the_config(tmp_path: Path) -> None:
    """Defaults, then the file, then the flags."""
    (tmp_path / "c.toml").write_text('shard-tokens = "5M"\nworkers = 3\nseparator = "\\n--\\n"\ninput = "x"')
    config = load_config(tmp_path / "c.toml", {"workers": 1, "out": None})
    assert config == Config(input=("x",), shard_tokens=5_000_000, workers=1, separator="\n--\n")


def test_status_tells_the_state(finished: Path, tmp_path: Path) -> None:
    """complete, stopped."""
    assert "state      complete" in inline.run_command("status", finished / "out").stdout
    data = json.loads((finished / "out" / "manifest.json").read_text())
    data |= {"complete": False, "totals": {}, "shards": data["shards"][:1]}
    runs.write_manifest(tmp_path, data)
    text = inline.run_command("status", tmp_path).stdout
    assert "state      stopped" in text
    assert "1 finished" in text
    assert "rerun the same build command to resume" in text


def test_verify_names_damaged_files_and_fails(finished: Path, tmp_path: Path) -> None:
    """Exit code 7; 0 and a sentence where all is well."""
    import shutil

    good = inline.run_command("verify", finished / "out")
    assert good.returncode == 0
    assert "verified" in good.stdout
    shutil.copytree(finished / "out", tmp_path / "out")
    path = tmp_path / "out" / "edufineweb_train_000001.npy"
    path.write_bytes(path.read_bytes()[:-2] + b"\0\0")
    bad = inline.run_command("verify", tmp_path / "out")
    assert bad.returncode == 7
    assert "edufineweb_train_000001.npy: SHA-256" in bad.stderr


def test_strange_shards_are_not_overwritten(tmp_path: Path) -> None:
    """A folder with somebody else's shards and no manifest is left alone."""
    path = write_text(tmp_path / "a.txt", ["one"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "edufineweb_train_000001.npy").write_bytes(b"precious")
    done = inline.run_command("build", "--input", path, "--out", tmp_path / "out")
    assert done.returncode == 5
    assert "edufineweb_train_000001.npy" in done.stderr
    assert (tmp_path / "out" / "edufineweb_train_000001.npy").read_bytes() == b"precious"


def test_no_file_of_ours_has_train_or_val_in_its_name(finished: Path) -> None:
    """Except the shards: build-nanogpt's loader opens whatever has."""
    for folder, _, names in os.walk(finished / "out"):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), finished / "out")
            assert name in runs.shards_in(finished / "out") or not ("train" in path or "val" in path)


def test_a_pipe_that_closes_early_is_no_error(finished: Path) -> None:
    """`fineweb-shards status … | head -0`."""
    import subprocess

    command = " ".join(runs.command("status", finished / "out"))
    done = subprocess.run(f"{command} | true", shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_folder_in_which_nothing_is_finished_takes_other_settings(tmp_path: Path) -> None:
    """An empty input, or a Ctrl-C in the first seconds, binds nobody: the next try needs no --fresh."""
    path = tmp_path / "a.txt"
    path.write_text("")
    words = ["build", "--input", path, "--out", tmp_path / "out", "--workers", "1"]
    assert inline.run_command(*words).returncode == 3
    write_text(path, ["one", "two"])
    done = inline.run_command(*words, "--shard-tokens", "2")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(["one", "two"]), 2)


def test_an_output_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    """By its own name, not by that of a lock in it."""
    path = write_text(tmp_path / "a.txt", ["one", "two"])
    done = inline.run_command("build", "--input", path, "--out", path)
    assert done.returncode == 5
    assert f"{path}: this is a file, not a folder." in done.stderr
    assert path.read_text()
