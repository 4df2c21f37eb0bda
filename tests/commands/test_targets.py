"""What comes after a subcommand: samples, TOML files, input, flags and their values, and mistakes in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fineweb_shards.commands import arguments as bundled
from fineweb_shards.commands.arguments import read_config, read_store
from fineweb_shards.commands.main import main, parse
from fineweb_shards.errors import UsageError
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.run.config import Config
from fineweb_shards.run.resources import plan_budget
from fineweb_shards.units import show_number_of

ROOT = Path(__file__).parent.parent.parent
SMALL = ["build", "small.txt", "--out", "o"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the current one, with a text in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.txt").write_text("one\n\ntwo\n")
    return tmp_path


def config_of(*words: str) -> Config:
    return read_config(parse(["build", *words]))


def test_every_config_of_the_project_is_bundled() -> None:
    """By the name of its file."""
    assert set(bundled.bundled_configs()) == {path.stem for path in (ROOT / "configs").glob("*.toml")}


def test_an_installed_package_has_its_configs_inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never from a folder beside it, which is somebody else's."""
    package = folder / "site-packages" / "fineweb_shards"
    (package / "configs").mkdir(parents=True)
    (package / "configs" / "inside.toml").touch()
    (package.parent / "configs").mkdir()
    (package.parent / "configs" / "foreign.toml").touch()
    monkeypatch.setattr(bundled, "_PACKAGE", package)
    bundled.bundled_configs.cache_clear()
    try:
        assert set(bundled.bundled_configs()) == {"inside"}
    finally:
        bundled.bundled_configs.cache_clear()


@pytest.mark.parametrize("words", [["sample-10BT"], ["--config", "sample-10BT"]])
def test_a_sample_by_its_name(words: list[str]) -> None:
    """As an argument, or as a config; flags override it."""
    config = config_of(*words, "--out", "x")
    assert (config.dataset, config.name, config.out) == ("HuggingFaceFW/fineweb-edu", "sample-10BT", "x")


def test_a_toml_file_and_input_as_arguments(folder: Path) -> None:
    """Files may stand anywhere between the flags, in the order they are read."""
    (folder / "c.toml").write_text('input = "small.txt"\nworkers = 3\n')
    assert config_of("c.toml").workers == 3
    config = config_of("small.txt", "--out", "o", "nowhere/*.txt", "--workers", "1", "-")
    assert config.input == ("small.txt", "nowhere/*.txt", "-")
    assert config_of("--config", "c.toml", "x/y.txt").input == ("x/y.txt",)
    assert config_of("--", "-odd.txt").input == ("-odd.txt",)
    config = config_of("sample-10BT", "--input", "small.txt")  # in place of the sample's dataset
    assert (config.input, config.dataset, config.name, config.out) == (("small.txt",), "", "", "edu_fineweb10B")


def test_a_sample_wins_over_a_path_of_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the same command means the same when an output folder has that name; ./ means the path."""
    (folder / "demo").mkdir()
    assert config_of("demo").out == "out/demo"
    assert "./demo" in capsys.readouterr().err
    assert config_of("./demo", "--out", "o").input == ("./demo",)
    (folder / "demo" / ".fineweb-shards").mkdir()
    assert config_of("demo", "--out", "demo").out == "demo"
    assert not capsys.readouterr().err


def test_a_folder_by_its_path_its_sample_or_its_toml_file(folder: Path) -> None:
    """A folder that a build has begun in comes first."""
    (folder / "c.toml").write_text('out = "there"\n')
    assert read_store("demo") == FolderStore(Path("out/demo"))
    assert read_store("c.toml") == FolderStore(Path("there"))
    assert read_store("shards") == FolderStore(Path("shards"))
    (folder / "demo").mkdir()
    assert read_store("demo") == FolderStore(Path("out/demo"))
    (folder / "demo" / "manifest.json").touch()
    assert read_store("demo") == FolderStore(Path("demo"))
    for subcommand in ("status", "verify", "report", "export"):
        assert parse([subcommand, "sample-10BT"]).folder == FolderStore(Path("edu_fineweb10B"))


@pytest.mark.parametrize("value", ["--", "---", "-", "-x", "-5", "a=b", "=", "- ", "--=", "--fresh"])
def test_a_value_may_begin_with_a_dash(value: str) -> None:
    """With = always; behind a blank a number, and a dash alone."""
    assert config_of("--out", "o", f"--separator={value}", "small.txt").separator == value
    if value in ("-", "-5", "a=b", "=", "- "):
        assert config_of("--out", "o", "--separator", value, "small.txt").separator == value
    options = parse(["inspect", "x", f"--grep={value}"])
    assert options.grep == value


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "The subcommand is missing.", "one of build, plan, verify, status, report, export, inspect"),
        (["biuld"], "biuld: unknown subcommand.", " build`?"),
        (["frobnicate"], "frobnicate: unknown subcommand.", "one of build, plan"),
        (["sample-10BT"], "unknown subcommand", "build sample-10BT`?"),
        (["--out", "x"], "--out: unknown subcommand.", "for example `"),
        (["build"], "There is nothing to build", "'data/*.parquet' --out shards"),
        (["build", "small.txt"], "No output folder was given", "--out shards"),
        (["build", "sample-10bt"], "sample-10bt: no such sample", "mean sample-10BT?"),
        (["build", "qqq"], "qqq: no such sample, file or folder", "sample-10BT"),
        (["build", "", "--out", "o"], "the name of the input is empty", "variable"),
        (["build", "user/data", "--out", "o"], "user/data: no such file", "--dataset user/data"),
        (["build", "smal.txt", "--out", "o"], "smal.txt: no such file or folder", "Did you mean small.txt?"),
        (["build", "nowhere.csv", "--out", "o"], "no such file or folder", "Name a file, a folder or a glob"),
        (["build", "demo", "small.txt"], "a sample or TOML file must be the only target", "demo --input PATH"),
        (["build", "demo", "--config", "demo"], "must be the only target", "demo --input PATH"),
        (["build", "small.txt", "--input", "small.txt"], "given twice", "only one"),
        (["build", "nowhere.toml"], "nowhere.toml: no such TOML file", "The samples are"),
        (["build", "--config", "smal.toml"], "no such TOML file", "mean small.toml?"),
        (["build", "--config", "x/pyproject.toml"], "no such TOML file", "The samples are"),
        (["build", "--shardtokens", "5M"], "--shardtokens: unknown flag", "mean --shard-tokens?"),
        (["build", "--shard_tokens=5M"], "--shard_tokens: unknown flag", "mean --shard-tokens?"),
        (["build", "-out", "x"], "-out: unknown flag", "mean --out?"),
        (["plan", "--fresh"], "--fresh: unknown flag", "--help"),
        (["status", "--jsno"], "--jsno: unknown flag", "mean --json?"),
        ([*SMALL, "--layout", "llmc"], "--layout llmc: no such layout", "mean llm.c?"),
        (["build", "--engine", "tiktokn"], "'tiktokn' is not one of auto, gigatoken, fastokens", "--help"),
        (["build", "--out"], "--out: expected one argument", "--help"),
        (["build", "--separator", "--fresh"], "--separator: expected one argument", "--flag=-value"),
        (["build", "--verify=false"], "--verify/--no-verify: ignored explicit argument 'false'", "--help"),
        (["build", "--verify", "false"], "false: no such sample, file or folder", "The samples are"),
        (["build", "--quiet=yes"], "--quiet: ignored explicit argument 'yes'", "--help"),
        (["build", "--quiet", "--json"], "--json: not allowed with --quiet", "--help"),
        (["build", "--workers", "-5"], "--workers: '-5' is below 0", "--help"),
        (["inspect", "x", "--document", "-5"], "--document: '-5' is below 0", "--help"),
        ([*SMALL, "--shard-tokens", "1e18"], "at most 8,000,000,000,000", "16 TB"),
        ([*SMALL, "--max-memory", "900TiB"], "--max-memory 989.6 TB: the ", "Leave it out"),
        ([*SMALL, "--max-memory", "10MB"], "--max-memory 10.0 MB is too small", "Give more"),
        ([*SMALL, "--max-memory", "0"], "--max-memory 0 bytes is too small", "Give more"),
        ([*SMALL, "--max-memory", "2"], "--max-memory 2 bytes is too", "such as --max-memory 2GiB"),
        ([*SMALL, "--max-memory", "900"], "--max-memory 900 bytes is", "such as --max-memory 2GiB"),
        ([*SMALL, "--tokenizer", "gpt4"], "--tokenizer gpt4: there is no such file or name",
         "one of gpt2, cl100k_base (GPT-4), o200k_base (GPT-4o), llama3, qwen"),
        ([*SMALL, "--val-ratio", "5"], "--val-ratio 5: must be from 0", "5%"),
        ([*SMALL, "--name", "x"], "--name x: only with --dataset.", "--dataset"),
        ([*SMALL, "--split", "test"], "--split test: only with --dataset.", "--dataset"),
        ([*SMALL, "--revision", "v1"], "--revision v1: only with --dataset.", "--dataset"),
        ([*SMALL, "--priority", "norml"],
         "--priority: 'norml' is not one of background, normal (did you mean normal?)", "--help"),
        (["status"], "DIR is missing", "--help"),
        (["status", "a", "b"], "b: unexpected argument", "--help"),
        (["status", "sample-10bt"], "sample-10bt: no such folder or sample", "mean sample-10BT?"),
        (["export"], "DIR is missing", "--help"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_what_was_meant(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str, hint: str
) -> None:
    """One sentence, the next step, no output, nothing written."""
    (folder / "small.toml").touch()
    (folder / "pyproject.toml").touch()
    before = sorted(os.listdir(folder))
    assert main(words) in (2, 3, 5)
    shown = capsys.readouterr()
    first, second = shown.err.splitlines()
    assert message in first
    assert hint in second
    assert shown.out == ""
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('verify = "false"', "verify = 'false': must be true or false, without quotes", "--help"),
        ("download = 1", "download = 1: must be true or false", "--help"),
        ("shard_token = 5", "unknown key 'shard_token'", "Did you mean shard_tokens?"),
        ("[tool]\nx = 1", "unknown key 'tool'", "--help"),
        ("on_bad_file = 'skp'", "on_bad_file: 'skp' is not one of stop, skip (did you mean skip?)", "--help"),
        ("priority = 'low'", "priority: 'low' is not one of background, normal", "--help"),
        ("shard_tokens = inf", "shard_tokens: 'inf' is not a number", "--help"),
    ],
)
def test_mistakes_in_a_toml_file(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, message: str, hint: str
) -> None:
    """The file, the key, what to write."""
    (folder / "c.toml").write_text(text)
    assert main(["build", "c.toml"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert f"c.toml: {message}" in first
    assert hint in second


def test_numbers_in_a_toml_file_are_read_as_numbers(folder: Path) -> None:
    """1e12 is a float there, and Python shows some of those with a plus."""
    (folder / "c.toml").write_text("shard_tokens = 1e12\nmax_tokens = 1e17\nval_ratio = 5e-5\n")
    config = config_of("c.toml")
    assert (config.shard_tokens, config.max_tokens, config.val_ratio) == (10**12, 10**17, 5e-5)


def test_files_in_a_toml_file_are_one_or_a_list(folder: Path) -> None:
    """Those for validation, too; anything else is told."""
    for text, files in (("'v'", ("v",)), ("['v', 'w']", ("v", "w"))):
        (folder / "c.toml").write_text(f"val_input = {text}\n")
        assert config_of("c.toml").val_input == files
    (folder / "c.toml").write_text("val_input = 5\n")
    with pytest.raises(UsageError, match="val_input = 5: must be a string or a list of strings"):
        config_of("c.toml")


def test_fewer_workers_than_asked_for_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """1,000 don't become 16 quietly."""
    budget = plan_budget(1000, 2**30, 4 * 2**20)
    assert budget.wanted_workers == 1000
    assert budget.workers < 5
    many = ["--workers", "1000", "--max-memory", "1GiB"]
    assert main(["plan", "small.txt", "--out", "o", "--shard-tokens", "100", *many]) == 0
    workers = show_number_of(budget.workers, "worker")
    assert f"machine    {workers} (not 1,000: limited by memory), " in capsys.readouterr().out
