"""Read values from this program's own JSON files and check their types: ValueError for a damaged file.

Python's `json` accepts NaN, numbers of a thousand digits, and a list where a number should be, each of which would
cause a traceback later. (msgspec was tried: it ignores unknown fields of a dataclass and accepts numbers of any length,
so most of this file would stay.)
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

_LARGEST_NUMBER = 2**62  # fits in 64 bits; no count, size or time comes near it
_IN_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text",
    bool: "true or false", dict: "an object", list: "a list",
}  # fmt: skip

Made = TypeVar("Made")


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse JSON that must be an object; ValueError if it is invalid, nested too deeply, or has NaN or Infinity."""
    try:
        return expect("it", json.loads(data.decode("utf-8"), parse_constant=_refuse_constant), dict)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not valid UTF-8 at byte {error.start:,}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None


def expect(name: str, value: Any, kind: type[Made]) -> Made:
    """Return `value` as this type (dict, list, str, int, float, bool or a dataclass), or raise ValueError."""
    return typing.cast(Made, _convert(name, value, kind))


def _convert(name: str, value: Any, kind: Any) -> Any:
    if words := _IN_WORDS.get(kind):
        is_kind = type(value) is kind or (kind is float and type(value) is int)
        if not is_kind or (kind in (int, float) and not abs(value) <= _LARGEST_NUMBER):  # or NaN
            raise _wrong(name, value, words)
        return float(value) if kind is float else value
    if hasattr(kind, "__dataclass_fields__"):
        fields, required = _fields_of(kind)
        found = _convert(name, value, dict)
        if not required <= found.keys():
            raise ValueError(f"{min(required - found.keys())} is missing")
        if not found.keys() <= fields.keys():
            raise ValueError(f"{min(found.keys() - fields.keys())!r} is unknown")
        return kind(**{field: _convert(field, one, fields[field]) for field, one in found.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _wrong(name, value, f"one of {', '.join(arguments)}")
        return value
    if origin in (types.UnionType, typing.Union):
        (other,) = (one for one in arguments if one is not types.NoneType)
        return None if value is None else _convert(name, value, other)
    if origin is tuple:  # of any length: tuple[Kind, ...]
        return tuple(_convert(name, one, arguments[0]) for one in expect(name, value, list))
    assert origin is Mapping
    return {key: _convert(key, one, arguments[1]) for key, one in expect(name, value, dict).items()}


def get(values: dict[str, Any], name: str, kind: type[Made]) -> Made:
    if name not in values:
        raise ValueError(f"{name} is missing")
    return expect(name, values[name], kind)


def make(kind: type[Made], value: Any) -> Made:
    """Build a dataclass from a JSON object with all required fields and no unknown ones."""
    return expect(kind.__name__, value, kind)


def check_moment(seconds: float) -> None:
    """Raise ValueError for seconds since 1970 that can't be shown as a date."""
    if not 0 <= seconds <= 253_402_300_799:  # the end of the year 9999
        raise ValueError(f"{seconds} is not a date")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it contains {name}, which is not a number")


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the types of a dataclass's fields, and the names of the required ones."""
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    missing = dataclasses.MISSING
    required = {one.name for one in fields if one.default is missing and one.default_factory is missing}
    return {one.name: hints[one.name] for one in fields}, required


def _wrong(name: str, value: Any, words: str) -> ValueError:
    if isinstance(value, dict | list):
        shown = _IN_WORDS[type(value)]
    elif isinstance(value, int) and value.bit_length() > 256:
        shown = "a huge number"  # Python refuses to format one of ten thousand digits
    else:
        shown = f"{value!r:.60}"
    return ValueError(f"{name} is {shown}, which is not {words}")
