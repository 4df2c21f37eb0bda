"""Find files that a reader of the layout would open, and that nobody has recorded."""

from __future__ import annotations

from collections.abc import Iterable

from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.document_index import INDEX_FOLDER, is_index_of
from fineweb_shards.store.store import Store


def list_all_names(store: Store) -> list[str]:
    """List the names of all files in a store, with those in the folder of indices."""
    return [*store.list_names(), *(f"{INDEX_FOLDER}/{name}" for name in store.list_names(INDEX_FOLDER))]


def find_untracked(names: Iterable[str], layout: Layout, known: set[str]) -> list[str]:
    """Choose the names of files that a reader of the layout would open, or that are named like an index of
    them, and that are not among the known names."""
    return sorted(
        name for name in names if (layout.owns(name) or is_index_of(layout, name)) and name not in known
    )
