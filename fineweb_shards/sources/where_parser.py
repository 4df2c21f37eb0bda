"""Parse `--where`: a condition on the columns or JSON keys of a document. No I/O, and no `eval`.

    condition   alternative (or alternative)*           alternative   term (and term)*
    term        not term | ( condition ) | comparison
    comparison  NAME | NAME is [not] null | NAME [not] in ( VALUE, … )
              | NAME [not] contains TEXT | NAME [not] starts with TEXT
              | NAME OPERATOR VALUE | VALUE OPERATOR NAME          operators: = == != < <= > >=

A value is a number, a text in ' or ", true or false. What a condition means is in docs/input.md;
row_filter.py applies it to rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from fineweb_shards.errors import UsageError
from fineweb_shards.sources.where import (
    IN_WORDS,
    AllOf,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Kind,
    Not,
    Operator,
    Value,
    Where,
    kinds_in,
)

MOST_CHARACTERS = 10_000
MOST_NESTED = 100
_EXAMPLE = "For example: --where 'int_score >= 4 and language_score > 0.8'"
_SHOWN_CHARACTERS = 40
_WORDS = {"and", "or", "not", "is", "in", "null", "true", "false", "contains", "starts", "with"}
_FLIPPED: dict[str, str] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
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


def parse_where(text: str) -> Where:
    """Parse a condition; UsageError, with the place, if it is malformed."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"--where: {len(text):,} characters are too many; {MOST_CHARACTERS:,} are allowed.")
    condition = _Parser(text).parse()
    kinds: dict[str, Kind] = {}
    for column, kind in kinds_in(condition):
        known = kinds.setdefault(column, kind)
        if "any" in (known, kind):
            kinds[column] = kind if known == "any" else known
        elif known != kind:
            raise UsageError(
                f"--where: {column!r} is compared with {IN_WORDS[known]} and with {IN_WORDS[kind]}; "
                "a column holds one kind of value.",
                _EXAMPLE,
            )
    return Where(condition, tuple(kinds.items()))


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, sign, name or value of the text, and where it begins. A keyword is in lower case."""

    kind: str  # "number", "text", "quoted", "name", "word", "sign" or "end"
    text: str
    place: int

    @property
    def is_name(self) -> bool:
        return self.kind in ("name", "quoted")

    @property
    def is_value(self) -> bool:
        return self.kind in ("number", "text") or self.is_one_of("true", "false")

    def is_one_of(self, *words: str) -> bool:
        return self.kind in ("word", "sign") and self.text in words


class _Parser:
    """Reads a condition from front to back, one function for each line of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0
        self._nested = 0

    def parse(self) -> Condition:
        """Return the condition that is the whole text."""
        if self._peek().kind == "end":
            raise UsageError("--where: the condition is empty.", _EXAMPLE)
        condition = self._condition()
        if self._peek().kind != "end":
            self._expected("`and`, `or` or the end")
        return condition

    def _split(self) -> Iterator[_Token]:
        place, end = 0, len(self._text.rstrip())
        while place < end:
            found = _TOKEN.match(self._text, place)
            if found is None:
                begin = place + len(self._text[place:]) - len(self._text[place:].lstrip())
                self._refuse(_explain_character(self._text, begin), begin)
            kind = found.lastgroup or ""
            text = found[kind]
            if kind == "name" and text.lower() in _WORDS:
                kind, text = "word", text.lower()
            yield _Token(kind, text, found.start(found.lastgroup or ""))
            place = found.end()
        yield _Token("end", "", end)

    def _condition(self) -> Condition:
        parts = [self._alternative()]
        while self._takes("or"):
            parts.append(self._alternative())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _alternative(self) -> Condition:
        parts = [self._term()]
        while self._takes("and"):
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _term(self) -> Condition:
        self._nested += 1
        if self._nested > MOST_NESTED:
            self._refuse(f"more than {MOST_NESTED} parentheses or `not` are nested", self._peek().place)
        if self._takes("not"):
            term: Condition = Not(self._term())
        elif self._takes("("):
            term = self._condition()
            self._require(")")
        else:
            term = self._comparison()
        self._nested -= 1
        return term

    def _comparison(self) -> Condition:
        if self._peek().is_value:
            return self._value_first()
        if not self._peek().is_name:
            self._expected("the name of a column")
        column = _name(self._advance())
        if self._takes("is"):
            opposite = self._takes("not")
            self._require("null")
            return _negated(IsNull(column), opposite)
        if self._peek().is_one_of("not", "in", "contains", "starts"):
            opposite = self._takes("not")
            return _negated(self._in_or_contains(column), opposite)
        operator = self._operator()
        if operator is None:
            return Compare(column, "=", True)  # a column of true and false by itself
        if self._peek().is_name:
            self._refuse("a column is compared with a value, not with another column", self._peek().place)
        return self._compare(column, operator, self._value())

    def _value_first(self) -> Condition:
        value = self._value()
        operator = self._operator() or self._expected("an operator such as = or >=")
        if not self._peek().is_name:
            self._expected("the name of a column")
        return self._compare(_name(self._advance()), _FLIPPED.get(operator, operator), value)

    def _in_or_contains(self, column: str) -> Condition:
        if self._takes("in"):
            self._require("(")
            values = [self._value()]
            while self._takes(","):
                values.append(self._value())
            self._require(")")
            return AnyOf(tuple(Compare(column, "=", value) for value in values))
        operator: Operator = "contains"
        if self._takes("starts"):
            self._require("with")
            operator = "starts with"
        else:
            self._require("contains")
        if self._peek().kind != "text":
            self._expected("a text in quotes")
        return Compare(column, operator, str(self._value()))

    def _compare(self, column: str, operator: str, value: Value) -> Condition:
        if self._peek().is_one_of("=", "==", "!=", "<", "<=", ">", ">="):
            self._refuse("one comparison follows another; join the two with `and`", self._peek().place)
        if isinstance(value, bool) and operator not in ("=", "!="):
            self._refuse("true and false are only compared with = and !=", self._peek(-1).place)
        if operator == "!=":
            return Not(Compare(column, "=", value))
        return Compare(column, operator, value)  # type: ignore[arg-type] # one of the signs

    def _operator(self) -> str | None:
        if not self._peek().is_one_of("=", "==", "!=", "<", "<=", ">", ">="):
            return None
        sign = self._advance().text
        return "=" if sign == "==" else sign

    def _value(self) -> Value:
        token = self._peek()
        if token.is_one_of("null"):
            self._refuse("nothing is equal to null; write `is null` or `is not null`", token.place)
        if not token.is_value:
            self._expected("a number, a text in quotes, true or false")
        self._advance()
        if token.kind == "word":
            return token.text == "true"
        if token.kind == "text":
            return _unquote(token.text)
        value = float(token.text)
        if math.isinf(value):
            self._refuse("this number is too large", token.place)
        return int(token.text) if re.fullmatch(r"[+-]?\d+", token.text) else value

    # The tokens

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[self._next + ahead]

    def _advance(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, word: str) -> bool:
        found = self._peek().is_one_of(word)
        self._next += found
        return found

    def _require(self, word: str) -> None:
        if not self._takes(word):
            self._expected(f"`{word}`")

    def _expected(self, what: str) -> NoReturn:
        self._refuse(f"{what} is missing", self._peek().place)

    def _refuse(self, problem: str, place: int) -> NoReturn:
        rest = self._text[place:].strip()
        shown = rest if len(rest) <= _SHOWN_CHARACTERS else f"{rest[:_SHOWN_CHARACTERS]}…"
        where = f"at character {place + 1}: {shown}" if rest else "at the end"
        raise UsageError(f"--where: {problem}, {where}", _EXAMPLE)


def _explain_character(text: str, place: int) -> str:
    """Say what is wrong with a place where no token begins."""
    if text[place] in "'\"`":
        return f"the quote {text[place]} is never closed"
    if text[place].isdigit() or text[place] in "+-.":
        return "this is no number"
    return f"{text[place]!r} means nothing here"


def _negated(condition: Condition, opposite: bool) -> Condition:
    return Not(condition) if opposite else condition


def _name(token: _Token) -> str:
    return _unquote(token.text) if token.kind == "quoted" else token.text


def _unquote(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])
