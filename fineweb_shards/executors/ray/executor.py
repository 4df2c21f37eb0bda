"""Run a schedule on a Ray cluster: tasks on its nodes encode batches, and write and seal files.

The driver, which is the parent of a run, decides everything, as with the local executor; docs/architecture.md has the
reasons. A worker of the schedule is an `Attempt`: a task that encodes a few batches, and later the object with their
tokens. `place` only records where tokens belong. The process that seals a file (file_tasks.py) fetches them. Streams
are read by the driver and can't be read again, so it keeps their text until it is written, up to `window_bytes`. As
many tasks wait as run; from a network two run per core, each fetching all its batches in parallel.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import completed
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.messages import FileWork, Waiting, WorkOrder
from fineweb_shards.executors.ray import board
from fineweb_shards.executors.ray.cluster import LOST, Cluster, Node, explain_failure, load_ray
from fineweb_shards.executors.ray.file_tasks import Attempt, NodeTasks, Share, StoredBlock, Unwritten
from fineweb_shards.executors.ray.worker import MARK_FILE, RUN_PREFIX, encode_batches
from fineweb_shards.executors.scheduled_executor import REMOTE_BATCHES, ScheduledExecutor
from fineweb_shards.executors.task import Death
from fineweb_shards.output.shard_files import PileWork
from fineweb_shards.output.store import Segment
from fineweb_shards.system.durable import write_quickly
from fineweb_shards.system.machine import own_memory_bytes
from fineweb_shards.system.own_files import WORK_FOLDER, make_folder
from fineweb_shards.system.shared_memory import SharedBytes
from fineweb_shards.types import HeldTokens, Placement, Quarantined, Tokens
from fineweb_shards.units import show_number_of

_REMOTE_TASKS_PER_CORE = 2
_BATCHES = 4  # in a task
_TASK_BYTES = 64 * 2**20  # of them
_ALL = 2**62  # no limit
# A part of a file is written early beyond these shares of the window and of the object stores.
_MUCH = 0.5
_MUCH_OF_A_FILE = 0.25
_LISTEN_SECONDS = 1.0
_LOOK_EVERY_SECONDS = 5.0
_WRITTEN = completed(None)  # true by the time the file is sealed


class RayExecutor(ScheduledExecutor[Attempt]):
    """Tokenizes with tasks on a cluster. All nodes see the folder of the shards, unless these are in a bucket, and
    `scratch`, if the piles of a shuffle are there. `window_bytes` limits the text of streams that the driver keeps;
    `most_tasks` limits the tasks that encode at once. `quarantined` are documents that earlier runs left out."""

    def __init__(
        self,
        spec: WorkerSpec,
        cluster: Cluster,
        *,
        scratch: Path | None = None,
        window_bytes: int,
        most_tasks: int | None = None,
        quarantined: Iterable[Quarantined] = (),
        observer: Observer | None = None,
    ) -> None:
        self._remote = spec.source.is_remote
        largest = max(part.settings.batch_bytes for part in spec.source.parts)  # a whole pile in a bucket is large
        self._batches = max(1, min(REMOTE_BATCHES if self._remote else _BATCHES, _TASK_BYTES // largest))
        super().__init__(spec, _ALL, self._batches, quarantined, observer)
        self._cluster = cluster
        self._shared = () if spec.store.is_remote else (spec.store.folder, *([scratch] if scratch else []))
        self._most_tasks = most_tasks
        self._window_bytes = window_bytes if spec.source.bytes_by_value > window_bytes else _ALL
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._cores_of_task = 1 / _REMOTE_TASKS_PER_CORE if self._remote else 1
        self._nodes: list[Node] = []
        self._next_look = 0.0  # at the nodes
        self._tasks_at_once = 0  # that the nodes can run
        self._capacity_bytes = 0  # for tokens waiting in the object stores
        self._run = f"{RUN_PREFIX}{uuid.uuid4().hex}"
        self._numbers = 0  # of tasks so far
        self._running: dict[int, Attempt] = {}  # by task number
        self._expected_bytes = 0  # the text that they encode
        self._unwritten = Unwritten(spec.vocabulary.dtype.itemsize)
        self._files = NodeTasks(
            self._run,
            self._expect,
            self._note_written,
            self._note_losses,
            creates=spec.store.is_remote,
            observer=self._observer,
            waits=self._waits,
        )
        self._board: Any = None
        self._peak_bytes = 0

    # The cluster

    def _start(self) -> None:
        self._cluster.connect()
        mark = secrets.token_hex(16)
        for folder in self._shared:  # where nodes must find it
            make_folder(folder / WORK_FOLDER)
            write_quickly(folder / WORK_FOLDER / MARK_FILE, mark.encode())
        files = board.pack_vocabulary(self._spec.vocabulary)
        environment = board.pack_environment(self._spec.source, self._spec.store.location)
        shipment = board.Shipment(pickle.dumps(self._spec), os.getcwd(), files, environment, self._shared, mark)
        self._board = board.start_board(self._run, shipment)
        self._encode_task = (
            load_ray()
            .remote(encode_batches)
            .options(num_returns=2, num_cpus=self._cores_of_task, max_retries=0, scheduling_strategy="SPREAD")
        )
        self._look_at_nodes()
        self._ask_for_news()

    def _look_at_nodes(self) -> None:
        """Count the nodes and their capacity, unless that was done a moment ago."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY_SECONDS
        before, self._nodes = len(self._nodes), self._cluster.nodes()
        tasks = sum(int(node.cores / self._cores_of_task) for node in self._nodes)
        self._tasks_at_once = min(tasks, self._most_tasks or _ALL)
        self._ahead = 2 * self._batches * max(1, self._tasks_at_once)
        self._capacity_bytes = sum(node.store_bytes for node in self._nodes) // 2
        self._files.set_nodes(node.id for node in self._nodes)
        if before and before != len(self._nodes):
            text = f"the cluster has {show_number_of(len(self._nodes), 'node')}; before: {before}"
            self._observer.tell(Event("nodes", text))
        none = None if self._nodes else "no node of the cluster has a core: waiting for one"
        self._observer.set_wait("nodes", none)

    def __exit__(self, *exception: object) -> None:
        if self._cluster.is_shared:  # otherwise closing the connection ends all this
            for attempt in self._running.values():
                load_ray().cancel(attempt.tokens, force=True)
            self._files.close()
            if self._board is not None:
                load_ray().kill(self._board)
        self._cluster.close()
        for folder in self._shared:
            (folder / WORK_FOLDER / MARK_FILE).unlink(missing_ok=True)

    @property
    def workers(self) -> int:
        return self._tasks_at_once

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    @property
    def used_bytes(self) -> int:
        """The memory of the driver, and the tokens in the object stores. `ray status` and Ray's dashboard show what
        the processes on the nodes use."""
        used = own_memory_bytes() + self._unwritten.unplaced_bytes + self._unwritten.placed_bytes
        self._peak_bytes = max(self._peak_bytes, used)
        return used

    @property
    def peak_bytes(self) -> int:
        return self._peak_bytes

    # Giving out

    def _wake(self) -> None:
        self._inbox.put(lambda: None)  # the batch itself is taken by `_give_out`

    def _give_out(self) -> None:
        self._look_at_nodes()
        # If tokens that wait for the end of their file take much space, write the largest part early.
        path, size_bytes = self._unwritten.fullest() if self._shared else (None, 0)
        is_full = self._schedule.in_flight_bytes > _MUCH * self._window_bytes and not self._files.is_running
        if path is not None and (is_full or size_bytes > _MUCH_OF_A_FILE * self._capacity_bytes):
            self._files.add(self._next_number(), None, self._unwritten.take(path))
        self._files.start_all()
        # Start encoding tasks until as many wait as can run, or up to the limit.
        most = min(2 * max(1, self.workers), self._most_tasks or _ALL)
        while len(self._running) < most and self._has_batch():
            attempt = Attempt(self._next_number())
            # Several batches once all cores have work, or if they have to be fetched.
            several = self._remote or len(self._running) >= self.workers
            attempt.orders = self._give_batches(attempt, self._batches if several else 1)
            if not attempt.orders:
                return
            self._running[attempt.number] = attempt
            self._expected_bytes += attempt.text_bytes
            orders = pickle.dumps(tuple(map(_by_value, attempt.orders)))
            encoded, attempt.tokens = self._encode_task.remote(self._run, attempt.number, orders)
            self._expect(encoded, partial(self._finish_attempt, attempt))

    def _has_batch(self) -> bool:
        """Return whether a batch can be assigned now; take one from the listing if it fits."""
        if self._schedule.next_pending is not None:
            return True
        # The object stores need space for its tokens, and for those of the batches in flight.
        held = self._unwritten.unplaced_bytes + (self._unwritten.placed_bytes if self._shared else 0)
        fits = held + self._expected_bytes < self._capacity_bytes
        fits = fits and self._schedule.in_flight_bytes < self._window_bytes
        if not fits and (self._running or self._files.is_running):  # otherwise the run would never continue
            return False
        return self._take_batch()

    def _give_batches(self, attempt: Attempt, most: int) -> tuple[WorkOrder, ...]:
        orders: list[WorkOrder] = []
        while len(orders) < most and self._has_batch():
            order = self._schedule.give_next(attempt)
            if order is None:
                break
            orders.append(order)
        return tuple(orders)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _expect(self, reference: Any, handle: Callable[[Future[Any]], None]) -> None:
        """Have `_listen` call `handle` with the future of a task's result once it is done."""
        reference.future().add_done_callback(lambda future: self._inbox.put(partial(handle, future)))

    def _listen(self) -> None:
        try:
            handle = self._inbox.get(timeout=_LISTEN_SECONDS)
            while True:
                handle()
                handle = self._inbox.get_nowait()
        except queue.Empty:
            return

    # News of tasks

    def _ask_for_news(self) -> None:
        self._expect(self._board.take.remote(), self._receive_news)

    def _receive_news(self, future: Future[list[board.News]]) -> None:
        try:
            news = future.result()
        except load_ray().exceptions.RayError as error:  # Ray restarts it; the lost news was not vital
            self._observer.tell(Event("ray", f"the run's board: {explain_failure(error).description}"))
            news = []
        self._ask_for_news()
        for number, message in news:
            if isinstance(message, Event):
                self._observer.tell(message)
            elif number in self._running or number in self._files:
                assert isinstance(message, Waiting)
                self._waits.note(number, message.cause, message.reason)

    # Ends of attempts

    def _finish_attempt(self, attempt: Attempt, future: Future[bytes]) -> None:
        if self._running.pop(attempt.number, None) is None:
            return  # its batches were taken back
        self._expected_bytes -= attempt.text_bytes
        self._waits.end(attempt.number)
        try:
            encoded: board.TaskResult = pickle.loads(future.result())
        except load_ray().exceptions.RayError as error:
            self._handle_death(attempt, explain_failure(error))
            return
        if encoded.failure is not None:
            raise encoded.failure
        if encoded.death is not None:
            self._handle_death(attempt, encoded.death)
            return
        self._observer.add_fetched(encoded.fetched_bytes)
        array = 0
        for order, batch in zip(attempt.orders, encoded.batches, strict=True):
            for one in batch.blocks:
                self._schedule.receive_block(attempt, one.index, one.block)
                if isinstance(one.block.tokens, HeldTokens):
                    if self._schedule.keeps(order.number, one.index):
                        key, size_bytes = (order.number, one.index), self._size_bytes(one.block.tokens)
                        self._unwritten.receive(key, attempt, array, size_bytes)
                    array += 1
            self._schedule.finish(attempt, batch.error)
        self._dismiss_idle(attempt)

    def _handle_death(self, attempt: Attempt, death: Death) -> None:
        """Take back the batches of a task that died. If it had several, any of them may be to blame."""
        self._observer.tell(Event("worker", f"a task {death.description}; its batches are encoded again"))
        if len(attempt.orders) > 1:
            self._schedule.remove_worker(attempt, suspects=True)
        else:
            self._note_death(attempt, death)

    def _note_death(self, attempt: Attempt, death: Death) -> None:
        self._unwritten.lose(attempt)
        if not self._schedule.note_death(attempt, death):
            return
        # All batches were taken back, even those whose tokens are in the store.
        for other in self._running.values():
            load_ray().cancel(other.tokens, force=True)
            self._waits.end(other.number)
        self._running.clear()
        self._expected_bytes = 0
        for holder in {block.attempt for block in self._unwritten.blocks.values()}:
            if holder is not None and holder.orders:  # without orders: the driver stored the tokens itself
                self._unwritten.lose(holder)

    def _abandon_output(self) -> None:
        super()._abandon_output()
        for block in self._unwritten.abandon():
            self._drop(block)

    # Placing and sealing

    def place(
        self, tokens: Tokens | HeldTokens, placements: Sequence[Placement], *, last: bool = True
    ) -> list[Future[None]]:
        if isinstance(tokens, HeldTokens):
            self._schedule.place(tokens, placements, last=last)
            key, size_bytes = (tokens.batch, tokens.block), self._size_bytes(tokens)
        elif placements:  # store only the placed tokens, on the driver's node, where they can't be lost
            tokens, placements = cut_out(tokens, placements)
            attempt = Attempt(self._next_number(), tokens=load_ray().put([tokens]))
            key, size_bytes, last = (-1, attempt.number), tokens.nbytes, True
            self._unwritten.receive(key, attempt, 0, size_bytes)
        else:
            return []
        block = self._unwritten.place(key, size_bytes, placements, last=last)
        if block.is_written:
            self._drop(block)
        return [_WRITTEN] * len(placements)

    def _size_bytes(self, tokens: HeldTokens) -> int:
        return len(tokens) * self._spec.vocabulary.dtype.itemsize

    def _finish_file(self, work: FileWork) -> Future[Any]:
        shares: Sequence[Share] = ()
        if isinstance(work, Segment):
            shares = self._unwritten.take(str(work.path), work.end - work.begin)
        elif isinstance(work, PileWork):
            shares = self._unwritten.take(str(work.path))
        return self._files.add(self._next_number(), work, shares)

    def _note_written(self, shares: Iterable[Share]) -> None:
        for share in shares:
            if self._unwritten.note_written(share.block):
                self._drop(share.block)

    def _drop(self, block: StoredBlock) -> None:
        attempt = block.attempt
        if block.key[0] >= 0:
            self._schedule.note_dropped(attempt, *block.key)
        self._unwritten.forget([block.key])
        if attempt is not None:
            self._dismiss_idle(attempt)

    def _dismiss_idle(self, attempt: Attempt) -> None:
        """Forget an attempt without tokens, so that Ray frees its object."""
        if not attempt.keys and attempt.number not in self._running:
            self._schedule.dismiss(attempt)

    def _note_losses(self, attempts: Iterable[Attempt]) -> None:
        """Have tokens that were lost with their node encoded again."""
        lost = [attempt for attempt in attempts if attempt.keys]  # the others were noticed before
        if lost:
            text = f"the tokens of {show_number_of(len(lost), 'task')} were lost with their node"
            self._observer.tell(Event("worker", f"{text}; they are encoded again"))
        for attempt in lost:
            if attempt.keys:
                self._note_death(attempt, LOST)


def cut_out(tokens: Tokens, placements: Sequence[Placement]) -> tuple[Tokens, list[Placement]]:
    """Return the tokens between the first and the last placed one, and the placements relative to these."""
    first = min(int(one.ranges[0, 0]) for one in placements)
    end = max(int(one.ranges[-1, 1]) for one in placements)
    return tokens[first:end], [replace(one, ranges=one.ranges - first) for one in placements]


def _by_value(order: WorkOrder) -> WorkOrder:
    """Return the order with any shared bytes copied into it: another machine can't access ours."""
    payload = order.batch.payload
    if not isinstance(payload, SharedBytes):
        return order
    return replace(order, batch=replace(order.batch, payload=payload.by_value()))
