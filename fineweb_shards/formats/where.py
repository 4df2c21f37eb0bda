"""Parse `--where`: a condition on the columns or JSON keys of a document. No I/O, and no `eval`.

    condition   alternative (or alternative)*           alternative   term (and term)*
    term        not term | ( condition ) | comparison
    comparison  NAME | NAME is [not] null | NAME [not] in ( VALUE, … )
              | NAME [not] contains TEXT | NAME [not] starts with TEXT
              | NAME OPERATOR VALUE | VALUE OPERATOR NAME          operators: = == != < <= > >=

A value is a number, a text in ' or ", true or false. docs/input.md defines the meaning; row_filter.py applies a
condition to rows.

Python's `ast` would only replace the functions for `or`, `and` and `not`: everything else would need translating first,
after which a SyntaxError could name neither the missing part nor its position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn

from fineweb_shards.errors import UsageError

Value = int | float | str | bool
Operator = Literal["=", "<", "<=", ">", ">=", "contains", "starts with"]
Kind = Literal["number", "text", "truth", "any"]  # of values; any: only whether it is null matters
IN_WORDS: dict[Kind, str] = {
    "number": "a number", "text": "a text", "truth": "true or false", "any": "anything"
}  # fmt: skip
MOST_CHARACTERS = 10_000
MOST_NESTED = 100
_EXAMPLE = "For example: --where 'int_score >= 4 and language_score > 0.8'"
_WORDS = {"and", "or", "not", "is", "in", "null", "contains", "starts", "with"}
_SIGNS = ("=", "!=", "<", "<=", ">", ">=")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<name>[^\W\d][\w.]*)
      | (?P<sign><=|>=|==|!=|[=<>(),])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Compare:
    column: str
    operator: Operator
    value: Value


@dataclass(frozen=True)
class IsNull:
    column: str


@dataclass(frozen=True)
class Not:
    condition: Condition


@dataclass(frozen=True)
class AllOf:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    conditions: tuple[Condition, ...]


Condition = Compare | IsNull | Not | AllOf | AnyOf


@dataclass(frozen=True)
class Where:
    """A condition on documents, and its columns with the kind of their values."""

    condition: Condition
    kinds: tuple[tuple[str, Kind], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.kinds)


def kind_of(value: object) -> Kind | None:
    """Return the kind of a value from a condition or from JSON; None for any other type."""
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else None


def parse_where(text: str) -> Where:
    """Parse a condition; UsageError, with the position, if it is malformed."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"--where: {len(text):,} characters are too many; {MOST_CHARACTERS:,} are allowed.")
    if not text.strip():
        raise UsageError("--where: the condition is empty.", _EXAMPLE)
    parser = _Parser(text)
    condition = parser.condition()
    parser.require("end", "`and`, `or` or the end")
    return Where(condition, tuple(parser.kinds.items()))


class _Token(NamedTuple):
    """A name or value and its position; or a keyword, a sign or the end, named by `kind`."""

    kind: str
    value: Value
    place: int


class _Parser:
    def __init__(self, text: str) -> None:
        self.kinds: dict[str, Kind] = {}  # of the values that each column is compared with
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._nested = 0

    def _split(self) -> Iterator[_Token]:
        position, end = 0, len(self._text.rstrip())
        while position < end:
            found = _TOKEN.match(self._text, position)
            if found is None:
                begin = end - len(self._text[position:end].lstrip())
                character = self._text[begin]
                problem = f"unexpected character {character!r}"
                if character in "'\"`":
                    problem = f"the quote {character} is never closed"
                elif character.isdigit() or character in "+-.":
                    problem = "this is not a number"
                self._refuse(problem, begin)
            kind = found.lastgroup or ""
            text, place, position = found[kind], found.start(kind), found.end()
            word = text.lower() if kind == "name" else ""
            if kind == "sign":
                yield _Token("=" if text == "==" else text, text, place)
            elif word in _WORDS:
                yield _Token(word, text, place)
            elif word in ("true", "false"):
                yield _Token("value", word == "true", place)
            elif kind == "number":
                if math.isinf(float(text)):
                    self._refuse("this number is too large", place)
                yield _Token("value", int(text) if text.lstrip("+-").isdigit() else float(text), place)
            else:
                unquoted = text if kind == "name" else text[1:-1].replace(text[0] * 2, text[0])
                yield _Token("value" if kind == "text" else "name", unquoted, place)
        yield _Token("end", "", end)

    def condition(self) -> Condition:
        return self._join("or", AnyOf, lambda: self._join("and", AllOf, self._term))

    def _join(self, word: str, make: type[AllOf] | type[AnyOf], part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else make(tuple(parts))

    def _term(self) -> Condition:
        self._nested += 1
        if self._nested > MOST_NESTED:
            self._refuse(f"more than {MOST_NESTED} parentheses or `not` are nested", self._peek.place)
        if self._take("not"):
            term: Condition = Not(self._term())
        elif self._take("("):
            term = self.condition()
            self.require(")")
        else:
            term = self._comparison()
        self._nested -= 1
        return term

    def _comparison(self) -> Condition:
        if value := self._take("value"):
            sign = self._take(*_SIGNS) or self._expected("an operator such as = or >=")
            return self._compare(self._column(), _FLIPPED.get(sign.kind, sign.kind), value)
        column = self._column()
        if operator := self._take(*_SIGNS):
            if self._peek.kind == "name":
                self._refuse("a column is compared with a value, not with another column", self._peek.place)
            return self._compare(column, operator.kind, self._value())
        is_null = self._take("is")
        if not is_null and self._peek.kind not in ("not", "in", "contains", "starts"):
            return self._test(column, "=", True)  # a single column of true and false
        negated = self._take("not")
        if is_null:
            self.require("null")
            self._note(column, "any")
            test: Condition = IsNull(column)
        elif self._take("in"):
            self.require("(")
            values = [self._value()]
            while self._take(","):
                values.append(self._value())
            self.require(")")
            test = AnyOf(tuple(self._test(column, "=", value.value) for value in values))
        else:
            starts = self._take("starts")
            self.require("with" if starts else "contains")
            if not isinstance(self._peek.value, str) or self._peek.kind != "value":
                self._expected("a text in quotes")
            test = self._test(column, "starts with" if starts else "contains", self._value().value)
        return Not(test) if negated else test

    def _compare(self, column: str, sign: str, value: _Token) -> Condition:
        if self._peek.kind in _SIGNS:
            self._refuse("one comparison follows another; join the two with `and`", self._peek.place)
        if isinstance(value.value, bool) and sign not in ("=", "!="):
            self._refuse("true and false are only compared with = and !=", value.place)
        if sign == "!=":
            return Not(self._test(column, "=", value.value))
        return self._test(column, sign, value.value)  # type: ignore[arg-type] # one of the signs

    def _test(self, column: str, operator: Operator, value: Value) -> Condition:
        self._note(column, kind_of(value) or "any")
        return Compare(column, operator, value)

    def _note(self, column: str, kind: Kind) -> None:
        """Record the kind of value a column is compared with; UsageError if it differs from an earlier one."""
        known = self.kinds.setdefault(column, kind)
        if known == "any":
            self.kinds[column] = kind
        elif kind not in ("any", known):
            raise UsageError(
                f"--where: {column!r} is compared with {IN_WORDS[known]} and with {IN_WORDS[kind]}; "
                "a column holds one kind of value.",
                _EXAMPLE,
            )

    def _column(self) -> str:
        return str((self._take("name") or self._expected("the name of a column")).value)

    def _value(self) -> _Token:
        if self._peek.kind == "null":
            self._refuse("nothing is equal to null; write `is null` or `is not null`", self._peek.place)
        return self._take("value") or self._expected("a number, a text in quotes, true or false")

    # The tokens

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *kinds: str) -> _Token | None:
        """Consume and return the next token, if it is of one of these kinds."""
        token = self._peek
        if token.kind not in kinds:
            return None
        self._next += token.kind != "end"
        return token

    def require(self, kind: str, shown: str = "") -> None:
        if not self._take(kind):
            self._expected(shown or f"`{kind}`")

    def _expected(self, what: str) -> NoReturn:
        self._refuse(f"{what} is missing", self._peek.place)

    def _refuse(self, problem: str, place: int) -> NoReturn:
        rest = self._text[place:].strip()
        shown = rest if len(rest) <= 40 else f"{rest[:40]}…"
        where = f"at character {place + 1}: {shown}" if rest else "at the end"
        raise UsageError(f"--where: {problem}, {where}", _EXAMPLE)
