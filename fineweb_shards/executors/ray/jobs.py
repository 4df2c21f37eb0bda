"""Keep the errands of a run until they are done: start them when they can be, again if their process dies.

An errand waits until all tokens that it writes are there, and until parts of its file that are written early
are written.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fineweb_shards.errors import WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.exit_cause import Death
from fineweb_shards.executors.ray.api import load_ray
from fineweb_shards.executors.ray.deaths import explain_failure
from fineweb_shards.executors.ray.errand_pool import ErrandPool
from fineweb_shards.executors.ray.messages import Errand, Piece, Returned
from fineweb_shards.executors.ray.unwritten import Attempt, Share
from fineweb_shards.executors.ray.waits import Waits
from fineweb_shards.executors.task import MAXIMUM_KILLS

Expect = Callable[[Any, Callable[[Future[Any]], None]], None]
_PAUSE_SECONDS = 1.0


@dataclass(eq=False)
class Job:
    """An errand on its way."""

    number: int
    function: Callable[..., Any] | None  # None: it only writes
    arguments: tuple[Any, ...]
    shares: Sequence[Share]
    after: Sequence[Job] = ()  # parts of the file that are written early
    scratch: str | None = None  # the file that it makes, if nobody else needs it
    future: Future[Any] = field(default_factory=Future)
    attempts: list[Attempt] = field(default_factory=list)  # that have the tokens, while it is running
    running: bool = False
    node: str = ""  # where it runs, or has run last
    deaths: int = 0
    not_before: float = 0.0  # a process that died takes a moment to start again

    @property
    def may_start(self) -> bool:
        """Whether it is not running, and everything that it needs is there."""
        if self.running or time.monotonic() < self.not_before:
            return False
        if not all(job.future.done() for job in self.after):
            return False
        return all(share.block.attempt for share in self.shares)

    @property
    def aim(self) -> str:
        """What it is to do, in words."""
        return "write tokens" if self.function is None else self.function.__name__.replace("_", " ")


class Jobs:
    """All errands that are not done. `expect` has a function called, later, with the future of a task;
    `on_written` gets what an errand has written, `on_lost` the attempts whose tokens are lost."""

    def __init__(
        self,
        run: str,
        expect: Expect,
        on_written: Callable[[Iterable[Share]], None],
        on_lost: Callable[[Iterable[Attempt]], None],
        *,
        creates: bool,
        observer: Observer,
        waits: Waits,
    ) -> None:
        self.pool = ErrandPool(run)
        self._expect = expect
        self._on_written = on_written
        self._on_lost = on_lost
        self._creates = creates
        self._observer = observer
        self._waits = waits
        self._jobs: dict[int, Job] = {}  # by number

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    @property
    def is_running(self) -> bool:
        """Whether one of them is being done."""
        return any(job.running for job in self._jobs.values())

    def add(
        self,
        number: int,
        function: Callable[..., Any] | None,
        arguments: tuple[Any, ...] = (),
        shares: Sequence[Share] = (),
        path: str | None = None,
    ) -> Future[Any]:
        """Add an errand: write these shares, then call the function. If it finishes the file at `path`, it
        waits for the parts of it that are written early."""
        writes = (job for job in self._jobs.values() if job.function is None)
        after = [job for job in writes if job.shares[0].placement.path == path]
        scratch = path if self._creates else None
        job = self._jobs[number] = Job(number, function, arguments, shares, after, scratch)
        self._start(job)
        return job.future

    def start_all(self) -> None:
        """Start every errand that can be."""
        for job in list(self._jobs.values()):
            self._start(job)

    def _start(self, job: Job) -> None:
        if self.pool.is_empty or not job.may_start:
            return
        places: dict[Attempt, int] = {}
        pieces = []
        for share in job.shares:
            block = share.block
            assert block.attempt is not None
            number = places.setdefault(block.attempt, len(places))
            pieces.append(Piece(number, block.array, share.placement))
        job.attempts, job.running = list(places), True
        errand = Errand(tuple(pieces), job.function, job.arguments, job.scratch)
        references = [attempt.tokens for attempt in job.attempts]
        job.node, returned = self.pool.start(job.number, references, pickle.dumps(errand))
        self._expect(returned, partial(self._finish, job))

    def _finish(self, job: Job, future: Future[bytes]) -> None:
        self.pool.finish(job.node)
        self._waits.end(job.number)
        attempts, job.attempts, job.running = job.attempts, [], False
        try:
            returned: Returned = pickle.loads(future.result())
        except load_ray().exceptions.RayError as error:
            self._note_death(job, explain_failure(error))
            return
        if returned.lost:
            self._on_lost(attempts[index] for index in returned.lost)
            return
        del self._jobs[job.number]
        if returned.error is not None:
            job.future.set_exception(returned.error)
            if job.function is None:  # nobody waits for it but the file
                raise returned.error
            return
        self._on_written(job.shares)
        job.future.set_result(returned.result)

    def _note_death(self, job: Job, death: Death) -> None:
        """Have an errand done again whose process died; WorkerError after too many times."""
        job.deaths += 1
        job.not_before = time.monotonic() + _PAUSE_SECONDS
        text = f"a process that was to {job.aim} {death.description}; another one does it"
        # A node has several at once: one line on the screen is enough for all that it takes along.
        self._observer.tell(Event("worker", text, loud=self.pool.avoid(job.node)))
        if job.deaths >= MAXIMUM_KILLS:
            raise WorkerError(
                f"{job.deaths} processes that were to {job.aim} died: the last one {death.description}.",
                "Everything finished is kept; the same command goes on.",
            )
