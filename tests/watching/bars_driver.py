"""The bars through a whole run, for a terminal that somebody listens to."""

from __future__ import annotations

import sys
from dataclasses import replace

from fineweb_shards.events import Event
from fineweb_shards.watching.run_files import State
from fineweb_shards.watching.screen import choose_screen
from tests.support.example_run import SNAPSHOT

REASON = "waiting for the network since 02:13 ({} %s " + "x" * 300

screen = choose_screen(quiet=False, as_json=False)
screen.show(replace(SNAPSHOT, state=State.STARTING, tokens_per_second=None, seconds_left=None, expected_tokens=None))
screen.tell(Event("worker", "worker 7 was killed; replaced"))
screen.show(SNAPSHOT)
screen.show(replace(SNAPSHOT, state=State.WAITING, reason=REASON))
screen.show(replace(SNAPSHOT, state=State.VERIFYING, verified_shards=2))
screen.close(replace(SNAPSHOT, state=State.COMPLETE))
print("the end", file=sys.stderr)
