"""Distinguish files made by fineweb-shards from all others, and delete only those.

--fresh deletes the files listed in the manifest, shards that a killed run had renamed but not yet recorded, and the
work folder. If the manifest can't be read, nothing is deleted, because the folder may contain anything. A run removes
the leftovers of a killed one that no run will use again.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from fineweb_shards.errors import OutputError, UsageError
from fineweb_shards.formats.piles import FOLDER as PILE_FOLDER
from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.sidecar import INDEX_FOLDER
from fineweb_shards.output.manifest import FILE_NAME, Manifest, load_manifest
from fineweb_shards.output.pile_objects import remove_objects
from fineweb_shards.output.shard_files import growing_path, list_files
from fineweb_shards.output.sidecars import with_sidecars
from fineweb_shards.output.store import Store
from fineweb_shards.sources.hub_files import DOWNLOAD_FOLDER
from fineweb_shards.system.durable import is_lock_name, output_errors
from fineweb_shards.system.own_files import WORK_FOLDER, refuse_foreign_files, refuse_link
from fineweb_shards.system.terminal import in_notebook, printable
from fineweb_shards.units import show_bytes, show_number_of

_SHOWN_NAMES = 5
# A `report` command may be writing a temporary file now, without the folder's lock; it takes less than 1 s.
_SURELY_UNUSED_SECONDS = 600.0


def start_over(store: Store, layout: Layout, warn: Callable[[str], None], *, yes: bool) -> None:
    """Delete an earlier run's output. Report the files even with --quiet, and ask first unless `yes`."""
    files, work = plan_deletion(store, layout)
    if not files and not work:
        return
    what = _describe_deletion(store, files, work)
    if not yes:
        terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
        if not terminal or in_notebook():  # a notebook has no way to answer
            raise UsageError(
                f"--fresh would delete {what}.",
                "There is no terminal to ask: add --yes to delete it, or leave out --fresh to resume.",
            )
        warn(f"--fresh deletes {what}")
        print("Delete it and start over? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("Nothing was deleted.", "To resume, rerun the same command without --fresh.")
    warn(f"--fresh: deleting {what}")
    with output_errors(store.folder):
        for path in work:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        store.remove(name for name in files if name != FILE_NAME)
        # Last, because until then it identifies our files.
        store.remove(name for name in files if name == FILE_NAME)
        store.remove_unrecorded({})
        if store.is_remote:
            remove_objects(store)
        store.remove_work_copies()
        with contextlib.suppress(OSError):  # it does not exist, or contains other files
            (store.folder / INDEX_FOLDER).rmdir()


def plan_deletion(store: Store, layout: Layout) -> tuple[Mapping[str, int], list[Path]]:
    """Return what --fresh would delete: finished files with their sizes, and the contents of the work folder;
    OutputError if there are shards of `layout` that the manifest does not list."""
    manifest = load_manifest(store.folder)  # an error if it can't be read, or is another program's
    ours = our_names(store, manifest) if manifest else set()
    refuse_untracked_shards(store, layout, ours)
    work = store.folder / WORK_FOLDER
    if work.is_symlink():
        raise OutputError(f"{work}: this is a link to another folder.", "Delete it yourself, or choose another --out.")
    found = sorted(work.iterdir()) if work.is_dir() else []
    files = store.named_bytes([*sorted(ours), *([FILE_NAME] if manifest else [])])
    return files, [path for path in found if not is_lock_name(path.name)]


def _describe_deletion(store: Store, files: Mapping[str, int], work: Iterable[Path]) -> str:
    count, size_bytes = 0, sum(files.values())
    for path in work:
        is_folder = path.is_dir() and not path.is_symlink()
        for below in path.rglob("*") if is_folder else [path]:
            if below.is_symlink() or not below.is_dir():
                count += 1
                with contextlib.suppress(FileNotFoundError):  # another program removed it meanwhile
                    size_bytes += below.lstat().st_size
    also = f" and {count:,} in its {WORK_FOLDER}" if count else ""
    named = _name_some([PurePosixPath(name).name for name in files])
    what = f"{show_number_of(len(files), 'file')} in {store.location}{also}, {show_bytes(size_bytes)}"
    return f"{what}: {named}" if named else what


def our_names(store: Store, manifest: Manifest) -> set[str]:
    """Return the names of the files that fineweb-shards made, according to the manifest."""
    names = {record.name for record in manifest.shards}
    if not manifest.complete:
        unrecorded = manifest.numbering.unrecorded_names(manifest.shards, set(store.list_names()))
        names |= {name for name in unrecorded - names if _is_whole(store, manifest, name)}
    return with_sidecars(manifest, names)


def holds_work(store: Store, manifest: Manifest) -> bool:
    """Return whether anything was made with this manifest's settings: shards, or piles of a shuffle."""
    return bool(manifest.shards or manifest.piled_tokens or our_names(store, manifest))


def refuse_untracked_shards(store: Store, layout: Layout, ours: set[str]) -> None:
    """Raise OutputError if the store has shards that are not in `ours`: a reader would mix them with the new ones.
    They are not deleted, because they may be the only copy."""
    untracked = find_untracked(list_all_names(store), layout, ours)
    if untracked:
        are, them = ("is", "it") if len(untracked) == 1 else ("are", "them")
        raise OutputError(
            f"{store.location}: {_name_some(untracked)} {are} here, but no {FILE_NAME} of this folder lists "
            f"{them}: fineweb-shards never replaces or deletes files that it may not have made.",
            "Choose another --out, or move them away.",
        )


def _is_whole(store: Store, manifest: Manifest, name: str) -> bool:
    """Return whether a file is a shard that a killed run had renamed but not yet recorded: it has its final name, and
    the length and header of a shard."""
    layout, shard_format = manifest.layout, manifest.shard_format
    with contextlib.suppress(OSError):
        found = store.find(name)
        tokens, odd = shard_format.tokens_in(found.size_bytes if found else 0)
        fits = layout.one_file or tokens <= manifest.settings["shard_tokens"]
        if found is not None and found.named and not odd and tokens > 0 and fits:
            return store.read_range(found, 0, layout.header_bytes) == shard_format.header(tokens)
    return False


def _name_some(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_SHOWN_NAMES])
    return shown + (f" … ({len(names):,} files)" if len(names) > _SHOWN_NAMES else "")


def remove_leftovers(store: Store, manifest: Manifest) -> None:
    """Remove temporary files that `manifest` has no use for. The caller must hold the store's lock."""
    recorded = {file.name: file.end_bytes for file in list_files(manifest.shards)}
    needed = {growing_path(store.folder / name) for name in recorded}
    with output_errors(store.folder):
        for path in (store.folder / WORK_FOLDER).glob("*.tmp"):
            if path not in needed and path.is_file() and not _may_be_in_use(path):
                path.unlink()
        store.remove_unrecorded(recorded)


def remove_outdated_files(store: Store, manifest: Manifest) -> None:
    """Remove files that the store's saved manifest lists and `manifest` does not: they will be made again.

    Call this before saving `manifest`: afterwards nothing would identify the files as ours.
    """
    before = load_manifest(store.folder)
    if before is None:
        return
    outdated = {record.name for record in before.shards} - {record.name for record in manifest.shards}
    with output_errors(store.folder):
        store.remove(with_sidecars(before, outdated))


def tidy_finished(store: Store, manifest: Manifest) -> None:
    """Remove leftovers of a finished build, if possible."""
    with contextlib.suppress(OutputError):  # for example in a read-only folder
        remove_leftovers(store, manifest)


def _may_be_in_use(path: Path) -> bool:
    """Return whether a temporary file is recent and from `write_quickly` (named by process and thread)."""
    quick = re.search(r"\.\d+\.\d+\.tmp$", path.name) is not None
    return quick and time.time() - path.stat().st_mtime < _SURELY_UNUSED_SECONDS


def list_all_names(store: Store) -> list[str]:
    return [*store.list_names(), *(f"{INDEX_FOLDER}/{name}" for name in store.list_names(INDEX_FOLDER))]


def find_untracked(names: Iterable[str], layout: Layout, known: set[str]) -> list[str]:
    """Return the unknown names that a reader of the layout would open, or that look like an index."""
    return sorted(name for name in names if (layout.owns(name) or layout.owns_index(name)) and name not in known)


def refuse_planted_files(store: Store, *, index: bool = False) -> None:
    """Raise OutputError if links, pipes or folders are in the place of a run's own files. Opening a file checks again,
    but a run would not stop merely because, for example, its log can't be written."""
    with output_errors(store.folder):
        refuse_foreign_files(store.folder / WORK_FOLDER, {DOWNLOAD_FOLDER, PILE_FOLDER})
        refuse_link(store.folder / FILE_NAME)
        if index:
            refuse_link(store.folder / INDEX_FOLDER)
