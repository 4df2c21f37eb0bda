"""`status`: show the progress of a run, whether it is active, and how to resume it if it is not.

It reads the manifest, the heartbeat and the log, and tries the lock, so it is quick and safe at any time, from any
terminal. Only the lock shows whether a run is active: a killed run leaves its heartbeat behind.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from fineweb_shards.output.manifest import Manifest, find_manifest
from fineweb_shards.output.opening import missing_manifest_error
from fineweb_shards.output.store import Store
from fineweb_shards.system.shell_commands import NOT_RESUMABLE, runnable_here
from fineweb_shards.system.terminal import printable, terminal_size, wrap
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.mix_shares import share_rows, shares_in
from fineweb_shards.watching.run_files import PASS_NAMES, Heartbeat, State, last_lines, load_heartbeat
from fineweb_shards.watching.screen import describe_machine, describe_tokens

RUNNING = "running"
# Different from those of errors.py: these are answers, not failures.
EXIT_CODES: dict[str, int] = {State.COMPLETE: 0, RUNNING: 20, State.STOPPED: 21}
_SILENT_SECONDS = 60.0  # without a heartbeat: `status` says why that may be


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
    """Read the state of a store; OutputError if no build has begun there. `alive`: whether a run is active."""
    if alive is None:
        alive = store.is_locked()  # first: if a run ends now, everything read later is final
        store.refresh()
    manifest, heartbeat = find_manifest(store), load_heartbeat(store.folder)
    if manifest is None and not alive and heartbeat is None:
        raise missing_manifest_error(store)
    complete = manifest is not None and manifest.complete
    state = RUNNING if alive else State.COMPLETE if complete else State.STOPPED
    return Status(store, state, manifest, heartbeat, last_lines(store.folder, 5))


def show_status(status: Status, *, as_json: bool) -> None:
    lines = [json.dumps(status_values(status))] if as_json else status_lines(status)
    if sys.stdout.isatty() and not as_json:
        columns = terminal_size(sys.stdout).columns
        # Indent the second line of an event; `wrap` finds the column of a row itself.
        hangs = [4 if line.startswith("  ") else None for line in lines]
        lines = [piece for line, hang in zip(lines, hangs, strict=True) for piece in wrap(line, columns, hang=hang)]
    print("\n".join(lines), flush=True)


def status_values(status: Status) -> dict[str, Any]:
    return {
        "state": status.state,
        **folder_values(status.store, status.manifest),
        "resume": resume_command(status),
        "heartbeat": status.heartbeat.to_json() if status.heartbeat else None,
        "events": status.events,
    }


def folder_values(store: Store, manifest: Manifest | None) -> dict[str, Any]:
    """Return the contents of a folder's finished shards as values for JSON."""
    shuffle = None
    if manifest and manifest.is_shuffled:
        piles = manifest.piles.count if manifest.piles else 0
        values = {"seed": manifest.settings["shuffle"], "pass_number": manifest.pass_number, "piles": piles}
        shuffle = {**values, "piled_tokens": manifest.piled_tokens}
    return {
        "folder": store.location,
        "shards": manifest.shard_count if manifest else 0,
        "tokens": manifest.tokens if manifest else 0,
        "documents": manifest.documents if manifest else 0,
        "bytes": sum(shard.bytes for shard in manifest.shards) if manifest else 0,
        "parts": [asdict(part) for part in shares_in(manifest)] if manifest else [],
        "shuffle": shuffle,
    }


def describe_shuffle(manifest: Manifest) -> str:
    """Describe the seed of a shuffle and, until it is done, its progress."""
    shown, state = f"by seed {manifest.settings['shuffle']}", manifest.piles
    if state is None:
        return shown
    piles = show_number_of(state.count, "pile")
    if manifest.complete:
        return f"{shown}, in two passes, through {piles}"
    return f"{shown}; {PASS_NAMES[manifest.pass_number]}; {manifest.piled_tokens:,} tokens are in {piles}"


def status_lines(status: Status) -> list[str]:
    """Return a status as lines for people: rows, the most important first, then the last events."""
    rows, manifest = [("state", describe_status(status))], status.manifest
    if status.state == State.STOPPED:
        command = resume_command(status)
        is_lost = status.heartbeat is not None and status.heartbeat.invocation.command == NOT_RESUMABLE
        otherwise = ("next", NOT_RESUMABLE if is_lost else "rerun the same build command to resume")
        rows.append(("resume", command) if command else otherwise)
    shares = shares_in(manifest) if manifest is not None else ()
    if status.heartbeat is not None and status.state == RUNNING:
        rows += _run_rows(status.heartbeat)
        shares = status.heartbeat.snapshot.parts or shares
    if manifest is not None:
        size = show_bytes(sum(shard.bytes for shard in manifest.shards))
        counted = f"{manifest.tokens:,} tokens, {show_number_of(manifest.documents, 'document')}"
        rows += [("shards", f"{manifest.shard_count:,} finished, {size}"), ("contents", counted)]
        if manifest.is_shuffled:
            rows.append(("shuffle", describe_shuffle(manifest)))
        rows += [("layout", manifest.settings["layout"]), ("validation", manifest.split_rule.describe())]
    rows += share_rows(shares)
    lines = [f"{name:<10} {text}" for name, text in rows]
    if status.events:
        lines += ["", "last events", *(f"  {event}" for event in status.events)]
    return [printable(line).replace("\n", " ") for line in lines]


def resume_command(status: Status) -> str | None:
    """Return the command that resumes the build from the current folder; None if it is complete, active or unknown."""
    if status.state != State.STOPPED or status.heartbeat is None:
        return None
    invocation = status.heartbeat.invocation
    here = os.path.realpath(invocation.folder) == os.path.realpath(os.curdir)
    command = runnable_here(invocation.command, absolute=not here)
    return command if here or command is None else f"cd {shlex.quote(invocation.folder)} && {command}"


def describe_status(status: Status) -> str:
    """Return the state in a few words, with the reason or the time of the last heartbeat."""
    heartbeat = status.heartbeat
    if heartbeat is None:  # of an older version, or of a run that is still opening its input
        return f"{RUNNING}, {State.STARTING}" if status.state == RUNNING else status.state
    written, code, reason = _date(heartbeat.written), heartbeat.exit_code, heartbeat.snapshot.reason
    if status.state == RUNNING:
        if code is not None:  # the previous run's last heartbeat: this one has not written any yet
            return f"{RUNNING}, {State.STARTING}"
        now = heartbeat.snapshot.state
        if now == State.ENCODING:  # the second pass of a shuffle does not
            now = heartbeat.snapshot.pass_name or now
        age, silence = time.time() - heartbeat.written, ""
        if age > _SILENT_SECONDS:
            silence = f"no heartbeat for {show_seconds(age)}: suspended, still starting, or the machine was asleep; "
        return f"{RUNNING}, {silence}{reason or now}"
    if status.state == State.STOPPED:
        if code is None:
            return f"stopped: killed, or a power cut; last heartbeat {written}"
        return f"stopped {written} with exit code {code}: {reason}"
    if code:
        return f"complete, but the run ended with exit code {code}: {reason}"
    return f"complete since {written}"


def _run_rows(heartbeat: Heartbeat) -> list[tuple[str, str]]:
    now, invocation = heartbeat.snapshot, heartbeat.invocation
    # The run of a bucket or a shared folder may be on another machine.
    elsewhere = f" on {invocation.machine}" if invocation.machine not in ("", socket.gethostname()) else ""
    process = ("process", f"{invocation.process}{elsewhere}, started {_moment(invocation.started)}")
    if now.state == State.VERIFYING:
        shards = show_number_of(now.finished_shards, "shard")
        return [("progress", f"{now.verified_shards:,} of {shards} checked"), process]
    share = f"{100 * now.share:.1f} %" if now.share is not None else ""
    rows = [("progress", ", ".join(filter(None, (share, now.pass_name, f"{describe_tokens(now)} tokens"))))]
    if now.seconds_left is not None:
        rows.append(("left", f"{show_seconds(now.seconds_left)}, until "
                     f"{_moment(heartbeat.written + now.seconds_left)}"))  # fmt: skip
    elif now.state == State.WAITING:
        rows.append(("left", "unknown while the run waits"))
    if now.tokens_per_second:
        rows.append(("speed", f"{show_count(now.tokens_per_second)} tokens/s over the last minutes of work"))
    if now.fetched_bytes:
        speed = now.fetched_bytes_per_second
        rate = f", {show_bytes(speed)}/s over the last minutes of work" if speed else ""
        rows.append(("fetched", f"{show_bytes(now.fetched_bytes)} in this run{rate}"))
    if now.waited_seconds >= 1:
        rows.append(("waited", f"{show_seconds(now.waited_seconds)} in this run"))
    if now.workers:  # else the run is still waiting for the list of its input
        within = 100 * now.shard_tokens / now.shard_size_tokens
        peak = show_bytes(now.peak_memory_bytes)
        memory = f" of memory, peak {peak}" if now.memory_bytes else ""  # if any was measured yet
        full = show_count(now.shard_size_tokens)
        # The first pass has no shard, and right after a resume the next one is unknown.
        if now.pass_number != 1 and (now.tokens > now.resumed_tokens or not now.tokens):
            rows.append(("shard", f"number {now.shard}, {within:.0f} % of {full} tokens"))
        rows.append(("machine", f"{describe_machine(now)}{memory}"))
    return [*rows, process]


def _moment(seconds: float) -> str:
    """Format a time as `14:05` if it is today, else with its date."""
    then = time.localtime(seconds)
    return time.strftime("%H:%M", then) if then[:3] == time.localtime()[:3] else _date(seconds)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
