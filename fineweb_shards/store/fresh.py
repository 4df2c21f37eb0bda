"""Delete what fineweb-shards made in an output folder, and nothing else: the work of --fresh.

These are the files that the manifest names, a shard that a killed run had named but not yet recorded, and the
work folder. If the manifest can't be read, nothing is deleted, because the folder may hold anything.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fineweb_shards.errors import OutputError, UsageError
from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.document_index import INDEX_FOLDER
from fineweb_shards.store.manifest import FILE_NAME, Manifest, load_manifest
from fineweb_shards.store.sidecars import with_sidecars
from fineweb_shards.store.store import Store
from fineweb_shards.store.untracked_files import find_untracked, list_all_names
from fineweb_shards.system.durable import WORK_FOLDER, is_lock_name, output_error
from fineweb_shards.system.terminal import Redraw, printable, redraw
from fineweb_shards.units import show_bytes, show_number_of

Say = Callable[[str], None]
_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class Deletion:
    """What --fresh would delete."""

    store: Store
    files: Mapping[str, int]  # finished ones, with their sizes in bytes; the manifest last
    work: tuple[Path, ...]  # in the work folder, with their contents

    def describe(self) -> str:
        """Say how many files and bytes would be deleted, and where."""
        inside = [file for path in self.work for file in _files_below(path)]
        size = show_bytes(sum(self.files.values()) + sum(map(_size_bytes, inside)))
        what = f"{show_number_of(len(self.files), 'file')} in {self.store.location}"
        named = _name_some([PurePosixPath(name).name for name in self.files])
        if inside:
            what += f" and {len(inside):,} in its {WORK_FOLDER}"
        return f"{what}, {size}" + (f": {named}" if named else "")

    def carry_out(self) -> None:
        """Delete the files; the manifest last, because until then it says which files are ours."""
        try:
            for path in self.work:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            self.store.remove(name for name in self.files if name != FILE_NAME)
            self.store.remove(name for name in self.files if name == FILE_NAME)
            self.store.remove_unrecorded({})
            self.store.remove_work_copies()
            with contextlib.suppress(OSError):  # it does not exist, or holds other files
                (self.store.folder / INDEX_FOLDER).rmdir()
        except OSError as error:
            raise output_error(self.store.folder, error) from error


def start_over(store: Store, layout: Layout, warn: Say, *, yes: bool) -> None:
    """Delete an earlier run's output. Say what is deleted, even with --quiet; unless `yes`, ask first."""
    deletion = plan_deletion(store, layout)
    if not deletion.files and not deletion.work:
        return
    if not yes:
        _ask(deletion, warn)
    warn(f"--fresh: deleting {deletion.describe()}")
    deletion.carry_out()


def plan_deletion(store: Store, layout: Layout) -> Deletion:
    """Return what to delete; OutputError if shards of `layout` are there that the manifest does not list."""
    manifest = load_manifest(store.folder)  # raises an error if it can't be read, or is another program's
    ours = our_names(store, manifest) if manifest else set()
    refuse_untracked_shards(store, layout, ours)
    work = store.folder / WORK_FOLDER
    if work.is_symlink():
        raise OutputError(
            f"{work}: this is a link to another folder.", "Delete it yourself, or choose another --out."
        )
    found = sorted(work.iterdir()) if work.is_dir() else []
    names = [*sorted(ours), *([FILE_NAME] if manifest else [])]
    files = store.all_named_bytes(names)
    return Deletion(store, files, tuple(path for path in found if not is_lock_name(path.name)))


def our_names(store: Store, manifest: Manifest) -> set[str]:
    """Return the names of the files in a folder that fineweb-shards made, according to the manifest."""
    names = {record.name for record in manifest.shards}
    if not manifest.complete:
        names |= {
            name
            for name in manifest.numbering.next_names(manifest.shards)
            if _is_whole(store, manifest, name)
        }
    return with_sidecars(manifest, names)


def holds_shards(store: Store, manifest: Manifest) -> bool:
    """Return whether the store has any shard that was made with this manifest's settings."""
    return bool(manifest.shards) or any(
        store.named_bytes(name) is not None for name in our_names(store, manifest)
    )


def refuse_untracked_shards(store: Store, layout: Layout, ours: set[str]) -> None:
    """Raise OutputError if the store has shards that are not in `ours`.

    A reader would mix them with the new shards, and they are not deleted, because they may be the only copy.
    """
    untracked = find_untracked(list_all_names(store), layout, ours)
    if untracked:
        are = "is" if len(untracked) == 1 else "are"
        raise OutputError(
            f"{store.location}: {_name_some(untracked)} {are} here, but no {FILE_NAME} of this folder lists "
            f"{'it' if len(untracked) == 1 else 'them'}: fineweb-shards neither replaces nor deletes what it "
            "may not have made.",
            "Choose another --out, or move them away.",
        )


def _is_whole(store: Store, manifest: Manifest, name: str) -> bool:
    """Return whether a file is a shard that a killed run had named but not yet recorded.

    It then has the length and the header of a shard, and does not grow any more.
    """
    layout, shard_format = manifest.layout, manifest.shard_format
    try:
        found = store.find(name)
        if found is None or not found.named:
            return False
        tokens, odd = shard_format.tokens_in(found.size_bytes)
        fits = layout.one_file or tokens <= manifest.settings["shard_tokens"]
        if odd or tokens <= 0 or not fits:
            return False
        return store.read_range(found, 0, layout.header_bytes) == shard_format.header(tokens)
    except OSError:
        return False


def _ask(deletion: Deletion, warn: Say) -> None:
    """Ask the user whether to delete; UsageError without a terminal, or if the answer is no."""
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if not terminal or redraw(sys.stderr) is Redraw.LINE:  # in a notebook nobody can type an answer
        raise UsageError(
            f"--fresh would delete {deletion.describe()}.",
            "There is no terminal to ask: add --yes to delete it, or leave out --fresh to go on.",
        )
    warn(f"--fresh deletes {deletion.describe()}")
    print("Delete it and start over? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("Nothing was deleted.", "Without --fresh the same command goes on where it stopped.")


def _name_some(names: list[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_SHOWN_NAMES])
    return shown + (f" … ({len(names):,} files)" if len(names) > _SHOWN_NAMES else "")


def _size_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0  # a temporary file that another program has removed meanwhile


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from (below for below in path.rglob("*") if below.is_symlink() or not below.is_dir())
    else:
        yield path
