"""Find files that a reader of the layout would open, and that nobody has recorded."""

from __future__ import annotations

from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.document_index import INDEX_FOLDER, is_index_of
from fineweb_shards.store.store import Store


def find_untracked(store: Store, layout: Layout, known: set[str]) -> list[str]:
    """List the files that a reader of the layout would open, or that are named like an index of them, and
    that are not among the known names."""
    names = {name for name in store.list_names() if layout.owns(name)}
    indices = {f"{INDEX_FOLDER}/{name}" for name in store.list_names(INDEX_FOLDER)}
    return sorted((names | {name for name in indices if is_index_of(layout, name)}) - known)
