"""Run one worker process: receive orders, encode their batches, send the blocks back.

It has no state except caches, so that killing it costs only the batches it has. A thread ends the process
when the parent ends, for whatever reason.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import connection, parent_process

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event
from fineweb_shards.executors.encode_batch import WorkerSpec, encode_batch
from fineweb_shards.executors.exit_cause import OUT_OF_MEMORY_EXIT_CODE, THREAD_FAILED_EXIT_CODE
from fineweb_shards.executors.local.messages import Failed, Outbox, Ready, Trying
from fineweb_shards.executors.task import WorkOrder
from fineweb_shards.sources.base import Source
from fineweb_shards.system.machine import apply_priority, offer_to_oom_killer
from fineweb_shards.types import Batch


def run_worker(pipe: connection.Connection, spec: WorkerSpec) -> None:
    """Encode batches as ordered until the parent closes the pipe. This is the process's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole process group; the parent decides
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # blocked by process.py
    apply_priority(spec.priority)
    offer_to_oom_killer()
    outbox = Outbox(pipe)
    in_thread = partial(_run_thread, outbox)
    threading.Thread(target=in_thread, args=(_die_with_parent,), daemon=True).start()
    source = spec.source.reopened(outbox)
    try:
        encoder = spec.make_encoder()
    except ShardError as error:
        outbox.send(Failed(error))
        return
    outbox.send(Ready())
    inbox: queue.SimpleQueue[WorkOrder | None] = queue.SimpleQueue()
    receiver = partial(_receive_orders, pipe, source, inbox, outbox)
    threading.Thread(target=in_thread, args=(receiver,), daemon=True).start()
    while (order := inbox.get()) is not None:
        try:
            for block in encode_batch(source, encoder, order, lambda one: outbox.send(Trying(one))):
                outbox.send(block)
            outbox.send_done()
        except MemoryError:
            os._exit(OUT_OF_MEMORY_EXIT_CODE)
        except ShardError as error:
            outbox.send(Failed(error))
        except (BrokenPipeError, ConnectionResetError):
            return  # the parent is gone
        except Exception as error:
            outbox.send(Failed(_unexpected(spec, order.batch, error)))


def _run_thread(outbox: Outbox, action: Callable[[], None]) -> None:
    """Run a thread's action; if it fails, end the process, which could not work without the thread."""
    try:
        action()
    except BaseException as error:  # any failure
        try:
            outbox.tell(Event("worker", f"a thread of worker {os.getpid()} failed: {_describe(error)}"))
        finally:
            out_of_memory = isinstance(error, MemoryError)
            os._exit(OUT_OF_MEMORY_EXIT_CODE if out_of_memory else THREAD_FAILED_EXIT_CODE)


def _receive_orders(
    pipe: connection.Connection, source: Source, inbox: queue.SimpleQueue[WorkOrder | None], outbox: Outbox
) -> None:
    """Receive orders as they arrive, so that the next batch is fetched while this one is encoded."""
    reported = set()
    while True:
        try:
            order: WorkOrder = pipe.recv()
        except (EOFError, OSError):
            inbox.put(None)
            return
        try:
            source.prefetch(order.batch)  # before the order is queued: reading must not start before it
        except MemoryError:
            raise
        except (
            Exception
        ) as error:  # only reported: the batch may still be readable, and if not, reading it fails
            if repr(error) not in reported:
                reported.add(repr(error))
                name = source.files[order.batch.file].name
                outbox.tell(Event("worker", f"{name}: could not be fetched ahead: {_describe(error)}"))
        inbox.put(order)


def _die_with_parent() -> None:
    """Wait until the parent process has ended, then end this one."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)).rstrip()


def _unexpected(spec: WorkerSpec, batch: Batch, error: Exception) -> ShardError:
    """Return the error for an exception that is no ShardError, with its traceback."""
    name = spec.source.files[batch.file].name
    return ShardError(f"A worker failed on {name} at position {batch.position}: {_describe(error)}")
