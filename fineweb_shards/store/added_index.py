"""Ask for `--index` in a folder: once it has one it keeps it, whether a later run asks again or not.

The shards are the same with and without it. So it can be added to a folder at any time, even a finished one;
only --fresh is rid of it.
"""

from __future__ import annotations

from dataclasses import replace

from fineweb_shards.store.fresh import our_names, refuse_untracked_shards
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.store import Store


def add_index(manifest: Manifest, store: Store, *, asked: bool) -> Manifest:
    """Return the folder's manifest, with an index if this run asks for one.

    OutputError if files of that name are there already: they are not ours, and must not be replaced.
    """
    if manifest.index or not asked:
        return manifest
    refuse_untracked_shards(store, manifest.layout, our_names(store, manifest))
    return replace(manifest, index=True)
