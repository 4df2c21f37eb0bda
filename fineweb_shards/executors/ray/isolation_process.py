"""Encode a batch one document at a time in a process of its own, to see how it dies.

Ray tells that a worker has died, but not of what. It matters (worker_death.py): a document is suspected if
its process crashes, and never if it was killed from outside. So when a batch has ended several workers, the
task that tries it one by one starts a process for it, hears which document it is about to encode, and sees
its exit code, as with the local executor.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection

from fineweb_shards.errors import ShardError, WorkerError
from fineweb_shards.executors.encode_batch import WorkerSpec, encode_batch, unexpected_error
from fineweb_shards.executors.local.worker import die_with_parent
from fineweb_shards.executors.ray.board import unpacked
from fineweb_shards.executors.task import WorkOrder
from fineweb_shards.executors.worker_death import (
    OUT_OF_MEMORY_EXIT_CODE,
    THREAD_FAILED_EXIT_CODE,
    Death,
    explain_exit,
)
from fineweb_shards.system.machine import offer_to_oom_killer, oom_kills
from fineweb_shards.types import EncodedBlock, Quarantined

_READY = "ready"
_DONE = "done"


class ProcessDiedError(Exception):
    """The process that encoded the batch has died."""

    def __init__(self, death: Death) -> None:
        super().__init__(death.description)
        self.death = death


def encode_in_process(
    spec: WorkerSpec,
    vocabulary_files: Mapping[str, bytes],
    order: WorkOrder,
    announce: Callable[[Quarantined], None],
) -> Iterator[tuple[int, EncodedBlock]]:
    """Yield the blocks of a batch like `encode_batch`; ProcessDiedError if its process dies."""
    context = multiprocessing.get_context("spawn")
    pipe, its_pipe = context.Pipe()
    oom_kills_before = oom_kills()
    process = context.Process(target=_run, args=(its_pipe,), name="fineweb-shards one by one", daemon=True)
    process.start()
    its_pipe.close()
    ready = False
    try:
        pipe.send_bytes(pickle.dumps((spec, vocabulary_files, order)))
        while (message := pipe.recv()) != _DONE:
            match message:
                case Quarantined():
                    announce(message)
                case ShardError():
                    raise message
                case (int(), EncodedBlock()):
                    yield message
                case _:
                    ready = True
    except (EOFError, OSError):
        process.join()
        death = explain_exit(process.exitcode, oom_killed=oom_kills() > oom_kills_before)
        if not ready:
            raise WorkerError(
                f"Workers die before they are ready: the last one {death.description}."
            ) from None
        raise ProcessDiedError(death) from None
    finally:
        process.kill()
        process.join()
        pipe.close()


def _run(pipe: connection.Connection) -> None:
    """Encode one batch: the process's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    offer_to_oom_killer()
    spec, vocabulary_files, order = pickle.loads(pipe.recv_bytes())
    try:
        with unpacked(spec, vocabulary_files) as unpacked_spec:
            encoder = unpacked_spec.make_encoder()
        source = spec.source.reopened()
        pipe.send(_READY)
        for indexed_block in encode_batch(source, encoder, order, pipe.send):
            pipe.send(indexed_block)
        pipe.send(_DONE)
    except MemoryError:
        os._exit(OUT_OF_MEMORY_EXIT_CODE)
    except ShardError as error:
        pipe.send(error)
    except Exception as error:
        pipe.send(unexpected_error(spec.source, order.batch, error))


def _end_with_parent() -> None:
    """End this process when the task's is gone, however that is noticed."""
    try:
        die_with_parent()
    finally:
        os._exit(THREAD_FAILED_EXIT_CODE)
