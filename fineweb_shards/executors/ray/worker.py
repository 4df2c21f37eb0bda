"""Run a build's tasks in Ray's worker processes: encode batches, write and seal files.

A process loads the engine with its first task of a run and has no other state, so killing it, or its node, costs only
its task. If a node can't see an input file or the output folder, the error names the node.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import fineweb_shards
from fineweb_shards.errors import InputError, OutputError, ShardError, UsageError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors import messages
from fineweb_shards.executors.encode_batch import Blocks, Prefetcher, WorkerSpec, batch_error, encode_batch, hold_tokens
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.executors.messages import FileOrder, FileResult, StoredTokens, WorkerObserver, WorkOrder
from fineweb_shards.executors.ray.board import EncodedBatch, Shipment, TaskResult, apply_environment, unpacked
from fineweb_shards.executors.ray.cluster import load_ray
from fineweb_shards.executors.task import Death, DeathKind
from fineweb_shards.output.shard_files import PileWork
from fineweb_shards.output.store import Segment
from fineweb_shards.storage.place import LOCAL
from fineweb_shards.system.machine import apply_priority
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.system.own_files import WORK_FOLDER, make_folder, read_file, refuse_link
from fineweb_shards.tokenizers.encoder import Encoder, TokenJoiner
from fineweb_shards.types import Batch, Quarantined, Tokens

MARK_FILE = "ray-run"  # in the work folder; its content shows a node whether it sees the driver's folder
RUN_PREFIX = "fineweb-shards-"  # of the name of a run's board, which is part of file names
_SCRATCH_END = ".tmp"  # the store finds such files after a run was killed
# A task that takes longer than this, plus the longest outage, hangs: its process is ended.
_LONGEST_TASK_SECONDS = 3600
_ALL = 2**62  # no limit
_MAKING_PROCESS = threading.Lock()
_PROCESSES: dict[str, RunProcess] = {}  # at most one


def encode_batches(run: str, task: int, orders: bytes) -> tuple[bytes, list[Tokens]]:
    """Encode batches; return a pickled TaskResult, and the tokens block by block: a Ray task."""
    tokens: list[Tokens] = []
    try:
        encoded = _process_of(run).encode(task, pickle.loads(orders), tokens)
    except ShardError as error:
        encoded = TaskResult(failure=error)
    return pickle.dumps(encoded), tokens


class FileProcess:
    """Writes and finishes files, several at once in threads: a Ray actor."""

    def __init__(self, run: str) -> None:
        self._run = run

    def do(self, objects: Sequence[Any], order: bytes) -> bytes:
        """Do a pickled FileOrder with the tokens in these objects; return a pickled FileResult. The objects are
        references, fetched one after the other to save memory."""
        file_order: FileOrder = pickle.loads(order)
        try:
            result = _process_of(self._run).do(objects, file_order)
        except ShardError as error:
            result = FileResult(file_order.number, error=error)
        return pickle.dumps(result)


def _process_of(run: str) -> RunProcess:
    """Return this process's state for a run. `run` is the name of the run's board."""
    with _MAKING_PROCESS:  # an actor's first orders arrive in several threads at once
        if run not in _PROCESSES:
            board = load_ray().get_actor(run)
            version, data = load_ray().get(board.get_shipment.remote())
            if version != fineweb_shards.__version__:
                raise UsageError(
                    f"Node {node_name()} has fineweb_shards {fineweb_shards.__version__}, but the run has {version}.",
                    "Install the same version on every node.",
                )
            _PROCESSES.clear()
            _PROCESSES[run] = RunProcess(run, board, pickle.loads(data))
        return _PROCESSES[run]


def node_name() -> str:
    """Return the name of this machine and its address in the cluster."""
    return f"{socket.gethostname()} ({load_ray().util.get_node_ip_address()})"


class TaskObserver(WorkerObserver):
    """Tells the driver what happens in the current task. Thread-safe."""

    def __init__(self, tell: Callable[[tuple[int, Event | messages.Waiting]], object], task: int = 0) -> None:
        super().__init__(lambda message: tell((self.task, message)))
        self.task = task


class RunProcess:
    """The state of a process between the tasks of a run: its engine, and open input files."""

    def __init__(self, run: str, board: Any, shipment: Shipment) -> None:
        self._run, self._board = run, board
        self._observer = TaskObserver(board.tell.remote)
        if os.path.isdir(shipment.current_folder):
            os.chdir(shipment.current_folder)
        apply_environment(shipment.environment)  # before the hub's clients are imported
        spec: WorkerSpec = pickle.loads(shipment.spec)
        for folder in shipment.shared:
            _check_folder(folder, shipment.mark)
        if not shipment.shared:  # the folder is for files created on this node
            _remove_leftovers(spec.store.folder / WORK_FOLDER, run)
        self._spec, self._vocabulary_files = spec, shipment.vocabulary_files
        apply_priority(spec.priority)
        self._source = spec.source.reopened(self._observer)
        self._prefetcher = Prefetcher(self._source, self._observer)

    @cached_property
    def _encoder(self) -> Encoder | TokenJoiner:
        """Loaded with the first batch: many processes only finish files."""
        with unpacked(self._spec, self._vocabulary_files) as spec:
            return spec.make_encoder()

    def encode(self, task: int, orders: Sequence[WorkOrder], tokens: list[Tokens]) -> TaskResult:
        """Encode batches; append the tokens of each block to the list, unless the driver needs them."""
        self._observer.task = task
        seconds = self._spec.max_outage_seconds + _LONGEST_TASK_SECONDS
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # standard error
        try:
            for order in orders:
                if not order.one_by_one:  # such a batch is read by another process
                    self._prefetcher.prefetch(order.batch)
            batches = tuple([self._encode_batch(order, tokens) for order in orders])
        except MemoryError:
            tokens.clear()
            return TaskResult(death=Death(DeathKind.OUT_OF_MEMORY, f"ran out of memory on {node_name()}"))
        finally:
            faulthandler.cancel_dump_traceback_later()
        return TaskResult(batches, fetched_bytes=self._observer.take_done().fetched_bytes)

    def _encode_batch(self, order: WorkOrder, tokens: list[Tokens]) -> EncodedBatch:
        blocks: list[messages.Encoded] = []
        try:
            for batch in order.batch.members or (order.batch,):
                self._check_input(batch)
            if order.one_by_one and not order.batch.members:
                encoded = self._encode_in_local_executor(order)
            else:
                encoded = encode_batch(self._source, self._encoder, order, lambda document: None)
            for index, block in encoded:
                told, held = hold_tokens(order, index, block)
                if held is not None:
                    tokens.append(held)
                blocks.append(messages.Encoded(index, told))
        except MemoryError:
            raise
        except Exception as error:
            who = f"A task on {node_name()}"
            return EncodedBatch(tuple(blocks), batch_error(self._source, order.batch, error, who))
        return EncodedBatch(tuple(blocks))

    def _encode_in_local_executor(self, order: WorkOrder) -> Blocks:
        """Yield the blocks of a batch that has ended several tasks, without the document to blame. Ray reports that a
        process died, but not how, which matters (task.py): a crash makes a document suspect, a kill from outside never
        does. So the batch is encoded as on a single machine. Other copies of the document are left out the same way."""
        quarantined = [
            Quarantined(order.batch.file, order.batch.position, 0, None, None, 0, digest, "", part=order.batch.part)
            for digest in order.skip_digests
        ]
        with (
            unpacked(replace(self._spec, holds_tokens=False), self._vocabulary_files) as spec,
            LocalExecutor(spec, 1, _ALL, MemoryGuard(worker_bytes=_ALL), quarantined, self._observer) as executor,
        ):
            for index, block in enumerate(executor.encode([iter([order.batch])])):
                if index >= order.first_block:
                    yield index, block

    def _check_input(self, batch: Batch) -> None:
        """Raise InputError if this node can't see the file: --on-bad-file skip would leave it out as damaged."""
        file = self._source.file_of(batch)
        reads_path = batch.payload is None and batch.problem is None and file.place == LOCAL
        if reads_path and not os.path.exists(file.path):
            raise InputError(
                f"{os.path.abspath(file.path)}: this file does not exist on node {node_name()}.",
                "Put the input on a shared file system, under the same path on all nodes; in a bucket; or on the hub.",
            )

    def do(self, objects: Sequence[Any], order: FileOrder) -> FileResult:
        """Write the tokens of an order, and finish the file."""
        observer = TaskObserver(self._board.tell.remote, order.number)

        def finish() -> FileResult:
            work, path = order.work, None
            with contextlib.ExitStack() as scratch:
                if order.on_own_disk:
                    assert isinstance(work, Segment | PileWork)
                    path = scratch.enter_context(_scratch_file(str(work.path), self._run))
                    work = replace(work, path=path)
                if lost := self._write(objects, order, observer, path):
                    return FileResult(order.number, lost=tuple(lost))
                return self._spec.finish_file(replace(order, work=work), observer)

        return messages.try_order(order, finish, lambda: f"A task on {node_name()}")

    def _write(self, objects: Sequence[Any], order: FileOrder, observer: Observer, path: Path | None) -> list[int]:
        """Write the tokens, object by object, to their files, or all to `path`. Return the lost objects."""
        ray = load_ray()
        by_object: dict[int, list[StoredTokens]] = {}
        for part in order.tokens:
            by_object.setdefault(part.object, []).append(part)
        lost = []
        with contextlib.closing(self._spec.make_writer(observer)) as writer:
            for index, parts in by_object.items():
                try:
                    arrays = ray.get(objects[index])
                except ray.exceptions.ObjectLostError:
                    lost.append(index)
                    continue
                for part in parts:
                    placement = part.placement if path is None else replace(part.placement, path=str(path))
                    if path is not None and isinstance(order.work, PileWork):
                        placement = order.work.in_object(placement)
                    if len(placement.ranges):
                        writer.write(arrays[part.array], placement)
            if order.work is None:
                writer.sync()  # the node that seals the file has to see it
        return lost


@contextlib.contextmanager
def _scratch_file(path: str, run: str) -> Iterator[Path]:
    """Create an empty file on this node, named after `path`, and remove it at the end. Its name is unique: if the
    connection to a process breaks, its order is repeated, perhaps on this node while the first attempt still runs."""
    folder, name = os.path.split(path)
    try:
        make_folder(Path(folder))
        file, own = tempfile.mkstemp(_SCRATCH_END, f"{name.removesuffix(_SCRATCH_END)}.{run}-", folder)
        os.close(file)
    except OSError as error:
        raise OutputError(
            f"{path}: node {node_name()} can't write shards there: {error.strerror}.",
            "Name a folder that is writable on every node: --scratch DIR",
        ) from error
    try:
        yield Path(own)
    finally:
        with contextlib.suppress(FileNotFoundError):  # the driver, if on this machine, may have removed it
            os.unlink(own)


def _remove_leftovers(folder: Path, run: str) -> None:
    """Remove scratch files that killed processes of earlier runs left on this node."""
    refuse_link(folder)
    for path in folder.glob(f"*.{RUN_PREFIX}*{_SCRATCH_END}"):
        if f".{run}-" not in path.name:
            with contextlib.suppress(OSError):  # another process may be doing the same
                path.unlink()


def _check_folder(folder: Path, mark: str) -> None:
    """Raise OutputError if this node does not see this folder of the driver."""
    with contextlib.suppress(OSError):
        if read_file(folder / WORK_FOLDER / MARK_FILE) == mark.encode():
            return
    raise OutputError(
        f"{os.path.abspath(folder)}: on node {node_name()} this is not the run's folder.",
        "Use a bucket, or a folder on a shared file system that all nodes see under the same path.",
    )
