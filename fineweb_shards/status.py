"""`status`: what is in an output folder, and whether a run is at work there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fineweb_shards.durable import is_locked
from fineweb_shards.errors import OutputError
from fineweb_shards.files import list_files
from fineweb_shards.manifest import FILE_NAME, Manifest, load_manifest
from fineweb_shards.units import show_bytes


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a folder: `running`, `stopped` or `complete`."""

    folder: Path
    manifest: Manifest
    state: str


def read_status(folder: Path) -> Status:
    """Reads only the ledger and tries the lock, so it is quick and safe at any time."""
    manifest = load_manifest(folder)
    if manifest is None:
        raise OutputError(f"{folder}: there is no {FILE_NAME}.", "Name a folder made by `build`.")
    if manifest.complete:
        return Status(folder, manifest, "complete")
    return Status(folder, manifest, "running" if is_locked(folder) else "stopped")


def status_lines(status: Status) -> list[str]:
    """For people."""
    manifest = status.manifest
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    lines = [
        f"{'state':<10} {status.state}",
        f"{'layout':<10} {manifest.settings['layout']}",
        f"{'shards':<10} {len(list_files(manifest.shards)):,} finished, {size}",
        f"{'tokens':<10} {manifest.tokens:,}",
        f"{'documents':<10} {manifest.documents:,}",
    ]
    verb = "export" if "exported_from" in manifest.settings else "build"
    if manifest.shards and verb == "build":
        end = manifest.end
        name = manifest.files[end.file]["name"] if end.file < len(manifest.files) else "the end"
        lines.append(f"{'reached':<10} {name}, position {end.position:,}")
    if status.state == "stopped":
        lines.append(f"{'next':<10} the same {verb} command goes on from here")
    return lines
