"""Weights, epochs and --mix-until: what is typed, what becomes of it, and what each mistake is told."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards import api
from fineweb_shards.api.values import MixedFolder
from fineweb_shards.commands.arguments import read_config
from fineweb_shards.commands.main import SUBCOMMANDS, make_parsers
from fineweb_shards.errors import ChangedError, UsageError
from fineweb_shards.output.manifest import InputPart, Manifest, divide_settings
from fineweb_shards.output.resume_rules import check_settings
from fineweb_shards.run.config import Config
from fineweb_shards.run.config_sources import load_config
from fineweb_shards.stream.mix import MixRule
from fineweb_shards.units import parse_weight
from tests.support import inline, runs
from tests.support.inputs import write_jsonl

OUT = ["--out", "out"]


def config_of(*words: str) -> Config:
    """What the command line gives."""
    options = make_parsers(SUBCOMMANDS)[1]["build"].parse_args([*words, *OUT])
    config = read_config(options)
    config.check()
    return config


def of_weights(*weights: Any, **settings: Any) -> Config:
    parts = tuple({"input": (f"{number}.txt",), "weight": one} for number, one in enumerate(weights))
    return Config(out="out", parts=parts, **settings)


@pytest.mark.parametrize(("typed", "weights"), [
    (["7", "3"], (7, 3)),
    (["0.7", "0.3"], (7, 3)),
    (["70", "30"], (7, 3)),
    (["70%", "30%"], (7, 3)),
    (["0.1", "0.2", "0.7"], (1, 2, 7)),
    (["1e-3", "1"], (1, 1000)),
    (["1", "1"], (1, 1)),
    (["1_000_000", "1"], (1_000_000, 1)),
    (["0.3333333333333333", "0.6666666666666666"], (1, 2)),
])  # fmt: skip
def test_weights_become_whole_numbers(typed: list[str], weights: tuple[int, ...]) -> None:
    """Without a common divisor, by the decimals that were typed: in floating point 0.1 + 0.2 is not 0.3."""
    config = of_weights(*map(parse_weight, typed))
    config.check()
    assert config.mix == MixRule(weights)
    assert [part.weight for part in config.part_configs] == [*weights]
    fingerprint = config.part_configs[0].fingerprint()
    assert (fingerprint["weight"], type(fingerprint["weight"])) == (weights[0], int)


def test_flags_toml_and_the_library_give_the_same_mix(tmp_path: Path) -> None:
    """--part, repeated flags, [[parts]], lists in TOML, and `parts=`."""
    (tmp_path / "parts.toml").write_text(
        'mix_until = "all-exhausted"\n'
        '[[parts]]\ndataset = "a/b"\nweight = 0.7\nepochs = 2\n[[parts]]\ndataset = "c/d"\nweight = 0.3\n'
    )
    (tmp_path / "lists.toml").write_text(
        'dataset = ["a/b", "c/d"]\nweight = [0.7, "30%"]\nepochs = [2, 1]\nmix-until = "all-exhausted"\n'
    )
    until = ["--mix-until", "all-exhausted"]
    parts = [{"dataset": "a/b", "weight": 0.7, "epochs": 2}, {"dataset": "c/d", "weight": 0.3}]
    found = [
        config_of("--part", "dataset=a/b weight=7 epochs=2", "--part", "dataset=c/d weight=3", *until),
        config_of("--dataset=a/b", "--weight=7", "--dataset=c/d", "--weight=3", "--epochs=2", "--epochs=1", *until),
        config_of(*api._flags({"parts": parts, "mix_until": "all-exhausted"})),
        config_of(*api._flags({"dataset": ["a/b", "c/d"], "weight": [7, 3.0], "epochs": [2, 1]}), *until),
        config_of(str(tmp_path / "parts.toml")),
        config_of(str(tmp_path / "lists.toml")),
    ]
    assert {config.mix for config in found} == {MixRule((7, 3), until_all=True)}
    assert {tuple(part.epochs for part in config.part_configs) for config in found} == {(2, 1)}
    prints = [[part.fingerprint() for part in config.part_configs] for config in found]
    assert prints == [prints[0]] * len(prints)


def test_one_weight_for_all_is_an_even_mix_and_none_is_no_mix() -> None:
    """What is given once is for all parts; the same part may be named twice."""
    assert config_of("--dataset", "a/b", "--dataset", "a/b", "--weight", "7").mix == MixRule((1, 1))
    assert config_of("--dataset", "a/b", "--dataset", "c/d").mix is None
    assert config_of("--dataset", "a/b", "--epochs", "3").mix is None
    assert config_of("--dataset", "a/b").fingerprint()["mix_until"] == "first-exhausted"


A, B = ["--part", "input=a"], ["--part", "input=b"]


@pytest.mark.parametrize(("words", "message", "hint"), [
    (["--part", "input=a weight=0", "--part", "input=b weight=1"], "Part 1: --weight 0: must be more than 0.", "out"),
    (["--part", "input=a weight=1", "--part", "input=b weight=-0.5"], "Part 2: --weight -0.5: must be more", "out"),
    ([*A, *B, "--weight=-1"], "Part 1: --weight -1: must be more than 0.", "out"),
    ([*A, *B, "--weight", "many"], "--weight: 'many' is not a number such as 7, 0.7 or 70%.", "help"),
    ([*A, "--part", "input=b weight=nan"], "--part: weight: 'nan' is not a number such as 7, 0.7 or 70%.", "help"),
    ([*A, "--part", "input=b weight=inf"], "--part: weight: 'inf' is not a number", "help"),
    ([*A, "--part", "input=b weight=7k"], "--part: weight: '7k' is not a number", "help"),
    ([*A, "--part", "input=b weight=2", *A],
     "Part 1 has no weight, but part 2 has --weight 2.", "Give every part a weight"),
    (["--input", "a", "--weight", "7"], "--weight 7: there is nothing to mix, because the input", "Name"),
    (["--part", "input=a weight=0.7"], "--weight 0.7: there is nothing to mix", "Name the others"),
    (["--part", "input=a weight=1e-7", "--part", "input=b weight=0.2"],
     "Part 1: --weight 1e-07: part 2 has more than a million times as much, --weight 0.2.", "closer"),
    (["--part", "input=a weight=0.3333333333333333", "--part", "input=b weight=0.14285714285714285"],
     "Part 1: --weight 0.333333333333: scaled with the others to whole numbers it is 6,666,666,666,666,666,", "Round"),
    (["--input", "a", "--input", "b", "--weight", "7", "--weight", "3"],
     "There are 2 --weight, but the input has only one part.", "--part 'input=PATH weight=2'"),
    (["--input", "a", "--epochs", "1", "--epochs", "2"], "There are 2 --epochs, but the input", "--part"),
    (["--dataset", "a/b", "--dataset", "c/d", "--weight", "1", "--weight", "2", "--weight", "3"],
     "There are 2 --dataset and 3 --weight.", "once per part"),
    ([*A, *B, "--weight", "1", "--weight", "2"], "Several --weight and --part exclude each other.", "--part"),
    ([*A, *B, "--mix-until", "first-exhausted"], "--mix-until first-exhausted: no part has a weight", "or leave"),
    (["--input", "a", "--mix-until", "all-exhausted"], "--mix-until all-exhausted: no part has a weight", "Give each"),
    ([*A, *B, "--weight", "1", "--mix-until", "first"], "'first' is not one of first-exhausted, all-exhausted", "help"),
    (["--input", "a", "--epochs", "0"], "--epochs 0: must be at least 1.", "help"),
    (["--input", "a", "--epochs", "-2"], "'-2' is below 0", "help"),
    (["--input", "a", "--epochs", "1.5"], "'1.5' is not a whole number", "help"),
    (["--part", "input=a epochs=10001"], "Part 1: --epochs 10,001: must be at most 10,000.", "--max-tokens"),
    (["--input", "-", "--epochs", "2"],
     "--epochs 2: --input - can be read only once.", "Write it to a file"),
    ([*A, "--part", "input=b layout=llm.c"], "layout can't be set per part.", "weight, epochs"),
])  # fmt: skip
def test_each_mistake_has_its_message(words: list[str], message: str, hint: str) -> None:
    """The flag, its value and the part, with the next step."""
    with pytest.raises(UsageError) as raised:
        config_of(*words)
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(("text", "message"), [
    ("weight = nan", "part 1: weight: 'nan' is not a number"),
    ("weight = -inf", "part 1: weight: '-inf' is not a number"),
    ("weight = true", "part 1: weight = True: must be a number or a string."),
    ("weight = [1, 2]", "part 1: weight = [1, 2]: must be a number or a string."),
    ("epochs = 1.5", "part 1: epochs: '1.5' is not a whole number."),
    ("mix_until = 'all-exhausted'", "part 1: mix_until can't be set per part."),
])  # fmt: skip
def test_each_mistake_in_a_file_has_its_message(tmp_path: Path, text: str, message: str) -> None:
    """The file, the part and the key."""
    path = tmp_path / "mine.toml"
    path.write_text(f"[[parts]]\ninput = 'a'\n{text}\n")
    with pytest.raises(UsageError) as raised:
        load_config(path, {"out": "out"}).check()
    assert message in str(raised.value)


def test_a_pipe_has_one_epoch(tmp_path: Path) -> None:
    """A named one, or a shell's; a file for validation is read once in any case."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="can be read only once"):
        config_of("--input", str(tmp_path / "pipe"), "--epochs", "2")
    config_of("--input", str(tmp_path / "pipe"), "--epochs", "1")
    config_of("--input", "a", "--val-input", str(tmp_path / "pipe"), "--epochs", "2")


def manifest_of(config: Config) -> Manifest:
    parts = tuple(InputPart(divide_settings(part.fingerprint())[1], [{"name": "a"}]) for part in config.part_configs)
    return Manifest(divide_settings(config.fingerprint())[0], parts, {})


@pytest.mark.promise("a changed source or setting is refused by name")
def test_a_resume_compares_the_ratio() -> None:
    """Written in another way it is the same; another one, other epochs and another end are refused by name."""

    def resume(begun: Config, now: Config) -> None:
        check_settings(manifest_of(begun), manifest_of(now), Config().fingerprint())

    begun = of_weights(7, 3)
    for weights in ((70, 30), (0.7, 0.3), (Fraction(7, 9), Fraction(3, 9))):
        resume(begun, of_weights(*weights, mix_until="first-exhausted"))
    with pytest.raises(ChangedError, match="--weight was 7:3 when this folder was begun and is 2:1 now"):
        resume(begun, of_weights(60, 30))
    with pytest.raises(ChangedError, match="--weight was 7:3 when this folder was begun and is not set now"):
        resume(begun, of_weights(None, None))
    with pytest.raises(ChangedError, match=r"--mix-until was first-exhausted .* is all-exhausted now"):
        resume(begun, of_weights(7, 3, mix_until="all-exhausted"))
    with pytest.raises(ChangedError, match=r"Part 1 \(a\): --epochs was 1 when this folder was begun and is 2 now"):
        resume(begun, of_weights(7, 3, epochs=2))


def test_a_folder_from_before_there_were_weights_resumes() -> None:
    """What is missing in its manifest is the default."""
    config = of_weights(None, None)
    old = manifest_of(config)
    del old.settings["mix_until"]
    for part in old.parts:
        del part.settings["weight"], part.settings["epochs"]
    check_settings(old, manifest_of(config), Config().fingerprint())
    with pytest.raises(ChangedError, match="--weight was not set when this folder was begun and is 7:3 now"):
        check_settings(old, manifest_of(of_weights(7, 3)), Config().fingerprint())


@pytest.mark.promise("a changed source or setting is refused by name")
def test_a_begun_mix_is_resumed_with_the_same_ratio_only(tmp_path: Path) -> None:
    """Written in any way; the manifest has whole numbers. With other weights or epochs nothing is touched."""
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} {number} some words" for number in range(200)])

    def build(*weights: str, epochs: int = 1) -> tuple[int, str]:
        parts = [f"input={tmp_path}/{name}.jsonl weight={one}" for name, one in zip("ab", weights, strict=True)]
        words = [*(f"--part={part}" for part in parts), "--epochs", epochs, "--out", tmp_path / "out"]
        done = inline.run_command("build", *words, "--shard-tokens", "100", "--workers", "1")
        return done.returncode, done.stderr

    assert build("0.7", "0.3", epochs=2)[0] == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [(part["settings"]["weight"], part["settings"]["epochs"]) for part in manifest["parts"]] == [(7, 2), (3, 2)]
    assert manifest["settings"]["mix_until"] == "first-exhausted"
    made = runs.shards_in(tmp_path / "out")
    runs.forget_after(tmp_path / "out", 2)
    code, said = build("60", "30", epochs=2)
    assert (code, "--weight was 7:3 when this folder was begun and is 2:1 now" in said) == (4, True)
    code, said = build("7", "3")
    assert (code, "--epochs was 2 when this folder was begun and is 1 now" in said) == (4, True)
    assert build("70%", "30%", epochs=2)[0] == 0
    assert runs.shards_in(tmp_path / "out") == made


def test_a_first_part_without_documents_is_named(tmp_path: Path) -> None:
    """The mix ends before it begins, though the other part has documents."""
    paths = write_jsonl(tmp_path / "none.jsonl", []), write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    words = [f"--part=input={path} weight=1" for path in paths]
    done = inline.run_command("build", *words, "--out", tmp_path / "out")
    assert done.returncode == 3
    assert "has no documents, so the mix ended at its first turn" in done.stderr


@pytest.mark.parametrize(("settings", "exit_code"), [([], 3), (["--shard-tokens", "3", "--val-tokens", "3"], 0)])
def test_another_part_without_documents_is_named(tmp_path: Path, settings: list[str], exit_code: int) -> None:
    """The mix ends after a document, and that is the reason: no size of shards or of validation would help. If all is
    for validation only by default, nothing is finished."""
    paths = write_jsonl(tmp_path / "a.jsonl", ["one", "two"]), write_jsonl(tmp_path / "none.jsonl", [])
    words = [f"--part=input={path} weight=1" for path in paths]
    done = inline.run_command("build", *words, "--out", tmp_path / "out", *settings)
    assert done.returncode == exit_code, done.stderr
    said = done.stdout + done.stderr
    assert "Part 2 (none.jsonl) has no documents, so the mix ended at its first turn, after 2 tokens." in said
    assert "or choose --mix-until all-exhausted" in said
    assert "nothing to train on" not in said
    assert bool(json.loads((tmp_path / "out" / "manifest.json").read_text())["shards"]) == (exit_code == 0)
    done = inline.run_command("build", *words, "--out", tmp_path / "out", *settings, "--mix-until", "all-exhausted")
    assert ("--fresh" in done.stderr) == (exit_code == 0)  # only what is finished is in the way


def test_a_folder_to_mix_that_lacks_a_key_or_has_another_is_refused() -> None:
    """Before anything runs: a misspelled `epochs` would otherwise be 1."""
    good: MixedFolder = {"folder": "web", "weight": 7}
    mistakes: list[tuple[Any, str]] = [
        ({"folder": "code"}, "mix: part 2 has folder."),
        ({"weight": 3}, "mix: part 2 has weight."),
        ({"folder": "code", "weight": 3, "epoch": 2}, "mix: part 2 has folder, weight, epoch."),
    ]
    for bad, message in mistakes:
        with pytest.raises(UsageError) as raised:
            api.export(mix=[good, bad], out="out")
        assert raised.value.message == message
