"""Load the filter of rows only if there is one: pyarrow.compute, which it needs, takes 40 ms to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fineweb_shards.sources.where import Where

if TYPE_CHECKING:
    from fineweb_shards.sources.row_filter import RowFilter


def load_filter(where: Where | None) -> RowFilter | None:
    """Return the filter for a condition; None if there is no condition."""
    if where is None:
        return None
    from fineweb_shards.sources.row_filter import RowFilter

    return RowFilter(where)
