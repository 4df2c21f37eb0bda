"""`status`: show how far a run is, whether it is active, and how to resume it if it is not.

Reads the manifest, the heartbeat and the log, and tries the lock, so it is quick and safe at any time, from
any terminal. Only the lock shows whether a run is active: a heartbeat may be left from one that was killed.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from fineweb_shards.store.manifest import Manifest, find_manifest
from fineweb_shards.store.opening import missing_manifest_error
from fineweb_shards.store.store import Store
from fineweb_shards.system.resume_command import runnable_here
from fineweb_shards.system.terminal import printable, terminal_size, wrap
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.heartbeat import Heartbeat, load_heartbeat
from fineweb_shards.watching.log import last_lines
from fineweb_shards.watching.screen import describe_machine, describe_tokens
from fineweb_shards.watching.snapshot import COMPLETE, STARTING, STOPPED, VERIFYING, WAITING, Snapshot

RUNNING = "running"
# Different from those of errors.py: these are answers, not failures.
EXIT_CODES = {COMPLETE: 0, RUNNING: 20, STOPPED: 21}
_EVENTS = 5
# Without a heartbeat for so long, the run is suspended, or the machine was asleep.
_SILENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a folder: `running`, `stopped` or `complete`."""

    store: Store
    state: str
    manifest: Manifest | None  # None in the first seconds of a run
    heartbeat: Heartbeat | None  # None in folders of older versions, which wrote none
    events: list[str]  # the end of the log

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]


def read_status(store: Store, *, alive: bool | None = None) -> Status:
    """Read the state of a store, or raise OutputError if no build has begun there; `alive` is whether a run
    is active there, if the caller knows."""
    status = find_status(store, alive=alive)
    if status is None:
        raise missing_manifest_error(store)
    return status


def find_status(store: Store, *, alive: bool | None = None) -> Status | None:
    """Read the state of a store; None if no build has begun there."""
    if alive is None:
        alive = store.is_locked()  # first: a run that ends now has then written everything
        store.refresh()
    folder = store.folder
    manifest = find_manifest(store)
    heartbeat = load_heartbeat(folder)
    if manifest is None and not alive and heartbeat is None:
        return None
    complete = manifest is not None and manifest.complete
    state = RUNNING if alive else COMPLETE if complete else STOPPED
    return Status(store, state, manifest, heartbeat, last_lines(folder, _EVENTS))


def show_status(status: Status, *, as_json: bool) -> None:
    """Print a status to standard output, wrapped if that is a terminal."""
    lines = [json.dumps(status_values(status))] if as_json else status_lines(status)
    if sys.stdout.isatty() and not as_json:
        columns = terminal_size(sys.stdout).columns
        lines = [piece for line in lines for piece in wrap(line, columns, hang=continuation_indent(line))]
    print("\n".join(lines), flush=True)


def continuation_indent(line: str) -> int | None:
    """Return the indent of an event's second line; None for rows, whose column `wrap` finds itself."""
    return 4 if line.startswith("  ") else None


def status_values(status: Status) -> dict[str, Any]:
    """Return a status as values for JSON."""
    manifest = status.manifest
    return {
        "state": status.state,
        "folder": status.store.location,
        "shards": manifest.shard_count if manifest else 0,
        "tokens": manifest.tokens if manifest else 0,  # in finished shards
        "documents": manifest.documents if manifest else 0,
        "bytes": sum(shard.bytes for shard in manifest.shards) if manifest else 0,
        "resume": resume_command(status),
        "heartbeat": status.heartbeat.to_json() if status.heartbeat else None,
        "events": status.events,
    }


def status_lines(status: Status) -> list[str]:
    """Return a status as lines for people: the rows, the most important first, then the last events."""
    events = event_lines(status)
    return [*row_lines(status), *(["", "last events", *events] if events else [])]


def row_lines(status: Status) -> list[str]:
    """Return the lines of a status without the events."""
    rows = [("state", describe_status(status))]
    if status.state == STOPPED:
        command = resume_command(status)
        rows.append(("resume", command) if command else ("next", "rerun the same build command to resume"))
    if status.heartbeat is not None:
        rows += _run_rows(status, status.heartbeat)
    if status.manifest is not None:
        rows += _folder_rows(status.manifest)
    return [printable(f"{name:<10} {text}").replace("\n", " ") for name, text in rows]


def event_lines(status: Status) -> list[str]:
    """Return the last events of the log as lines."""
    return [printable(f"  {event}").replace("\n", " ") for event in status.events]


def resume_command(status: Status) -> str | None:
    """Return what to type in the current folder to resume; None if nothing is to be done, or if unknown."""
    if status.state != STOPPED or status.heartbeat is None:
        return None
    invocation = status.heartbeat.invocation
    here = os.path.realpath(invocation.folder) == os.path.realpath(os.curdir)
    command = runnable_here(invocation.command, absolute=not here)
    return command if here or command is None else f"cd {shlex.quote(invocation.folder)} && {command}"


def describe_status(status: Status) -> str:
    """Return the state in a few words, with the reason or the time of the last heartbeat."""
    heartbeat = status.heartbeat
    if heartbeat is None:
        return status.state
    written, code, reason = _date(heartbeat.written), heartbeat.exit_code, heartbeat.snapshot.reason
    if status.state == RUNNING:
        if code is not None:  # the last heartbeat of the previous run: this one has not written any yet
            return f"{RUNNING}, {STARTING}"
        text, age = heartbeat.snapshot.reason_or_state(), time.time() - heartbeat.written
        if age > _SILENT_SECONDS:
            text = f"no heartbeat for {show_seconds(age)}: suspended, or the machine was asleep; {text}"
        return f"{RUNNING}, {text}"
    if status.state == STOPPED:
        if code is None:
            return f"{STOPPED}: killed, or a power cut; last heartbeat {written}"
        return f"{STOPPED} {written} with exit code {code}: {reason}"
    if code:
        return f"{COMPLETE}, but the run ended with exit code {code}: {reason}"
    return f"{COMPLETE} since {written}"


def _run_rows(status: Status, heartbeat: Heartbeat) -> list[tuple[str, str]]:
    if status.state != RUNNING:
        return []
    now, invocation = heartbeat.snapshot, heartbeat.invocation
    # Of a bucket or a shared folder, it may be another machine.
    elsewhere = f" on {invocation.machine}" if invocation.machine not in ("", socket.gethostname()) else ""
    process = ("process", f"{invocation.process}{elsewhere}, started {_moment(invocation.started)}")
    if now.state == VERIFYING:
        shards = show_number_of(now.finished_shards, "shard")
        return [("progress", f"{now.verified_shards:,} of {shards} checked"), process]
    share = f"{100 * now.share:.1f} %, " if now.share is not None else ""
    rows = [("progress", f"{share}{describe_tokens(now)} tokens")]
    if now.seconds_left is not None:
        rows.append(("left", f"{show_seconds(now.seconds_left)}, until "
                     f"{_moment(heartbeat.written + now.seconds_left)}"))  # fmt: skip
    elif now.state == WAITING:
        rows.append(("left", "unknown while the run waits"))
    if now.tokens_per_second:
        rows.append(("speed", f"{show_count(now.tokens_per_second)} tokens/s over the last minutes of work"))
    if now.fetched_bytes:
        speed = now.fetched_bytes_per_second
        rate = f", {show_bytes(speed)}/s over the last minutes of work" if speed else ""
        rows.append(("fetched", f"{show_bytes(now.fetched_bytes)} in this run{rate}"))
    if now.waited_seconds >= 1:
        rows.append(("waited", f"{show_seconds(now.waited_seconds)} in this run"))
    if now.workers:  # else the run has not begun: it waits to hear what there is to read
        within = 100 * now.shard_tokens / now.shard_size_tokens
        rows += [
            ("shard", f"number {now.shard}, {within:.0f} % of {show_count(now.shard_size_tokens)} tokens"),
            ("machine", f"{describe_machine(now)}{_describe_memory(now)}"),
        ]
    return [*rows, process]


def _describe_memory(snapshot: Snapshot) -> str:
    """Return the peak memory, behind the current one; empty if none was measured yet."""
    return f" of memory, {show_bytes(snapshot.peak_memory_bytes)} at most" if snapshot.memory_bytes else ""


def _folder_rows(manifest: Manifest) -> list[tuple[str, str]]:
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    rows = [
        ("shards", f"{manifest.shard_count:,} finished, {size}"),
        ("contents", f"{manifest.tokens:,} tokens, {show_number_of(manifest.documents, 'document')}"),
    ]
    if manifest.shards and not manifest.complete and "exported_from" not in manifest.settings:
        name, position = "the end", 0
        for part, end in reversed([*zip(manifest.parts, manifest.end, strict=True)]):
            if end.file < len(part.files):
                name, position = part.files[end.file]["name"], end.position
        rows.append(("reached", f"{name}, position {position:,}"))
    return [*rows, ("layout", manifest.settings["layout"]), ("validation", manifest.split_rule.describe())]


def _moment(seconds: float) -> str:
    """Format a time of today as `14:05`, any other with its date."""
    then = time.localtime(seconds)
    return time.strftime("%H:%M", then) if then[:3] == time.localtime()[:3] else _date(seconds)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
