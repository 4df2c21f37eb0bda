"""Interpret the command line with argparse, but explain a mistake in one sentence, with a hint at what was meant.

The words after a subcommand are a bundled sample, a TOML file, input, or an output folder. A sample's name (`demo`,
`sample-10BT` and so on) means the sample, whatever is in the current folder: the same command must always mean the same
thing. For subcommands that take an output folder, though, an existing folder of that name has precedence.

The samples exist once, in the project's folder `configs`. A wheel maps it into the package (see pyproject.toml); in a
checkout, and so in an editable install, it is beside the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from fineweb_shards.errors import InputError, OutputError, UsageError, closest, suggest
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import FILE_NAME
from fineweb_shards.output.opening import open_store_to_read
from fineweb_shards.output.store import Store
from fineweb_shards.run.config import Config
from fineweb_shards.run.config_sources import load_config, parse_part, parse_value
from fineweb_shards.storage.bucket_address import is_url
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.shell_commands import PROGRAM
from fineweb_shards.units import as_typed
from fineweb_shards.watching.screen import LineScreen, WaitsOnScreen

_DATASET = re.compile(r"[\w.-]+/[\w.-]+")
_PACKAGE = Path(__file__).parent.parent
_LOOKS_LIKE_A_FLAG = re.compile(r"--?[A-Za-z]")
_REQUIRED = "the following arguments are required: "
# How --help groups the settings; every field of Config is in one group.
SETTING_GROUPS = {
    "input": ("input", "format", "text_column", "tokens_column", "template", "separator", "on_bad_file"),
    "input on the Hugging Face hub": ("dataset", "name", "split", "revision", "download", "keep_downloads"),
    "input of several parts": ("parts", "weight", "epochs", "mix_until"),
    "which documents": ("where", "sample", "sample_seed", "min_tokens", "max_document_tokens", "max_tokens"),
    "tokenizer": ("tokenizer", "pattern", "eot", "engine", "seed"),
    "output": ("out", "layout", "shard_tokens", "shuffle", "scratch", "last_shard", "index", "verify", "gpus"),
    "validation": ("val_tokens", "val_documents", "val_ratio", "val_seed", "val_input"),
    "machine": ("workers", "max_memory", "batch_bytes", "priority", "executor", "ray_address", "max_outage"),
}
_UNITS = """\
units:
  N     8, 250_000, 100M or 1e8 (k, M, B, T)
  SIZE  4MiB, 500MB or 2G, which is 2GiB
  TIME  90s, 15min, 1h or 2d"""


class CommandParser(argparse.ArgumentParser):
    """A parser that raises a UsageError for a mistake instead of exiting; so do the parsers of its subcommands."""

    def __init__(self, **settings: Any) -> None:
        raw = argparse.RawDescriptionHelpFormatter  # keeps the line breaks of the examples
        super().__init__(**{**settings, "allow_abbrev": False, "formatter_class": raw})

    def error(self, message: str) -> NoReturn:
        if message.startswith(_REQUIRED):
            message = f"{message.removeprefix(_REQUIRED)} is missing"
        message = re.sub(r"\bargument (?=-)", "", message)
        hint = f"See `{self.prog} --help`."
        if message.endswith("expected one argument"):
            hint = f"{hint} Write a value that begins with a dash with an equals sign: --flag=-value."
        raise UsageError(f"{message}.", hint)

    # argparse has overloads for other kinds of namespaces; here only the plain one occurs.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        flags = self._option_string_actions
        for word in takewhile(lambda word: word != "--", args or []):
            flag = word.partition("=")[0]
            if _LOOKS_LIKE_A_FLAG.match(flag) and flag not in flags:
                names = {name.removeprefix("--"): name for name in flags if name.startswith("--")}
                match = closest(flag.lstrip("-").replace("_", "-"), names)
                hint = f"Did you mean {names[match]}?" if match else f"See `{self.prog} --help`."
                raise UsageError(f"{flag}: unknown flag.", hint)
        options, more = super().parse_known_args(args, namespace)
        if more and isinstance(getattr(options, "targets", None), list):
            options.targets += more  # argparse takes only adjacent ones, so not b in `a.txt --out o b.txt`
        elif more:
            raise UsageError(f"{more[0]}: unexpected argument.", f"See `{self.prog} --help`.")
        return options, []

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Python 3.11 and 3.12 drop a `--` even if it is the value of a flag.
        if action.option_strings and arg_strings == ["--"]:
            return self._get_value(action, "--")
        return super()._get_values(action, arg_strings)


def check_subcommand(words: Sequence[str], subcommands: Collection[str]) -> None:
    """Raise UsageError if the first word is no subcommand, and suggest what was probably meant."""
    word = words[0] if words else ""
    if word in subcommands or word.partition("=")[0] in ("-h", "--help", "--version"):
        return
    hint = f"Use one of {', '.join(subcommands)}; for example `{PROGRAM} build demo`."
    if match := closest(word, subcommands):
        hint = f"Did you mean `{PROGRAM} {match}`?"
    elif word in bundled_configs():
        hint = f"Did you mean `{PROGRAM} build {word}`?"
    raise UsageError(f"{word}: unknown subcommand." if word else "The subcommand is missing.", hint)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what to build: TARGET, --config, and a flag for every field of Config."""
    text = f"a sample ({', '.join(bundled_configs())}), a TOML file (.toml), or input: files, folders, globs. "
    text += "A sample's name always means the sample; write ./NAME for a path of that name"
    parser.add_argument("targets", metavar="TARGET", nargs="*", help=text)
    parser.add_argument("--config", metavar="FILE", help="a TOML file or a sample; flags override it")
    for title, names in SETTING_GROUPS.items():
        add_setting_flags(parser.add_argument_group(title), names)
    parser.usage = f"{parser.prog} [TARGET ...] [--out DIR|URL] [options]"  # argparse's would be 20 lines
    parser.epilog = f"{_UNITS}\n\n{parser.epilog}"


def add_setting_flags(parser: argparse._ActionsContainer, names: Iterable[str]) -> None:
    fields = {field.name: field for field in dataclasses.fields(Config)}
    for field in (fields[name] for name in names):
        flag = field.metadata["flag"] or "--" + field.name.replace("_", "-")
        parse = parse_part if field.name == "parts" else partial(parse_value, field)
        if isinstance(field.default, bool):
            both = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=both, default=None, help=field.metadata["help"])
            continue
        default = field.default if field.default not in ((), None, "") else None
        shown = as_typed(default, field.metadata["parse"]) if isinstance(default, int) else default
        text = field.metadata["help"] + (f" (default: {shown})" if default is not None else "")
        repeatable = isinstance(field.default, tuple) or field.metadata["one_per_part"]
        parser.add_argument(
            flag,
            dest=field.name,
            action="append" if repeatable else "store",
            type=as_argument(parse),
            metavar=field.metadata["metavar"] or "{" + ",".join(field.metadata["choices"]) + "}",
            help=text.replace("%", "%%"),
        )


def as_argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap the parser of a flag's value: a ValueError becomes an ArgumentTypeError, whose message argparse shows."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def add_fresh_flags(parser: argparse.ArgumentParser) -> None:
    text = "delete what an earlier build made in --out, after confirmation, and start over"
    parser.add_argument("--fresh", action="store_true", help=text)
    parser.add_argument("--yes", action="store_true", help="with --fresh: don't ask for confirmation, for scripts")


def read_config(options: argparse.Namespace) -> Config:
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Config)}
    targets, config = options.targets, options.config
    if configs := [word for word in targets if is_config(word)]:
        name = configs[0]
        if config is not None or len(targets) > 1:
            other = next((word for word in targets if word is not name), f"--config {config}")
            hint = f"To read other files with its settings: {name} --input PATH"
            raise UsageError(f"{name} {other}: a sample or TOML file must be the only target.", hint)
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
        hint = suggest(word, bundled_configs(), f"The samples are {', '.join(bundled_configs())}.")
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
    hint = suggest(text, {*here, *bundled_configs()}, f"The samples are {', '.join(bundled_configs())}.")
    raise UsageError(f"--config {text}: no such TOML file or sample.", hint)
