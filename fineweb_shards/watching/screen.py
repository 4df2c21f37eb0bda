"""What a person or a program sees while a run goes on, apart from the bars in a terminal (bars.py).

The monitor calls `show` once a second, from its own thread; `say` and `tell` may come from any.
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
    """Shows nothing: --quiet. The others override what they show."""

    shows_waits = True  # so that nobody says it once more; here: because nobody wants to know

    def say(self, text: str) -> None:
        """A line that belongs to no event: the plan, what --fresh deletes."""

    def tell(self, event: Event) -> None:
        """A loud event."""

    def complain(self, text: str) -> None:
        """Something that even --quiet does not hide."""
        print(shown_on(sys.stderr, text), file=sys.stderr, flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """How things stand now."""

    def close(self) -> None:
        """Leave nothing behind that moves."""

    def abandon(self) -> str:
        """What has to be written to wipe this screen when there is no time to close it."""
        return ""


class LineScreen(Screen):
    """A line a minute and one for each event, on standard error; no control characters."""

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
    """--json: objects, one a line, on standard output; docs/reference.md tells what is in them."""

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
    """One object on a line of standard output; ASCII, so that nothing in it can harm a terminal."""
    sys.stdout.write(json.dumps({"time": round(time.time(), 1), **values}) + "\n")
    sys.stdout.flush()


def describe(snapshot: Snapshot) -> str:
    """A run in one line."""
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
    """`3.71B of about 10B`."""
    if snapshot.expected_tokens is None:
        return show_count(snapshot.tokens)
    about = "" if snapshot.expected_exact else "about "
    return f"{show_count(snapshot.tokens)} of {about}{show_count(snapshot.expected_tokens)}"


def describe_state(snapshot: Snapshot) -> str:
    """`encoding`, or `fetching 46.2 MB/s`."""
    state, speed = snapshot.state, snapshot.fetched_bytes_per_second
    return f"{state} {show_bytes(speed)}/s" if state == FETCHING and speed else state


def describe_machine(snapshot: Snapshot) -> str:
    """`2 workers, 731 MB`."""
    workers = show_number_of(snapshot.workers, "worker")
    return f"{workers}, {show_bytes(snapshot.memory_bytes)}" if snapshot.memory_bytes else workers
