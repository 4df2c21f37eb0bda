"""`status`: how far a run is, whether it is alive, and how to go on when it is not.

Reads the manifest, the heartbeat and the log, and tries the lock, so it is quick and safe at any time, from
any terminal. The lock tells who is alive: a heartbeat may be left over from a run that was killed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_file import load_manifest, nothing_built
from fineweb_shards.system.durable import is_locked
from fineweb_shards.system.terminal import printable, terminal_size, wrap
from fineweb_shards.system.typed_command import runnable_here
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.heartbeat import Heartbeat, load_heartbeat
from fineweb_shards.watching.log import last_lines
from fineweb_shards.watching.screen import describe_machine, describe_tokens
from fineweb_shards.watching.snapshot import COMPLETE, STARTING, STOPPED, VERIFYING, WAITING, Snapshot

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
    """On standard output; in a terminal broken between words."""
    lines = [json.dumps(status_values(status))] if as_json else status_lines(status)
    if sys.stdout.isatty() and not as_json:
        columns = terminal_size(sys.stdout).columns
        lines = [piece for line in lines for piece in wrap(line, columns, hang=hang_of(line))]
    print("\n".join(lines), flush=True)


def hang_of(line: str) -> int | None:
    """How far an event's second line is moved in; rows have a place of their own for it."""
    return 4 if line.startswith("  ") else None


def status_values(status: Status) -> dict[str, Any]:
    """For programs."""
    manifest = status.manifest
    return {
        "state": status.state,
        "folder": str(status.folder),
        "shards": manifest.shard_count if manifest else 0,
        "tokens": manifest.tokens if manifest else 0,  # in finished shards
        "documents": manifest.documents if manifest else 0,
        "bytes": sum(shard.bytes for shard in manifest.shards) if manifest else 0,
        "resume": resume_command(status),
        "heartbeat": status.heartbeat.to_json() if status.heartbeat else None,
        "events": status.events,
    }


def status_lines(status: Status) -> list[str]:
    """For people: what matters most comes first."""
    events = event_lines(status)
    return [*row_lines(status), *(["", "last events", *events] if events else [])]


def row_lines(status: Status) -> list[str]:
    """Without the events."""
    rows = [("state", state_words(status))]
    if status.state == STOPPED:
        command = resume_command(status)
        rows.append(("resume", command) if command else ("next", "the same build command goes on from here"))
    if status.heartbeat is not None:
        rows += _run_rows(status, status.heartbeat)
    if status.manifest is not None:
        rows += _folder_rows(status.manifest)
    return [printable(f"{name:<10} {text}").replace("\n", " ") for name, text in rows]


def event_lines(status: Status) -> list[str]:
    """The end of the log."""
    return [printable(f"  {event}").replace("\n", " ") for event in status.events]


def resume_command(status: Status) -> str | None:
    """What to type to go on, here; None where nothing is to be done or nobody knows."""
    if status.state != STOPPED or status.heartbeat is None:
        return None
    invocation = status.heartbeat.invocation
    here = os.path.realpath(invocation.folder) == os.path.realpath(os.curdir)
    command = runnable_here(invocation.command)
    return command if here else f"cd {shlex.quote(invocation.folder)} && {command}"


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
    process = ("process", f"{beat.invocation.process}, started {_moment(beat.invocation.started)}")
    if seen.state == VERIFYING:
        shards = show_number_of(seen.finished_shards, "shard")
        return [("progress", f"{seen.verified_shards:,} of {shards} checked"), process]
    share = f"{100 * seen.share:.1f} %, " if seen.share is not None else ""
    rows = [("progress", f"{share}{describe_tokens(seen)} tokens")]
    if seen.seconds_left is not None:
        rows.append(("left", f"{show_seconds(seen.seconds_left)}, until "
                     f"{_moment(beat.written + seen.seconds_left)}"))  # fmt: skip
    elif seen.state == WAITING:
        rows.append(("left", "it stands still: nothing can be said while it waits"))
    if seen.tokens_per_second:
        rows.append(("speed", f"{show_count(seen.tokens_per_second)} tokens/s over the last minutes of work"))
    if seen.fetched_bytes:
        speed = seen.fetched_bytes_per_second
        rate = f", {show_bytes(speed)}/s over the last minutes of work" if speed else ""
        rows.append(("fetched", f"{show_bytes(seen.fetched_bytes)} in this run{rate}"))
    if seen.waited_seconds >= 1:
        rows.append(("waited", f"{show_seconds(seen.waited_seconds)} in this run"))
    within = 100 * seen.shard_tokens / seen.shard_size_tokens
    rows += [
        ("shard", f"number {seen.shard}, {within:.0f} % of {show_count(seen.shard_size_tokens)} tokens"),
        ("machine", f"{describe_machine(seen)}{_memory_words(seen)}"),
        process,
    ]
    return rows


def _memory_words(seen: Snapshot) -> str:
    """Nothing where nobody has looked yet."""
    return f" of memory, {show_bytes(seen.peak_memory_bytes)} at most" if seen.memory_bytes else ""


def _folder_rows(manifest: Manifest) -> list[tuple[str, str]]:
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    rows = [
        ("shards", f"{manifest.shard_count:,} finished, {size}"),
        ("in them", f"{manifest.tokens:,} tokens, {show_number_of(manifest.documents, 'document')}"),
    ]
    if manifest.shards and not manifest.complete and "exported_from" not in manifest.settings:
        end = manifest.end
        name = manifest.files[end.file]["name"] if end.file < len(manifest.files) else "the end"
        rows.append(("reached", f"{name}, position {end.position:,}"))
    return [*rows, ("layout", manifest.settings["layout"])]


def _moment(seconds: float) -> str:
    """A time of today as `14:05`, any other with its day."""
    then = time.localtime(seconds)
    return time.strftime("%H:%M", then) if then[:3] == time.localtime()[:3] else _date(seconds)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
