"""Write and seal files on the nodes: start each task as soon as possible, and again if its process dies.

`Unwritten` records where tokens belong until they are written: blocks by batch and number, placements by file. An
`Attempt` holds the tokens of its blocks; if it is lost, they wait until another attempt has encoded them again.

A task starts when all its tokens are available and the early parts of its file are written.

The processes are actors, not Ray tasks: Ray ends processes that were idle for a second, and starting one takes a second
of processor time, which every shard would cost. They occupy no core of their node, so a file never waits for batches.
Ray restarts one that dies. A node gets one when all others are busy.

Ray takes 15 seconds to notice that a node is gone. So after a task has died, its node is avoided for a while if there
is any other.
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
from fineweb_shards.executors.messages import FileOrder, FileResult, FileWork, StoredTokens, WorkOrder, describe_work
from fineweb_shards.executors.ray.cluster import explain_failure, load_ray
from fineweb_shards.executors.ray.worker import FileProcess
from fineweb_shards.executors.scheduled_executor import Waits
from fineweb_shards.executors.task import FileTask
from fineweb_shards.output.shard_files import PileWork
from fineweb_shards.output.store import Segment
from fineweb_shards.types import Placement

Key = tuple[int, int]  # the numbers of a batch and of its block
Expect = Callable[[Any, Callable[[Future[Any]], None]], None]
_PAUSE_SECONDS = 1.0
_AT_ONCE = 4  # files on a node
_AVOID_SECONDS = 60.0


@dataclass(eq=False)
class Attempt:
    """A task that encodes batches; later the object in Ray's store with their tokens."""

    number: int
    orders: tuple[WorkOrder, ...] = ()
    tokens: Any = None  # the reference to that object
    keys: set[Key] = field(default_factory=set)  # of its unwritten blocks

    @property
    def text_bytes(self) -> int:
        return sum(order.batch.size_bytes for order in self.orders)


@dataclass(eq=False)
class StoredBlock:
    """The tokens of a block: array number `array` of its attempt."""

    key: Key
    size_bytes: int
    attempt: Attempt | None = None  # None: the tokens were lost
    array: int = 0
    left: int | None = None  # unwritten placements; None: there was no placement yet
    is_placed: bool = False  # no more placements will come

    @property
    def is_written(self) -> bool:
        return self.is_placed and not self.left


@dataclass(frozen=True)
class Share:
    """The part of a block that belongs in one file."""

    block: StoredBlock
    placement: Placement
    size_bytes: int


class Unwritten:
    """All blocks with tokens in Ray's store, of `token_bytes` each."""

    def __init__(self, token_bytes: int) -> None:
        self._token_bytes = token_bytes
        self.blocks: dict[Key, StoredBlock] = {}
        self.unplaced_bytes = 0  # of blocks without placements
        self.placed_bytes = 0
        self._shares: dict[str, list[Share]] = {}  # by file, in order; not yet given to a file task
        self._waiting_bytes: dict[str, int] = {}  # of those, by file

    def receive(self, key: Key, attempt: Attempt, array: int, size_bytes: int) -> StoredBlock:
        """Note that an attempt has the tokens of a block, perhaps in place of a lost attempt."""
        block = self.blocks.get(key)
        if block is None or block.left is None:
            self.forget([key])
            block = self.blocks[key] = StoredBlock(key, size_bytes)
            self.unplaced_bytes += size_bytes
        block.attempt, block.array = attempt, array
        attempt.keys.add(key)
        return block

    def place(self, key: Key, size_bytes: int, placements: Sequence[Placement], *, last: bool = True) -> StoredBlock:
        """Note where tokens of a block belong, even if they are lost. After the `last` call no more placements come."""
        block = self.blocks.get(key)
        if block is None:
            block = self.blocks[key] = StoredBlock(key, size_bytes)
        elif block.left is None:
            self.unplaced_bytes -= size_bytes
        if block.left is None:
            self.placed_bytes += size_bytes
        block.left = (block.left or 0) + len(placements)
        block.is_placed = last
        for placement in placements:
            path = placement.path
            placed_bytes = int((placement.ranges[:, 1] - placement.ranges[:, 0]).sum()) * self._token_bytes
            self._shares.setdefault(path, []).append(Share(block, placement, placed_bytes))
            self._waiting_bytes[path] = self._waiting_bytes.get(path, 0) + placed_bytes
        return block

    def take(self, path: str, end: int | None = None) -> list[Share]:
        """Remove and return the shares of a file, or only those before its byte `end`."""
        shares = self._shares.pop(path, [])
        taken = [share for share in shares if end is None or share.placement.begin < end]
        later = [share for share in shares if end is not None and share.placement.begin >= end]
        self._waiting_bytes.pop(path, None)
        if later:
            self._shares[path] = later
            self._waiting_bytes[path] = sum(share.size_bytes for share in later)
        return taken

    def fullest(self) -> tuple[str | None, int]:
        """Return the file with the most waiting bytes, and their number."""
        path = max(self._waiting_bytes, key=self._waiting_bytes.__getitem__, default=None)
        return path, self._waiting_bytes[path] if path is not None else 0

    def note_written(self, block: StoredBlock) -> bool:
        """Note that a placement of a block is written; return whether it was the last one."""
        assert block.left is not None
        block.left -= 1
        return block.is_written

    def lose(self, attempt: Attempt) -> None:
        """Note that the tokens of an attempt are lost. Unplaced blocks will be received again."""
        self.forget([key for key in attempt.keys if self.blocks[key].left is None])
        for key in attempt.keys:
            self.blocks[key].attempt = None
        attempt.keys.clear()

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget blocks that are written or not needed."""
        for key in keys:
            block = self.blocks.pop(key, None)
            if block is None:
                continue
            if block.left is None:
                self.unplaced_bytes -= block.size_bytes
            else:
                self.placed_bytes -= block.size_bytes
            if block.attempt is not None:
                block.attempt.keys.discard(key)

    def abandon(self) -> list[StoredBlock]:
        """Forget the unplaced blocks: no more placements will come. Return partly placed blocks that are written."""
        self.forget([key for key, block in self.blocks.items() if block.left is None])
        partly = [block for block in self.blocks.values() if not block.is_placed]
        for block in partly:
            block.is_placed = True
        return [block for block in partly if block.is_written]


@dataclass(eq=False)
class NodeTask(FileTask):
    """A file task, and the tokens that it writes."""

    shares: Sequence[Share] = ()
    after: Sequence[NodeTask] = ()  # the early parts of the file
    attempts: list[Attempt] = field(default_factory=list)  # that have the tokens, while the task runs
    running: bool = False
    node: str = ""  # where it runs, or ran last
    not_before: float = 0.0  # a process that died takes a moment to start again


class NodeTasks:
    """All unfinished file tasks, and the processes on the nodes that do them. `run` is the name of the run's board;
    `expect` registers a callback for a Ray task's future; `on_written` gets the shares that a task has written,
    `on_lost` the attempts whose tokens are lost. `creates`: nodes don't see the output folder, so each creates its file
    on its own disk."""

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
        self._run = run
        self._expect = expect
        self._on_written = on_written
        self._on_lost = on_lost
        self._creates = creates
        self._observer = observer
        self._waits = waits
        self._tasks: dict[int, NodeTask] = {}  # by number
        self._nodes: list[str] = []
        self._processes: dict[str, Any] = {}  # actors, by node
        self._busy: Counter[str] = Counter()  # tasks, by node
        self._avoided: dict[str, float] = {}  # nodes where a task died, with the end of the time to avoid them

    def __contains__(self, number: int) -> bool:
        return number in self._tasks

    @property
    def is_running(self) -> bool:
        return any(task.running for task in self._tasks.values())

    def set_nodes(self, nodes: Iterable[str]) -> None:
        """Finish files only on these nodes."""
        self._nodes = list(dict.fromkeys(nodes))
        self._processes = {node: self._processes[node] for node in self._nodes if node in self._processes}

    def close(self) -> None:
        for process in self._processes.values():
            load_ray().kill(process)

    def add(self, number: int, work: FileWork | None, shares: Sequence[Share] = ()) -> Future[Any]:
        """Add a task: write these shares, then finish the file. Sealing a file waits for its early parts."""
        path = str(work.path) if isinstance(work, Segment | PileWork) else None
        # The first of several orders for piles has all their shares: later ones wait for it.
        writes = (task for task in self._tasks.values() if task.work is None or isinstance(work, PileWork))
        after = [task for task in writes if task.shares and task.shares[0].placement.path == path]
        task = self._tasks[number] = NodeTask(number, work, shares=shares, after=after)
        self._start(task)
        return task.future

    def start_all(self) -> None:
        for task in list(self._tasks.values()):
            self._start(task)

    def _start(self, task: NodeTask) -> None:
        """Start a task on the node with the fewest, unless it is running or lacks something."""
        now = time.monotonic()
        if not self._nodes or task.running or now < task.not_before:
            return
        if not all(other.future.done() for other in task.after):
            return
        if not all(share.block.attempt for share in task.shares):
            return
        positions: dict[Attempt, int] = {}
        tokens = []
        for share in task.shares:
            block = share.block
            assert block.attempt is not None
            position = positions.setdefault(block.attempt, len(positions))
            tokens.append(StoredTokens(position, block.array, share.placement))
        task.attempts, task.running = list(positions), True
        on_own_disk = self._creates and isinstance(task.work, Segment | PileWork)
        order = FileOrder(task.number, task.work, tuple(tokens), on_own_disk)
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        node = task.node = min(
            self._nodes, key=lambda one: (one in self._avoided, self._busy[one], one not in self._processes)
        )
        self._busy[node] += 1
        if node not in self._processes:
            self._processes[node] = self._start_process(node)
        references = [attempt.tokens for attempt in task.attempts]
        result = self._processes[node].do.remote(references, pickle.dumps(order))
        self._expect(result, partial(self._finish, task))

    def _start_process(self, node: str) -> Any:
        ray = load_ray()
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(FileProcess).options(
            num_cpus=0, max_restarts=-1, max_concurrency=_AT_ONCE, scheduling_strategy=there
        )
        return actor.remote(self._run)

    def _finish(self, task: NodeTask, future: Future[bytes]) -> None:
        self._busy[task.node] -= 1
        self._waits.end(task.number)
        attempts, task.attempts, task.running = task.attempts, [], False
        try:
            result: FileResult = pickle.loads(future.result())
        except load_ray().exceptions.RayError as error:
            death, now = explain_failure(error), time.monotonic()
            task.not_before = now + _PAUSE_SECONDS
            # A node runs several tasks: one line on the screen is enough if it takes all of them with it.
            is_first = task.node not in self._avoided
            self._avoided[task.node] = now + _AVOID_SECONDS
            text = f"a process that was to {describe_work(task.work)} {death.description}; the work is repeated"
            self._observer.tell(Event("worker", text, loud=is_first))
            task.note_death(death)  # WorkerError after too many
            return
        if result.lost:
            self._on_lost(attempts[index] for index in result.lost)
            return
        del self._tasks[task.number]
        if result.error is None:
            self._on_written(task.shares)
        task.finish(result)
        if result.error is not None and task.work is None:  # no caller has the future of an early part
            raise result.error
