"""Show a run while it goes on: not at all, as lines, or as JSON. The bars in a terminal are in bars.py.

The monitor calls `show` once a second, from its own thread; `say`, `tell` and `warn` may be called from any.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

from fineweb_shards.events import Event
from fineweb_shards.system.terminal import shown_on
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.snapshot import FETCHING, VERIFYING, WAITING, Snapshot

_LINE_EVERY_SECONDS = 60.0
_OBJECT_EVERY_SECONDS = 5.0


class Screen:
    """Shows nothing but warnings (--quiet). Subclasses override what they show."""

    shows_waits = True  # so that waits are not announced as loud events as well; --quiet hides them anyway

    def say(self, text: str) -> None:
        """Show a line that belongs to no event, such as the closing lines of a run."""

    def tell(self, event: Event) -> None:
        """Show a loud event."""

    def warn(self, text: str) -> None:
        """Show a line that even --quiet does not hide."""
        print(shown_on(sys.stderr, text), file=sys.stderr, flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """Show the current state of the run."""

    def say_stopping(self) -> None:
        """Answer Ctrl-C, before the run ends. Called by a signal handler."""
        self.say("stopping …")

    def close(self) -> None:
        """Remove what is redrawn in place, so that ordinary output can follow."""

    def wipe_sequence(self) -> str:
        """Return the characters that erase this screen, for a signal handler, which can't call `close`."""
        return ""


class LineScreen(Screen):
    """Prints a line a minute and one for each event to standard error, without control characters."""

    shows_waits = False

    def __init__(self) -> None:
        self._next_line = time.monotonic() + _LINE_EVERY_SECONDS

    def say(self, text: str) -> None:
        print(shown_on(sys.stderr, text), file=sys.stderr, flush=True)

    def tell(self, event: Event) -> None:
        self.say(event.text)

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() >= self._next_line:
            self._next_line += _LINE_EVERY_SECONDS
            self.say(f"{time.strftime('%H:%M')} {describe(snapshot)}")


class JsonScreen(Screen):
    """Prints JSON objects to standard output, one per line (--json); docs/reference.md lists their fields."""

    def __init__(self) -> None:
        self._next_object = 0.0

    def say(self, text: str) -> None:
        self.tell(Event("note", text))

    def tell(self, event: Event) -> None:
        put_json({"event": "message", "kind": event.kind, "text": event.text})

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() >= self._next_object:
            self._next_object = time.monotonic() + _OBJECT_EVERY_SECONDS
            put_json({"event": "progress", **dataclasses.asdict(snapshot)})


def put_json(values: dict[str, Any]) -> None:
    """Print an object on one line of standard output; in ASCII, so that it is safe in any terminal."""
    sys.stdout.write(json.dumps({"time": round(time.time(), 1), **values}) + "\n")
    sys.stdout.flush()


def describe(snapshot: Snapshot) -> str:
    """Return the state of a run in one line."""
    if snapshot.state == VERIFYING:
        return (
            f"verifying: {snapshot.verified_shards:,} of {show_number_of(snapshot.finished_shards, 'shard')}"
        )
    parts = [f"shard {snapshot.shard}: {describe_tokens(snapshot)} tokens"]
    if snapshot.tokens_per_second:
        parts.append(f"{show_count(snapshot.tokens_per_second)} tokens/s")
    if snapshot.fetched_bytes_per_second:
        parts.append(f"{show_bytes(snapshot.fetched_bytes_per_second)}/s fetched")
    if snapshot.seconds_left is not None:
        parts.append(f"{show_seconds(snapshot.seconds_left)} left")
    parts.append(describe_machine(snapshot))
    if snapshot.state == WAITING:
        parts.append(snapshot.reason)
    return ", ".join(parts)


def describe_tokens(snapshot: Snapshot) -> str:
    """Return the tokens done and expected: `3.71B of about 10B`."""
    if snapshot.expected_tokens is None:
        return show_count(snapshot.tokens)
    about = "" if snapshot.expected_exact else "about "
    return f"{show_count(snapshot.tokens)} of {about}{show_count(snapshot.expected_tokens)}"


def describe_state(snapshot: Snapshot) -> str:
    """Return the state, with the network's speed if there is one: `encoding`, `fetching 46.2 MB/s`."""
    state, speed = snapshot.state, snapshot.fetched_bytes_per_second
    return f"{state} {show_bytes(speed)}/s" if state == FETCHING and speed else state


def describe_machine(snapshot: Snapshot) -> str:
    """Return workers and memory in use: `2 workers, 731 MB`, `3 nodes, 24 workers, 9.1 GB`."""
    workers = show_number_of(snapshot.workers, "worker")
    if snapshot.nodes:
        workers = f"{show_number_of(snapshot.nodes, 'node')}, {workers}"
    return f"{workers}, {show_bytes(snapshot.memory_bytes)}" if snapshot.memory_bytes else workers
