"""Define what executors and their workers send each other: processes on this machine, tasks on a Ray cluster.

What is to be done is a value, so that it can be sent to any worker, and again to another one if that dies. No message
contains tokens, except those of a block with a seam. Values that travel have no slots: pickling them would take four
times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from fineweb_shards.errors import ShardError, describe_error
from fineweb_shards.events import Event, Observer
from fineweb_shards.store.pile_files import PileWork
from fineweb_shards.store.sidecars import FinishedFile
from fineweb_shards.store.store import Segment
from fineweb_shards.types import Batch, EncodedBlock, Placement, Quarantined

# Of a large batch, before its worker waits for tokens to be written. The parent may hold back those of an unfinished
# document, up to 10 million, and the block in which it begins (stream/length_limits.py): together at most 90 MB, for
# which nobody may wait.
MOST_HELD_BYTES = 96 * 2**20
# To seal a segment, to make piles durable, or to write the sidecars of a finished file; `WorkerSpec.finish_file` does
# it.
FileWork = Segment | PileWork | FinishedFile


@dataclass(frozen=True)
class WorkOrder:
    """An order for a worker: encode this batch, in this way."""

    batch: Batch
    number: int = 0  # of the batch, in the order in which they were listed
    first_block: int = 0  # the blocks before it are not needed any more
    skip_digests: frozenset[str] = frozenset()  # SHA-256 of the texts of quarantined documents
    one_by_one: bool = False  # encode one document at a time, because one of them crashes workers
    use_fallback_for: frozenset[str] = frozenset()  # digests of documents for the other engine
    is_large: bool = False  # than all that may be in flight: the worker waits for its tokens to be written


@dataclass(frozen=True)
class WriteOrder:
    """An order for the worker that holds a block's tokens: write these where they belong; after the last order of a
    block, drop them."""

    batch: int
    block: int
    placements: tuple[Placement, ...] = ()
    last: bool = True

    @property
    def steps(self) -> int:
        """How much there is to do: the placements, and to drop the tokens."""
        return len(self.placements) + self.last


def describe_work(work: FileWork | None) -> str:
    """Say what is to be done with a file; None: only tokens are written."""
    if work is None:
        return "write tokens"
    return "write sidecars" if isinstance(work, FinishedFile) else "seal a file"


@dataclass(frozen=True)
class StoredTokens:
    """Tokens to write: a placement of one of the arrays in one of the objects that a task is given."""

    object: int
    array: int
    placement: Placement


@dataclass(frozen=True)
class FileOrder:
    """An order for any worker: write tokens, if it is given any, then finish the file."""

    number: int
    work: FileWork | None  # None: only write
    tokens: tuple[StoredTokens, ...] = ()
    on_own_disk: bool = False  # make the segment's file anew from the tokens: the worker does not see it


@dataclass(frozen=True)
class FileResult:
    """The end of an order: the SHA-256 of a segment, or the error, or the objects that are lost."""

    number: int
    sha256: str | None = None
    error: ShardError | None = None
    lost: tuple[int, ...] = ()


def try_order(
    order: FileOrder, action: Callable[[], FileResult], who: Callable[[], str] = lambda: "A worker"
) -> FileResult:
    """Return the result of an order, or the error that `action`, which does it, has raised."""
    try:
        return action()
    except ShardError as error:
        return FileResult(order.number, error=error)
    except Exception as error:
        bug = f"{who()} could not {describe_work(order.work)}: {describe_error(error)}"
        return FileResult(order.number, error=ShardError(bug))


@dataclass(frozen=True)
class Ready:
    """The worker has loaded its engine, which has passed the self-test."""


@dataclass(frozen=True)
class Trying:
    """The worker is about to encode this document; if it dies now, the document is suspected."""

    document: Quarantined


@dataclass(frozen=True)
class Encoded:
    """The worker has encoded a block of its batch, and holds its tokens."""

    index: int  # of the block, in its batch
    block: EncodedBlock


@dataclass(frozen=True)
class Done:
    """The worker has encoded all blocks of its batch."""

    fetched_bytes: int = 0  # over the network, since the previous Done


@dataclass(frozen=True)
class Failed:
    """The worker can't do its batch, and no other worker could."""

    error: ShardError


@dataclass(frozen=True)
class Written:
    """The worker has written the next placement of a block, if it has any."""

    batch: int
    block: int
    placements: int  # 1, or 0 if there is none
    dropped: bool  # it was the last one of the block: the worker has dropped the tokens


@dataclass(frozen=True)
class Broken:
    """The worker could not write a block. The run has to stop."""

    batch: int
    block: int
    error: ShardError


@dataclass(frozen=True)
class Waiting:
    """The worker waits for the network or the disk (`cause`), for this reason; None: no longer."""

    cause: str
    reason: str | None


@dataclass(frozen=True)
class Alive:
    """The worker is receiving bytes from the network, but slowly."""


Message = Alive | Ready | Trying | Encoded | Done | Failed | Written | FileResult | Broken | Waiting | Event


class WorkerObserver(Observer):
    """Passes on what happens in a worker with `send`, and counts what it fetches. Threads share it."""

    def __init__(self, send: Callable[[Event | Waiting], object]) -> None:
        self._send = send
        self._fetched_bytes = 0  # not yet reported
        self._fetched_lock = threading.Lock()  # a lock of its own, because sending may block for long

    def tell(self, event: Event) -> None:
        self._send(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        self._send(Waiting(cause, reason))

    def add_fetched(self, size_bytes: int) -> None:
        """Count bytes received from the network; only their sum is reported, which saves messages."""
        with self._fetched_lock:
            self._fetched_bytes += size_bytes

    def take_done(self) -> Done:
        """Return the message that a batch is done, with what was fetched since the last one."""
        with self._fetched_lock:
            done, self._fetched_bytes = Done(self._fetched_bytes), 0
        return done
