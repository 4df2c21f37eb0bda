"""Find a column by its name, where it may be a field of a struct: `a.b` is the column or key of that name or, if there
is none, the field `b` of `a`, to any depth.

A field of a null struct is null. Lists and maps have no fields.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pyarrow as pa


def find_value(row: Any, name: str, default: Any = None) -> Any:
    """Return a value of a JSON object; `default` if there is no such key."""
    if not isinstance(row, dict):
        return default
    if name in row:
        return row[name]
    outer, dot, inner = name.partition(".")
    if not dot or outer not in row:
        return default
    return None if row[outer] is None else find_value(row[outer], inner, default)


def outer_name(names: Container[str], name: str) -> str:
    """Return the name of the column that a column is, or that it is a field of."""
    return name if name in names else name.partition(".")[0]


def take_column(rows: Any, name: str) -> Any:
    """Return a column of a RecordBatch that has it. By its exact name: pyarrow takes `a` for `a.b` as well."""
    names = rows.schema.names
    if name in names:
        return rows.column(names.index(name))
    outer, _, inner = name.partition(".")
    struct = rows.column(names.index(outer))
    # `flatten` makes the fields of a null struct null.
    return take_column(pa.RecordBatch.from_arrays(struct.flatten(), [field.name for field in struct.type]), inner)
