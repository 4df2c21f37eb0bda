"""Find files in an output folder that a run has not made, before it works beside them."""

from __future__ import annotations

from collections.abc import Iterable

from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.document_index import INDEX_FOLDER, is_index_of
from fineweb_shards.sources.hub.listed_files import DOWNLOAD_FOLDER
from fineweb_shards.store.manifest import FILE_NAME
from fineweb_shards.store.store import Store
from fineweb_shards.system.durable import WORK_FOLDER, output_error
from fineweb_shards.system.own_files import refuse_foreign_files, refuse_link


def list_all_names(store: Store) -> list[str]:
    """List the names of all files in a store, with those in the folder of indices."""
    return [*store.list_names(), *(f"{INDEX_FOLDER}/{name}" for name in store.list_names(INDEX_FOLDER))]


def find_untracked(names: Iterable[str], layout: Layout, known: set[str]) -> list[str]:
    """Choose the names of files that a reader of the layout would open, or that are named like an index of
    them, and that are not among the known names."""
    return sorted(
        name for name in names if (layout.owns(name) or is_index_of(layout, name)) and name not in known
    )


def refuse_planted_files(store: Store, *, index: bool = False) -> None:
    """Raise OutputError if links, pipes or folders are where a run will write its own files. Each of those is
    looked at again when it is opened; but a run that can't write its log, for one, would not stop there."""
    try:
        refuse_foreign_files(store.folder / WORK_FOLDER, {DOWNLOAD_FOLDER})
        refuse_link(store.folder / FILE_NAME)
        if index:
            refuse_link(store.folder / INDEX_FOLDER)
    except OSError as error:
        raise output_error(store.folder, error) from error
