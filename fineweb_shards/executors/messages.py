"""Define the messages between executors and their workers, which are processes on this machine or Ray tasks.

An order is a plain value that can go to any worker, and to another one if that worker dies. No message contains tokens,
except for a block with a seam. Message classes have no slots: pickling them would take four times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from fineweb_shards.errors import ShardError, describe_error
from fineweb_shards.events import Event, Observer
from fineweb_shards.output.shard_files import PileWork
from fineweb_shards.output.sidecars import FinishedFile
from fineweb_shards.output.store import Segment
from fineweb_shards.types import Batch, EncodedBlock, Placement, Quarantined

# A worker with this many unwritten bytes of a large batch waits until some are written. The parent may hold back an
# unfinished document of up to 10 million tokens and the block in which it begins (stream/length_limits.py): at most
# 90 MB together, which the worker must not wait for.
MOST_HELD_BYTES = 96 * 2**20
FileWork = Segment | PileWork | FinishedFile  # to seal, to make durable, or to give sidecars (`WorkerSpec.finish_file`)


@dataclass(frozen=True)
class WorkOrder:
    """Tells a worker to encode a batch."""

    batch: Batch
    number: int = 0  # of the batch, in listing order
    first_block: int = 0  # earlier blocks are no longer needed
    skip_digests: frozenset[str] = frozenset()  # SHA-256 of the texts of quarantined documents
    one_by_one: bool = False  # encode one document at a time, because one of them crashes workers
    use_fallback_for: frozenset[str] = frozenset()  # digests of documents for the other engine
    is_large: bool = False  # larger than the window: the worker waits for its tokens to be written


@dataclass(frozen=True)
class WriteOrder:
    """Tells the worker that holds a block's tokens to write some of them, and to drop them after the last order."""

    batch: int
    block: int
    placements: tuple[Placement, ...] = ()
    last: bool = True

    @property
    def steps(self) -> int:
        return len(self.placements) + self.last


def describe_work(work: FileWork | None) -> str:
    if work is None:
        return "write tokens"
    return "write sidecars" if isinstance(work, FinishedFile) else "seal a file"


@dataclass(frozen=True)
class StoredTokens:
    """A placement of one array in one of the objects passed to a task."""

    object: int
    array: int
    placement: Placement


@dataclass(frozen=True)
class FileOrder:
    """Tells any worker to write these tokens, if there are any, and then to finish the file."""

    number: int
    work: FileWork | None  # None: only write
    tokens: tuple[StoredTokens, ...] = ()
    on_own_disk: bool = False  # the worker can't see the segment's file: create it from the tokens


@dataclass(frozen=True)
class FileResult:
    """The outcome of a FileOrder: the SHA-256 of a segment, an error, or the objects that were lost."""

    number: int
    sha256: str | None = None
    error: ShardError | None = None
    lost: tuple[int, ...] = ()


def try_order(
    order: FileOrder, action: Callable[[], FileResult], who: Callable[[], str] = lambda: "A worker"
) -> FileResult:
    """Return the result of `action`, or of its failure."""
    try:
        return action()
    except ShardError as error:
        return FileResult(order.number, error=error)
    except Exception as error:
        bug = f"{who()} could not {describe_work(order.work)}: {describe_error(error)}"
        return FileResult(order.number, error=ShardError(bug))


class Signal(Enum):
    """What a worker tells without further data."""

    READY = "it has loaded its engine, and the self-test passed"
    ALIVE = "it is receiving bytes from the network, but slowly"


@dataclass(frozen=True)
class Encoded:
    """The worker has encoded a block of its batch and holds the tokens."""

    index: int  # of the block in its batch
    block: EncodedBlock


@dataclass(frozen=True)
class Done:
    """The worker has encoded all blocks of its batch, or no worker can (`error`)."""

    fetched_bytes: int = 0  # over the network, since the previous Done
    error: ShardError | None = None


@dataclass(frozen=True)
class Written:
    """The worker has written the next placement of a block, dropped its tokens, or both; or it failed."""

    batch: int
    block: int
    placements: int = 0  # 0 or 1
    dropped: bool = False
    error: ShardError | None = None  # the run has to stop


@dataclass(frozen=True)
class Waiting:
    """The worker waits for the network or the disk (`cause`); `reason` None: it no longer does."""

    cause: str
    reason: str | None


# A document is sent before the worker encodes it separately: it is suspected if the worker dies now.
Message = Signal | Quarantined | Encoded | Done | Written | FileResult | Waiting | Event


class WorkerObserver(Observer):
    """Forwards a worker's events with `send` and counts the bytes it fetches. Thread-safe."""

    def __init__(self, send: Callable[[Event | Waiting], object]) -> None:
        self._send = send
        self._fetched_bytes = 0  # not yet reported
        self._fetched_lock = threading.Lock()  # a separate one, because sending may block for long

    def tell(self, event: Event) -> None:
        self._send(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self._send(Waiting(cause, reason))

    def add_fetched(self, size_bytes: int) -> None:
        """Count bytes received from the network; to save messages, `take_done` reports their sum."""
        with self._fetched_lock:
            self._fetched_bytes += size_bytes

    def take_done(self) -> Done:
        """Return the message for the end of a batch, with the bytes fetched since the previous one."""
        with self._fetched_lock:
            done, self._fetched_bytes = Done(self._fetched_bytes), 0
        return done
