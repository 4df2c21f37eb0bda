"""The part that executors with a schedule share: list batches, give them out, yield their blocks in order.

Everything happens in the caller's thread, inside `encode` and `wait`. A subclass gives out what there is to
do (`_give_out`), and waits until something has happened (`_listen`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Generic

from fineweb_shards.executors.base import Executor, Result
from fineweb_shards.executors.producer import Producer
from fineweb_shards.executors.schedule import Schedule, Worker
from fineweb_shards.executors.token_goal import TokenGoal
from fineweb_shards.types import Batch, EncodedBlock


class ScheduledExecutor(Executor, Generic[Worker]):
    """Has the batches of a schedule done by workers of any kind."""

    def __init__(self, schedule: Schedule[Worker]) -> None:
        self._schedule = schedule
        self._producer: Producer | None = None
        self._goal = TokenGoal(lambda: None)

    @abstractmethod
    def _give_out(self) -> None:
        """Give out what there is to do."""

    @abstractmethod
    def _listen(self) -> None:
        """Wait until something has happened, but not for long, and handle it."""

    @abstractmethod
    def _wake(self) -> None:
        """End a wait in `_listen`, from another thread: there is another batch."""

    @property
    @abstractmethod
    def _ahead(self) -> int:
        """How many batches to list ahead."""

    def encode(
        self,
        batches: Iterator[Batch],
        on_idle: Callable[[], None] = lambda: None,
        wanted_tokens: Callable[[], int | None] = lambda: None,
    ) -> Generator[EncodedBlock]:
        self._goal = TokenGoal(wanted_tokens)
        producer = self._producer = Producer(batches, self._ahead, self._wake)
        try:
            while True:
                self._give_out()
                if self._schedule.has_output:
                    yield from self._schedule.take_output()
                elif self._schedule.is_empty and producer.ended:
                    if producer.failure is not None:
                        raise producer.failure
                    return
                else:
                    on_idle()
                    self._listen()
        finally:
            self._abandon_output()
            self._producer = None
            producer.stop()

    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        until = None if longest_seconds is None else time.monotonic() + longest_seconds
        while not future.done():
            if until is not None and time.monotonic() > until:
                raise TimeoutError
            self._give_out()
            self._listen()
        return future.result()

    def _abandon_output(self) -> None:
        """Give up what was not output: the stream ends before it."""
        self._schedule.abandon_output()

    def _take_batch(self) -> bool:
        """Add the next batch of the listing to the schedule, if there is one now, and if it is needed."""
        schedule = self._schedule
        if not schedule.is_empty and self._goal.is_met_by(schedule.waiting_bytes, schedule.output_bytes):
            return False
        batch = None if self._producer is None or self._producer.ended else self._producer.take()
        if batch is not None:
            schedule.add(batch)
        return batch is not None
