"""Define what a `--where` condition is made of; where_parser.py makes one, row_filter.py applies it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Value = int | float | str | bool
Operator = Literal["=", "<", "<=", ">", ">=", "contains", "starts with"]
Kind = Literal["number", "text", "truth", "any"]  # of values; any: only whether there is one matters
IN_WORDS: dict[Kind, str] = {
    "number": "a number", "text": "a text", "truth": "true or false", "any": "anything"
}  # fmt: skip


@dataclass(frozen=True)
class Compare:
    """A comparison of a column with a value."""

    column: str
    operator: Operator
    value: Value


@dataclass(frozen=True)
class IsNull:
    """Whether a column has no value."""

    column: str


@dataclass(frozen=True)
class Not:
    """The opposite of a condition."""

    condition: Condition


@dataclass(frozen=True)
class AllOf:
    """True if every one of several conditions is."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """True if one of several conditions is."""

    conditions: tuple[Condition, ...]


Condition = Compare | IsNull | Not | AllOf | AnyOf


@dataclass(frozen=True)
class Where:
    """A condition on documents, and the columns it needs with the kind of value each must have."""

    condition: Condition
    kinds: tuple[tuple[str, Kind], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.kinds)


def kind_of(value: object) -> Kind | None:
    """Return the kind of a value from a condition or from JSON; None if no condition can be about it."""
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else None


def kinds_in(condition: Condition) -> Iterator[tuple[str, Kind]]:
    """Yield each column of a condition with the kind of value that it is compared with."""
    match condition:
        case Compare(column, _, value):
            yield column, kind_of(value) or "any"
        case IsNull(column):
            yield column, "any"
        case Not(inner):
            yield from kinds_in(inner)
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from kinds_in(part)
