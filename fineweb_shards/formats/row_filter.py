"""Apply a `--where` condition to rows: Arrow columns of parquet files, or Python values of JSON lines.

As in SQL, a comparison with a missing value (null) is unknown, and a row passes only if the whole condition is true.
Whole numbers are compared exactly, all others as doubles.

`pyarrow.compute` is imported only when needed: it takes 40 ms.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa

from fineweb_shards.formats.columns import find_value
from fineweb_shards.formats.rows import Selection, is_text, make_bytes, plain_type
from fineweb_shards.formats.where import IN_WORDS, AllOf, AnyOf, Compare, Condition, IsNull, Not, Where, kind_of
from fineweb_shards.types import Counts

# Each test's name in pyarrow.compute, and its function for Python's values.
_TESTS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "=": ("equal", operator.eq),
    "<": ("less", operator.lt),
    "<=": ("less_equal", operator.le),
    ">": ("greater", operator.gt),
    ">=": ("greater_equal", operator.ge),
    "contains": ("match_substring", operator.contains),
    "starts with": ("starts_with", str.startswith),
}
_PARTS_OF_TEXT = ("contains", "starts with")


class RowFilter:
    def __init__(self, where: Where) -> None:
        importlib.import_module("pyarrow.compute")  # from now on available as `pa.compute`
        self.where = where

    def select(self, rows: Any) -> Selection:
        """Apply the condition to a RecordBatch of unwrapped columns: the text, then those of the condition."""
        met = self.evaluate(rows)
        passes, has_text = pa.compute.fill_null(met, _make_scalar(False)), rows.column(0).is_valid()
        wanted = pa.compute.and_(passes, has_text)
        left_out = Counts(filtered_documents=met.false_count, unknown_documents=met.null_count)
        nulls = Counts(skipped_documents=passes.true_count - wanted.true_count)
        return Selection(wanted, left_out + nulls)

    def evaluate(self, rows: Any) -> Any:
        """Return true, false or null for each row of a RecordBatch with the columns of the condition."""
        names = rows.schema.names
        return _combine(self.where.condition, lambda test: _test_column(rows.column(names.index(test.column)), test))

    def select_values(self, rows: Sequence[tuple[Any, ...]]) -> tuple[list[bool], Counts]:
        """Apply the condition to JSON values, a tuple for each row in the order of the condition's columns, and return
        which rows pass. `read_values` must have returned them."""
        columns = dict(zip(self.where.columns, zip(*rows, strict=True), strict=False))
        met = _combine(self.where.condition, lambda test: _test_values(columns.get(test.column, ()), test))
        left_out = Counts(filtered_documents=met.false_count, unknown_documents=met.null_count)
        return [one is True for one in met.to_pylist()], left_out

    def read_values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values that the condition needs of a JSON object, None for missing ones; ValueError with a phrase
        about one to which it can't be applied."""
        values = []
        for name, wanted in self.where.kinds:
            value = row[name] if name in row else find_value(row, name)
            if value is not None and wanted not in ("any", kind_of(value)):
                found = kind_of(value)
                shown = IN_WORDS[found] if found else f"a {type(value).__name__}"
                raise ValueError(f"has {shown} as {name!r}, which --where compares with {IN_WORDS[wanted]}")
            values.append(value)
        return tuple(values)

    def find_wrong_type(self, name: str, kind: Any) -> str | None:
        """Return a phrase about a parquet column of this type, unless the condition can be applied to it."""
        kind, wanted = plain_type(kind), dict(self.where.kinds)[name]
        if pa.types.is_null(kind):
            return None
        if pa.types.is_nested(kind):
            return f"holds {kind}, which --where can't look into"
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        fits = {"number": is_number, "text": is_text(kind), "truth": pa.types.is_boolean(kind), "any": True}
        return None if fits[wanted] else f"holds {kind}; --where compares it with {IN_WORDS[wanted]}"


def _combine(condition: Condition, apply: Callable[[Compare | IsNull], Any]) -> Any:
    """Return true, false or null for each row; `apply` evaluates a single comparison."""
    match condition:
        case Not(inner):
            return pa.compute.invert(_combine(inner, apply))
        case AllOf(parts):
            return reduce(pa.compute.and_kleene, map(partial(_combine, apply=apply), parts))
        case AnyOf(parts):
            return reduce(pa.compute.or_kleene, map(partial(_combine, apply=apply), parts))
    return apply(condition)


def _test_values(values: Sequence[Any], test: Compare | IsNull) -> Any:
    known = [value is not None for value in values]
    if isinstance(test, IsNull):
        return pa.compute.invert(_make_booleans(known))
    compare, wanted = _TESTS[test.operator][1], test.value
    return _make_booleans([value is not None and compare(value, wanted) for value in values], known)


def _make_booleans(values: list[bool], valid: list[bool] | None = None) -> Any:
    """Return an Arrow array of true and false, null where not `valid`."""
    buffers = [
        None if bits is None else pa.py_buffer(np.packbits(np.array(bits, bool), bitorder="little").tobytes())
        for bits in (valid, values)
    ]
    return pa.BooleanArray.from_buffers(pa.bool_(), len(values), buffers)


def _make_scalar(value: float) -> Any:
    # From buffers, as above: `pa.scalar` and `pa.array` import pandas, which takes a worker 0.3 s and 50 MB.
    if isinstance(value, bool):
        return _make_booleans([value])[0]
    whole = pa.int64() if value < 2**63 else pa.uint64()
    kind = pa.float64() if isinstance(value, float) else whole
    data = np.array([value], str(kind).replace("double", "float64")).tobytes()
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])[0]


def _test_column(column: Any, test: Compare | IsNull) -> Any:
    if isinstance(test, IsNull):
        return column.is_null()
    kind, value, compare = column.type, test.value, getattr(pa.compute, _TESTS[test.operator][0])
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.bool_())
    if isinstance(value, bool):
        return compare(column, _make_scalar(value))
    if isinstance(value, str):
        # As bytes, because a column of strings need not hold valid UTF-8; their order is the same.
        wanted = value.encode() if test.operator in _PARTS_OF_TEXT else make_bytes(value.encode())
        return compare(column.cast(pa.large_binary()), wanted)
    if pa.types.is_integer(kind):
        return _test_integers(column, test.operator, value)
    return compare(column.cast(pa.float64()), _make_scalar(float(value)))


def _test_integers(column: Any, test: str, value: float) -> Any:
    """Compare whole numbers with any number exactly: as doubles, 2^53 and 2^53 + 1 would be equal."""
    bits, signed = column.type.bit_width, pa.types.is_signed_integer(column.type)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    boundary = math.ceil(value) if test in ("<", ">=") else math.floor(value)
    if least <= boundary <= most and (test != "=" or boundary == value):
        return getattr(pa.compute, _TESTS[test][0])(column, _make_scalar(boundary).cast(column.type))
    always = test in ("<", "<=") if boundary > most else test in (">", ">=") if boundary < least else False
    return (pa.compute.equal if always else pa.compute.not_equal)(column, column)  # null stays null
