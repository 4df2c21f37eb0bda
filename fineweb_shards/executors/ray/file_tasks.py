"""Have files written and sealed on the nodes: start each task when it can be, again if its process dies.

A task waits until all tokens that it writes are there, and until parts of its file that are written early are
written.

The processes that do it are actors and not Ray tasks: Ray ends processes that had nothing to do for a second,
and starting one takes a second of processor time, which a shard every few seconds would cost each time. They
take no core of their node's, so a file never waits for batches. If one dies Ray starts it again. A node gets
one when all others have something to do.

Ray takes 15 seconds to notice that a node is gone. So where a task has died no other is started for a while,
if there is any other node.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.file_tasks import (
    FileOrder,
    FileResult,
    FileTask,
    FileWork,
    StoredTokens,
    describe_work,
)
from fineweb_shards.executors.ray.cluster import explain_failure, load_ray
from fineweb_shards.executors.ray.unwritten import Attempt, Share
from fineweb_shards.executors.ray.worker import FileProcess
from fineweb_shards.executors.scheduled_executor import Waits
from fineweb_shards.executors.worker_death import Death
from fineweb_shards.store.store import Segment

Expect = Callable[[Any, Callable[[Future[Any]], None]], None]
_PAUSE_SECONDS = 1.0
_AT_ONCE = 4  # files, on a node
_AVOID_SECONDS = 60.0


@dataclass(eq=False)
class NodeTask(FileTask):
    """A file task, and the tokens that it writes."""

    shares: Sequence[Share] = ()
    after: Sequence[NodeTask] = ()  # parts of the file that are written early
    attempts: list[Attempt] = field(default_factory=list)  # that have the tokens, while it is running
    running: bool = False
    node: str = ""  # where it runs, or has run last
    not_before: float = 0.0  # a process that died takes a moment to start again

    @property
    def may_start(self) -> bool:
        """Whether it is not running, and everything that it needs is there."""
        if self.running or time.monotonic() < self.not_before:
            return False
        if not all(task.future.done() for task in self.after):
            return False
        return all(share.block.attempt for share in self.shares)


class NodeTasks:
    """All file tasks that are not done. `expect` has a function called, later, with the future of a Ray task;
    `on_written` gets what a task has written, `on_lost` the attempts whose tokens are lost. `creates`: nodes
    don't see the output folder, so each makes its file on its own disk."""

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
        self.processes = FileProcesses(run)
        self._expect = expect
        self._on_written = on_written
        self._on_lost = on_lost
        self._creates = creates
        self._observer = observer
        self._waits = waits
        self._tasks: dict[int, NodeTask] = {}  # by number

    def __contains__(self, number: int) -> bool:
        return number in self._tasks

    @property
    def is_running(self) -> bool:
        """Whether one of them is being done."""
        return any(task.running for task in self._tasks.values())

    def add(self, number: int, work: FileWork | None, shares: Sequence[Share] = ()) -> Future[Any]:
        """Add a task: write these shares, then finish the file. If it seals a file, it waits for the parts of
        it that are written early."""
        path = str(work.path) if isinstance(work, Segment) else None
        writes = (task for task in self._tasks.values() if task.work is None)
        after = [task for task in writes if task.shares[0].placement.path == path]
        task = self._tasks[number] = NodeTask(number, work, shares=shares, after=after)
        self._start(task)
        return task.future

    def start_all(self) -> None:
        """Start every task that can be."""
        for task in list(self._tasks.values()):
            self._start(task)

    def _start(self, task: NodeTask) -> None:
        if self.processes.is_empty or not task.may_start:
            return
        positions: dict[Attempt, int] = {}
        tokens = []
        for share in task.shares:
            block = share.block
            assert block.attempt is not None
            position = positions.setdefault(block.attempt, len(positions))
            tokens.append(StoredTokens(position, block.array, share.placement))
        task.attempts, task.running = list(positions), True
        on_own_disk = self._creates and isinstance(task.work, Segment)
        order = FileOrder(task.number, task.work, tuple(tokens), on_own_disk)
        references = [attempt.tokens for attempt in task.attempts]
        task.node, result = self.processes.start(references, pickle.dumps(order))
        self._expect(result, partial(self._finish, task))

    def _finish(self, task: NodeTask, future: Future[bytes]) -> None:
        self.processes.finish(task.node)
        self._waits.end(task.number)
        attempts, task.attempts, task.running = task.attempts, [], False
        try:
            result: FileResult = pickle.loads(future.result())
        except load_ray().exceptions.RayError as error:
            self._note_death(task, explain_failure(error))
            return
        if result.lost:
            self._on_lost(attempts[index] for index in result.lost)
            return
        del self._tasks[task.number]
        if result.error is None:
            self._on_written(task.shares)
        task.finish(result)
        if result.error is not None and task.work is None:  # nobody waits for it but the file
            raise result.error

    def _note_death(self, task: NodeTask, death: Death) -> None:
        """Have a task done again whose process died; WorkerError after too many times."""
        task.not_before = time.monotonic() + _PAUSE_SECONDS
        text = f"a process that was to {describe_work(task.work)} {death.description}; another one does it"
        # A node has several at once: one line on the screen is enough for all that it takes along.
        self._observer.tell(Event("worker", text, loud=self.processes.avoid(task.node)))
        task.note_death(death)


class FileProcesses:
    """The processes on nodes that write and finish files. `run` is the name of the run's board."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._nodes: list[str] = []
        self._actors: dict[str, Any] = {}  # by node; those that have had a task
        self._busy: Counter[str] = Counter()  # tasks, by node
        self._avoided: dict[str, float] = {}  # nodes where a task died, and until when

    def set_nodes(self, nodes: Iterable[str]) -> None:
        """Have files finished on these nodes, and on no other."""
        self._nodes = list(dict.fromkeys(nodes))
        self._actors = {node: self._actors[node] for node in self._nodes if node in self._actors}

    def start(self, objects: Sequence[Any], order: bytes) -> tuple[str, Any]:
        """Have an order done on the node with the fewest; return the node, and the reference to a pickled
        FileResult. There has to be a node."""
        now = time.monotonic()
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        node = min(
            self._nodes,
            key=lambda one: (one in self._avoided, self._busy[one], one not in self._actors),
        )
        self._busy[node] += 1
        if node not in self._actors:
            self._actors[node] = self._start_process(node)
        return node, self._actors[node].do.remote(objects, order)

    def finish(self, node: str) -> None:
        """Note that an order has ended."""
        self._busy[node] -= 1

    def avoid(self, node: str) -> bool:
        """Start nothing on a node for a while, because a process has died there; return whether that is
        new."""
        is_new = node not in self._avoided
        self._avoided[node] = time.monotonic() + _AVOID_SECONDS
        return is_new

    @property
    def is_empty(self) -> bool:
        """Whether there is no node."""
        return not self._nodes

    def close(self) -> None:
        """End all processes."""
        for actor in self._actors.values():
            load_ray().kill(actor)

    def _start_process(self, node: str) -> Any:
        ray = load_ray()
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(FileProcess).options(
            num_cpus=0, max_restarts=-1, max_concurrency=_AT_ONCE, scheduling_strategy=there
        )
        return actor.remote(self._run)
