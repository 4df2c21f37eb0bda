"""The documentation keeps up: every verb, flag, config key and exit code is written down."""

from __future__ import annotations

import argparse
import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from fineweb_shards import errors
from fineweb_shards.commands.main import VERBS, make_parsers
from fineweb_shards.run.config import Config, load_config

ROOT = Path(__file__).parent.parent
TEXT = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])


def verbs() -> dict[str, argparse.ArgumentParser]:
    return dict(make_parsers(VERBS)[1])


def flags() -> set[str]:
    return {
        option
        for parser in [make_parsers(())[0], *verbs().values()]
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and not option.startswith("--no-")
    }


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_is_documented(verb: str) -> None:
    """In the README or in docs/."""
    assert f"fineweb-shards {verb}" in TEXT


@pytest.mark.parametrize("flag", sorted(flags()))
def test_every_flag_is_documented(flag: str) -> None:
    """In the README or in docs/."""
    assert re.search(rf"{flag}\b", TEXT)


def test_no_documented_flag_is_missing() -> None:
    """Nothing is promised that the command does not have."""
    sections = re.findall(r"fineweb-shards [^\n`]*", TEXT)
    promised = {flag for line in sections for flag in re.findall(r"(?<!\S)--[a-z][a-z-]+", line)}
    assert promised <= flags() | {"--no-verify"}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Config)])
def test_every_config_key_is_documented(field: str) -> None:
    """As a key, next to its flag."""
    assert f"`{field}`" in TEXT


@pytest.mark.parametrize("target", re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
def test_every_make_target_is_documented(target: str) -> None:
    """In the README or in docs/."""
    assert f"make {target}" in TEXT or f"make {target}" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_is_valid_and_documented(path: Path) -> None:
    """It loads, and the README or docs name it."""
    load_config(path, {}).check()
    assert path.stem in TEXT
    assert tomllib.loads(path.read_text())


def test_every_exit_code_is_documented() -> None:
    """In one table."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.ShardError):
            assert re.search(rf"\| {kind.exit_code} +\|", TEXT), kind


def test_the_wheel_holds_the_ranks_and_the_samples() -> None:
    """What is installed has the vocabulary and its notice, and the configs from the top of the project."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert data["tool"]["setuptools"]["package-dir"] == {"fineweb_shards.configs": "configs"}
    assert data["tool"]["setuptools"]["package-data"]["fineweb_shards.configs"] == ["*.toml"]
    assert set(data["tool"]["setuptools"]["package-data"]["fineweb_shards.tokenizers"]) == {
        "gpt2.tiktoken",
        "NOTICE.md",
    }
    packages = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for path in ROOT.glob("fineweb_shards/**/__init__.py")
    }
    assert set(data["tool"]["setuptools"]["packages"]) == packages | {"fineweb_shards.configs"}
