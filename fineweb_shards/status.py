"""`status`: how far a run is, whether it is alive, and how to go on when it is not.

Reads the ledger, the heartbeat and the log, and tries the lock, so it is quick and safe at any time, from any
terminal. The lock tells who is alive: a heartbeat may be left over from a run that was killed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fineweb_shards.durable import is_locked
from fineweb_shards.files import list_files
from fineweb_shards.heartbeat import Heartbeat, load_heartbeat
from fineweb_shards.journal import last_lines
from fineweb_shards.manifest import Manifest, load_manifest, nothing_built
from fineweb_shards.screen import describe_machine, describe_tokens
from fineweb_shards.snapshot import COMPLETE, STARTING, STOPPED, VERIFYING
from fineweb_shards.terminal import printable
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds

RUNNING = "running"
# Away from those of errors.py: these are answers, not failures.
EXIT_CODES = {COMPLETE: 0, RUNNING: 20, STOPPED: 21}
_EVENTS = 5
# A run that has said nothing for so long is suspended, or the machine was asleep.
_SILENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a folder: `running`, `stopped` or `complete`."""

    folder: Path
    state: str
    manifest: Manifest | None  # None in the first seconds of a run
    heartbeat: Heartbeat | None  # None in folders from before there was one
    events: list[str]  # the end of the log

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]


def read_status(folder: Path, *, alive: bool | None = None) -> Status:
    """`alive`: whether a run is at work there, where it is known already."""
    if alive is None:
        alive = is_locked(folder)  # first: a run that ends now has then written everything
    manifest = load_manifest(folder)
    heartbeat = load_heartbeat(folder)
    if manifest is None and not alive and heartbeat is None:
        raise nothing_built(folder)
    complete = manifest is not None and manifest.complete
    state = RUNNING if alive else COMPLETE if complete else STOPPED
    return Status(folder, state, manifest, heartbeat, last_lines(folder, _EVENTS))


def show_status(status: Status, *, as_json: bool) -> None:
    """On standard output; in a terminal no line is wider than that."""
    lines = [json.dumps(status_values(status))] if as_json else status_lines(status)
    if sys.stdout.isatty() and not as_json:
        lines = fit(lines, shutil.get_terminal_size().columns)
    print("\n".join(lines), flush=True)


def fit(lines: list[str], columns: int) -> list[str]:
    """Events may be cut, but never the command to resume."""
    return [line if len(line) <= columns or not line.startswith("  ") else line[: columns - 1] + "…"
            for line in lines]  # fmt: skip


def status_values(status: Status) -> dict[str, Any]:
    """For programs."""
    manifest = status.manifest
    return {
        "state": status.state,
        "folder": str(status.folder),
        "shards": len(manifest.shards) if manifest else 0,
        "tokens": manifest.tokens if manifest else 0,  # in finished shards
        "documents": manifest.documents if manifest else 0,
        "bytes": sum(shard.bytes for shard in manifest.shards) if manifest else 0,
        "resume": resume_command(status),
        "heartbeat": status.heartbeat.to_json() if status.heartbeat else None,
        "events": status.events,
    }


def status_lines(status: Status) -> list[str]:
    """For people."""
    rows = [("state", state_words(status))]
    if status.heartbeat is not None:
        rows += _run_rows(status, status.heartbeat)
    if status.manifest is not None:
        rows += _folder_rows(status.manifest)
    if status.state == STOPPED:
        command = resume_command(status)
        rows.append(("resume", command) if command else ("next", "the same build command goes on from here"))
    lines = [f"{name:<10} {text}" for name, text in rows]
    if status.events:
        lines += ["", "last events", *(f"  {event}" for event in status.events)]
    return [printable(line).replace("\n", " ") for line in lines]


def resume_command(status: Status) -> str | None:
    """What to type to go on, here; None where nothing is to be done or nobody knows."""
    if status.state != STOPPED or status.heartbeat is None:
        return None
    invocation = status.heartbeat.invocation
    here = os.path.realpath(invocation.folder) == os.path.realpath(os.curdir)
    return invocation.command if here else f"cd {shlex.quote(invocation.folder)} && {invocation.command}"


def state_words(status: Status) -> str:
    beat = status.heartbeat
    if beat is None:
        return status.state
    silent = time.time() - beat.written
    if status.state == RUNNING:
        # A heartbeat with an exit code is the last word of the run before this one.
        words = STARTING if beat.exit_code is not None else beat.snapshot.words()
        if silent > _SILENT_SECONDS and beat.exit_code is None:
            words = f"nothing heard for {show_seconds(silent)}: suspended, or the machine was asleep; {words}"
        return f"{RUNNING}, {words}"
    if status.state == STOPPED:
        if beat.exit_code is None:
            return f"{STOPPED}: killed, or a power cut; last heard of {_date(beat.written)}"
        return f"{STOPPED} {_date(beat.written)} with exit code {beat.exit_code}: {beat.snapshot.reason}"
    if beat.exit_code:
        return f"{COMPLETE}, but the run ended with exit code {beat.exit_code}: {beat.snapshot.reason}"
    return f"{COMPLETE} since {_date(beat.written)}"


def _run_rows(status: Status, beat: Heartbeat) -> list[tuple[str, str]]:
    if status.state != RUNNING:
        return []
    seen = beat.snapshot
    rows = [("process", f"{beat.invocation.process}, started {_moment(beat.invocation.started)}")]
    if seen.state == VERIFYING:
        shards = show_number_of(seen.finished_shards, "shard")
        return [*rows, ("progress", f"{seen.verified_shards:,} of {shards} checked")]
    share = f"{100 * seen.share:.1f} %, " if seen.share is not None else ""
    rows.append(("progress", f"{share}{describe_tokens(seen)} tokens"))
    within = 100 * seen.shard_tokens / seen.shard_size_tokens
    rows.append(
        ("shard", f"number {seen.shard}, {within:.0f} % of {show_count(seen.shard_size_tokens)} tokens")
    )
    if seen.tokens_per_second:
        rows.append(("speed", f"{show_count(seen.tokens_per_second)} tokens/s over the last minutes of work"))
    if seen.seconds_left is not None:
        rows.append(("left", f"{show_seconds(seen.seconds_left)}, until "
                     f"{_moment(beat.written + seen.seconds_left)}"))  # fmt: skip
    rows.append(
        ("machine", f"{describe_machine(seen)} of memory, {show_bytes(seen.peak_memory_bytes)} at most")
    )
    return rows


def _folder_rows(manifest: Manifest) -> list[tuple[str, str]]:
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    rows = [
        ("layout", manifest.settings["layout"]),
        ("shards", f"{len(list_files(manifest.shards)):,} finished, {size}"),
        ("in them", f"{manifest.tokens:,} tokens, {show_number_of(manifest.documents, 'document')}"),
    ]
    if manifest.shards and not manifest.complete and "exported_from" not in manifest.settings:
        end = manifest.end
        name = manifest.files[end.file]["name"] if end.file < len(manifest.files) else "the end"
        rows.append(("reached", f"{name}, position {end.position:,}"))
    return rows


def _moment(seconds: float) -> str:
    """A time of today as `14:05`, any other with its day."""
    then = time.localtime(seconds)
    return time.strftime("%H:%M", then) if then[:3] == time.localtime()[:3] else _date(seconds)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
