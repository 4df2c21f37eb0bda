"""Make a Config from flags and a TOML file, whose values are parsed alike.

The keys of a TOML file are the settings, with a table `[[parts]]` for each part of the input. On the command line a
part is `--part 'dataset=ORG/NAME where="score > 3"'`, and `--dataset A --dataset B` are two parts.
"""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fineweb_shards.errors import UsageError, closest, suggest
from fineweb_shards.run.config import OF_DATASET, PART_KEYS, Config
from fineweb_shards.units import parse_count, parse_weight


def load_config(path: Path | None, overrides: dict[str, Any]) -> Config:
    """Combine the `overrides` that are not None, then the TOML file, then the defaults."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = dict(_from_table(str(path), tomllib.loads(path.read_text("utf-8"))))
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}.", "Check the file and its permissions.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: not valid TOML: {error}.", "Correct that line.") from error
    given = {name: value for name, value in overrides.items() if value is not None}
    if given.keys() & {"dataset", "input", "parts"}:  # replaces the input of the file
        own = {"parts", "input"} if "dataset" in given else {"parts", "input", "val_input", *OF_DATASET}
        values = {name: value for name, value in values.items() if name not in own}
    values |= given
    # A list of one value is that value; longer lists have one value per part.
    lists = {
        field.name: values.pop(field.name)
        for field in dataclasses.fields(Config)
        if field.metadata["one_per_part"] and isinstance(values.get(field.name), (list, tuple))
    }
    values |= {name: items[0] for name, items in lists.items() if len(items) == 1}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    if lists := {name: items for name, items in lists.items() if len(items) > 1}:
        if values.get("parts"):
            hint = "Describe every part with --part and all its settings."
            raise UsageError(f"Several --{next(iter(lists))} and --part exclude each other.", hint)
        if not lists.keys() - {"weight", "epochs"}:  # else each part would be the whole input
            name, items = next(iter(lists.items()))
            hint = f"Set it for each part, as in --part 'input=PATH {name}=2'."
            raise UsageError(f"There are {len(items)} --{name}, but the input has only one part.", hint)
        if len({len(items) for items in lists.values()}) > 1:
            counts = " and ".join(f"{len(items)} --{name}" for name, items in lists.items())
            raise UsageError(f"There are {counts}.", "Give each flag once, or once per part.")
        rows = zip(*lists.values(), strict=True)
        values["parts"] = tuple(dict(zip(lists, row, strict=True)) for row in rows)
    return Config(**values)


def parse_value(field: dataclasses.Field[Any], text: str) -> Any:
    """Parse a value from the command line or a TOML string; may raise ValueError."""
    choices = field.metadata["choices"]
    if choices and text not in choices:
        match = closest(text, choices)
        meant = f" (did you mean {match}?)" if match else ""
        raise ValueError(f"{text!r} is not one of {', '.join(choices)}{meant}")
    if field.name in ("separator", "template"):
        return text.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r")
    return field.metadata["parse"](text)


def _from_table(where: str, data: Mapping[str, Any], *, of_part: bool = False) -> Iterator[tuple[str, Any]]:
    fields = {field.name: field for field in dataclasses.fields(Config)}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in fields:
            hint = "The keys are the flags that `fineweb-shards build --help` lists."
            raise UsageError(f"{where}: unknown key {key!r}.", suggest(key, PART_KEYS if of_part else fields, hint))
        if of_part and name not in PART_KEYS:
            raise UsageError(f"{where}: {key} can't be set per part.", f"A part may have {', '.join(PART_KEYS)}.")
        if name == "parts":
            if not isinstance(value, list) or not all(isinstance(one, dict) for one in value) or not value:
                raise UsageError(f"{where}: parts must be tables.", "Write each below a line [[parts]].")
            tables = enumerate(value, 1)
            yield name, tuple(dict(_from_table(f"{where}: part {n}", one, of_part=True)) for n, one in tables)
        else:
            yield name, _from_toml(where, fields[name], value, of_part=of_part)


def _from_toml(where: str, field: dataclasses.Field[Any], value: Any, *, of_part: bool) -> Any:
    if field.metadata["one_per_part"] and isinstance(value, list) and not of_part:
        return tuple(_from_toml(where, field, item, of_part=True) for item in value)
    if isinstance(field.default, tuple):
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list) and all(isinstance(item, str) for item in items):
            return tuple(items)
        wanted = "a string or a list of strings"
    elif isinstance(field.default, bool):
        if isinstance(value, bool):
            return value
        wanted = "true or false, without quotes"
    elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return parse_value(field, str(value))
        except ValueError as error:
            raise UsageError(f"{where}: {field.name}: {error}.") from error
    else:
        wanted = "a number or a string"
    raise UsageError(f"{where}: {field.name} = {value!r}: must be {wanted}.")


def parse_part(text: str) -> dict[str, Any]:
    """Parse the value of --part, `dataset=ORG/NAME where='score > 3'`, quoted as in a shell."""
    values: dict[str, Any] = {}
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise ValueError(f"{word!r} is not a setting such as dataset=ORG/NAME")
        key = name.replace("-", "_")
        if key in ("input", "val_input"):  # repeatable
            values.setdefault(key, []).append(value)
        elif key in values:
            raise ValueError(f"{name} is given twice: {values[key]} and {value}")
        else:
            values[key] = value
    if not values:
        raise ValueError("a part needs at least dataset=ORG/NAME or input=PATH")
    return dict(_from_table("--part", values, of_part=True))


def parse_mixed(text: str) -> dict[str, Any]:
    """Parse the value of --mix, `DIR=7` or `DIR=7,epochs=2`; DIR may contain commas and equals signs."""
    head, comma, epochs = text.rpartition(",epochs=")
    if not comma or "=" in epochs:
        head, epochs = text, "1"
    folder, _, weight = head.rpartition("=")
    if not folder:
        raise ValueError(f"{text!r} is not a folder with a weight, such as shards=7 or shards=7,epochs=2")
    return {"input": (folder,), "weight": parse_weight(weight), "epochs": parse_count(epochs)}
