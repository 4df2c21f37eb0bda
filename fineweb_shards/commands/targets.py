"""Interpret the words after a subcommand: a bundled sample, a TOML file, input, or an output folder.

A sample's name (`demo`, `sample-10BT` and so on) means the sample, whatever is in the current folder: the same command
must always mean the same thing. For subcommands that take an output folder, though, an existing folder of that name has
precedence.

The samples exist once, in the project's folder `configs`. A wheel maps it into the package (see pyproject.toml); in a
checkout, and so in an editable install, it is beside the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import os
import re
from functools import cache
from pathlib import Path

from fineweb_shards.errors import InputError, OutputError, UsageError, closest, suggest
from fineweb_shards.run.config import Config
from fineweb_shards.run.config_sources import load_config
from fineweb_shards.storage.bucket_address import is_url
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.manifest import FILE_NAME
from fineweb_shards.store.opening import open_store_to_read
from fineweb_shards.store.store import Store
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.shell_commands import PROGRAM
from fineweb_shards.watching.screen import LineScreen, WaitsOnScreen

_DATASET = re.compile(r"[\w.-]+/[\w.-]+")
_PACKAGE = Path(__file__).parent.parent


def read_config(options: argparse.Namespace) -> Config:
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Config)}
    targets, config = options.targets, options.config
    if configs := [word for word in targets if is_config(word)]:
        name = configs[0]
        if config is not None or len(targets) > 1:
            other = next((word for word in targets if word is not name), f"--config {config}")
            raise UsageError(
                f"{name} {other}: a sample or TOML file must be the only target.",
                f"To read other files with its settings: {name} --input PATH",
            )
        if name in bundled_configs() and Path(name).exists() and not is_build_folder(Path(name)):
            LineScreen().warn(f"note: {name} means the sample; to use the file or folder here, write ./{name}")
        config, targets = name, []
    for word in targets:
        _check_exists(word)
    if targets and given["input"]:
        word = f"{targets[0]} --input {given['input'][0]}"
        raise UsageError(f"{word}: the input is given twice.", "Use only one of them.")
    given["input"] = targets or given["input"]
    if config is None and not any(given[name] for name in ("input", "dataset", "parts", "out")):
        raise UsageError(
            "There is nothing to build.",
            f"Name a sample (`{PROGRAM} build demo`), or files and a folder "
            f"(`{PROGRAM} build 'data/*.parquet' --out shards`).",
        )
    return load_config(None if config is None else find_config(config), given)


@cache
def bundled_configs() -> dict[str, Path]:
    places = [_PACKAGE / "configs"]
    if (_PACKAGE.parent / "pyproject.toml").is_file():  # else a `configs` there belongs to another package
        places.append(_PACKAGE.parent / "configs")
    return {path.stem: path for place in places for path in sorted(place.glob("*.toml"))}


def is_config(word: str) -> bool:
    return word in bundled_configs() or word.lower().endswith(".toml")


def read_store(word: str) -> Store:
    """Return the output that a word means: its address, or the sample or TOML file it was built with."""
    if is_url(word):
        return open_store_to_read(word, WaitsOnScreen(LineScreen()))
    folder = Path(os.path.expanduser(word))
    if is_config(word) and not is_build_folder(folder):
        config = load_config(find_config(word), {})
        if not config.out:
            raise UsageError(f"{word}: the file sets no output folder.", "Name the folder itself.")
        return open_store_to_read(config.out, WaitsOnScreen(LineScreen()))
    if not os.path.exists(folder) and (meant := closest(word, bundled_configs())):
        raise OutputError(f"{word}: no such folder or sample.", f"Did you mean {meant}?")
    return FolderStore(folder)


def is_build_folder(folder: Path) -> bool:
    return os.path.isdir(folder / WORK_FOLDER) or os.path.isfile(folder / FILE_NAME)


def _check_exists(word: str) -> None:
    """Raise InputError for a misspelt sample, or a dataset; discovery reports other missing files."""
    if not word:
        raise InputError("'': the name of the input is empty.", "Is a shell variable unset?")
    path = Path(os.path.expanduser(word))
    if word == "-" or os.path.lexists(path) or glob.has_magic(word) or "{stdlib}" in word:
        return
    if path.name == word and not path.suffix:
        hint = suggest(word, bundled_configs(), samples_hint())
        raise InputError(f"{word}: no such sample, file or folder.", hint)
    if _DATASET.fullmatch(word) and not path.suffix:
        hint = f"If it is a dataset on the Hugging Face hub: --dataset {word}"
        raise InputError(f"{word}: no such file or folder.", hint)


def find_config(text: str) -> Path:
    """Return the file that `--config TEXT` means: a bundled name, or the path of a TOML file."""
    if text in bundled_configs():
        return bundled_configs()[text]
    path = Path(os.path.expanduser(text))
    if os.path.isfile(path):
        return path
    here = {str(other) for other in path.parent.glob("*.toml") if other.name != "pyproject.toml"}
    hint = suggest(text, {*here, *bundled_configs()}, samples_hint())
    raise UsageError(f"--config {text}: no such TOML file or sample.", hint)


def samples_hint() -> str:
    return f"The samples are {', '.join(bundled_configs())}."
