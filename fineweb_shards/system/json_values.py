"""Read values from this program's own JSON files and check their types: ValueError for a damaged file.

Python's `json` accepts NaN, numbers of a thousand digits, and a list where a number should be. All of them
would end in a traceback a little later.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

_LAST_MOMENT = 253_402_300_799.0  # of the year 9999

Made = TypeVar("Made")
Check = Callable[[str, Any], Any]
_LARGEST_NUMBER = 2**62  # fits into 64 bits; no count, size or time comes near it


def parse_json(data: bytes) -> Any:
    """Parse a JSON text; ValueError if it is invalid, nested too deeply, or holds NaN or Infinity."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not valid UTF-8 at byte {error.start:,}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no valid JSON: {error}") from None


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON text that must be an object."""
    return expect("it", parse_json(data), dict)


def expect(name: str, value: Any, kind: type[Made]) -> Made:
    """Return `value` as this type (dict, list, str, int, float, bool or a dataclass), or raise ValueError."""
    check: Check = _check_of(typing.cast(Any, kind))
    made: Made = check(name, value)
    return made


def get(values: dict[str, Any], name: str, kind: type[Made]) -> Made:
    """Return a required field of an object, checked to be of this type."""
    if name not in values:
        raise ValueError(f"{name} is missing")
    return expect(name, values[name], kind)


def make(kind: type[Made], value: Any) -> Made:
    """Build a dataclass from a JSON object, which must have the required fields and no unknown ones."""
    return expect(kind.__name__, value, kind)


def check_moment(seconds: float) -> None:
    """Raise ValueError for seconds since 1970 that can't be shown as a date."""
    if not 0 <= seconds <= _LAST_MOMENT:
        raise ValueError(f"{seconds} is no date")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is no number")


@cache
def _check_of(kind: Any) -> Check:
    """Return the function that checks a JSON value and turns it into a value of this type."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin = typing.get_origin(kind)
    if origin is Literal:
        return _literal_check(typing.get_args(kind))
    if origin in (types.UnionType, typing.Union):
        (other,) = (one for one in typing.get_args(kind) if one is not types.NoneType)
        check = _check_of(other)
        return lambda name, value: None if value is None else check(name, value)
    if origin is Mapping:
        check = _check_of(typing.get_args(kind)[1])
        return lambda name, value: {key: check(key, one) for key, one in expect(name, value, dict).items()}
    return _dataclass_check(kind)


@cache
def _dataclass_check(kind: Any) -> Check:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _check_of(hints[field.name]) for field in dataclasses.fields(kind)}
    required = {
        field.name for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }  # fmt: skip

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(name, value, "an object")
        if not required <= value.keys():
            raise ValueError(f"{min(required - value.keys())} is missing")
        if not value.keys() <= fields.keys():
            raise ValueError(f"{min(value.keys() - fields.keys())!r} is unknown")
        return kind(**{field: fields[field](field, one) for field, one in value.items()})

    return check


def _literal_check(choices: tuple[Any, ...]) -> Check:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(name, value, f"one of {', '.join(choices)}")
        return value

    return check


def _check_int(name: str, value: Any) -> int:
    if type(value) is not int or not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:
        raise _wrong(name, value, "a whole number")
    return value


def _check_float(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= _LARGEST_NUMBER or not math.isfinite(value):
        raise _wrong(name, value, "a number")
    return float(value)


def _check_exact(kind: type, words: str) -> Check:
    def check(name: str, value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(name, value, words)
        return value

    return check


def _wrong(name: str, value: Any, words: str) -> ValueError:
    return ValueError(f"{name} is {_show(value)}, which is not {words}")


def _show(value: Any) -> str:
    """Shorten a value for a message; Python refuses to format a number of ten thousand digits."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    return f"{value!r:.60}"


_SIMPLE: dict[Any, Check] = {
    int: _check_int,
    float: _check_float,
    str: _check_exact(str, "a text"),
    bool: _check_exact(bool, "true or false"),
    dict: _check_exact(dict, "an object"),
    list: _check_exact(list, "a list"),
}
