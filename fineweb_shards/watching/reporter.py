"""Count finished shards, and write the report now and then, from a thread of its own.

Both read shards. A bucket, or a disk, that says nothing keeps this thread waiting, but neither the screen nor
the heartbeat.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fineweb_shards.reading.folder_statistics import FolderStatistics, complete_folder_statistics
from fineweb_shards.store.store import OutputSpec
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_record import RunRecord

REPORT_EVERY_SECONDS = 60.0
LOOK_EVERY_SECONDS = 1.0
_FIRST_REPORT_SECONDS = 5.0  # not while the workers start
_LONGEST_JOIN_SECONDS = 3.0
_LONGEST_JOIN_AFTER_ERROR_SECONDS = 1.0
_LONGEST_LAST_SECONDS = 3.0  # for an answer, when the run ends with an error


@dataclass(frozen=True, slots=True)
class Page:
    """The functions that write the report. Passed in, because this package may not import `report`."""

    write: Callable[..., object]  # with the keyword alive: bool
    closing_lines: Callable[[RunRecord], list[str]]
    prepare: Callable[[], None]  # loads what `write` needs


class Reporter:
    """Keeps the report of one run. `attempt` calls a function, whose errors must not end the run."""

    def __init__(
        self,
        output: OutputSpec,
        progress: Progress,
        page: Page,
        attempt: Callable[[Callable[[], None]], None],
    ) -> None:
        self._output = output
        self._progress = progress
        self._page = page
        self._attempt = attempt
        self._statistics: FolderStatistics | None = None
        self._next_report = time.monotonic() + _FIRST_REPORT_SECONDS
        self._prepared = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin to look, once a second."""
        self._thread.start()

    def end(self, *, after_error: bool) -> None:
        """Write the report for the last time. After an error nothing is waited for: it may be that the shards
        can't be read, and somebody has pressed Ctrl-C because of that."""
        self._ended.set()
        if self._thread.is_alive():  # not if its start was interrupted
            self._thread.join(_LONGEST_JOIN_AFTER_ERROR_SECONDS if after_error else _LONGEST_JOIN_SECONDS)
        if after_error:
            self._output.store.hurry(_LONGEST_LAST_SECONDS)
        self._attempt(lambda: self._write_report(alive=False))

    def update(self) -> None:
        """Do what is due."""
        self._attempt(self._count_shard)
        if time.monotonic() >= self._next_report and not self._ended.is_set():
            self._next_report = time.monotonic() + REPORT_EVERY_SECONDS
            self._attempt(lambda: self._write_report(alive=True))
        if not self._prepared and self._progress.begun:
            self._prepared = True
            self._attempt(self._page.prepare)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            self.update()

    def _count_shard(self) -> None:
        """Add one finished shard to the folder's statistics. One per call, because it takes a while; the last
        report counts those that are missing."""
        records, output = self._progress.records, self._output
        in_order = output.split_rule.is_in_order
        if self._statistics is None:
            self._statistics = complete_folder_statistics(
                output.store, output.shard_format, records[:], in_order=in_order
            )
        elif self._statistics.shards < len(records):
            record = records[self._statistics.shards]
            shard_format = output.shard_format
            self._statistics = self._statistics.add(output.store, shard_format, record, in_order=in_order)

    def _write_report(self, *, alive: bool) -> None:
        if self._statistics is not None:
            self._statistics.save(self._output.folder)
        self._page.write(alive=alive)
