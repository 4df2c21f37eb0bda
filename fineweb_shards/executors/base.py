"""Define the two interfaces of the data plane: one encodes batches, the other writes and seals token files.

The control plane (run/, stream/, writing/) decides which tokens go where and in which order; it handles only lengths,
boundaries and cursors. The data plane holds the tokens and writes them with output/ (shard_files.py, sidecars.py).
`local/` does so in worker processes on this machine, `ray/` in tasks on a Ray cluster, `InProcessPlane` in this
process. schedule.py has the rules that all executors share: order, window, retries, quarantine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from fineweb_shards.events import Observer
from fineweb_shards.executors.messages import FileWork
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.shard_files import PileWork, TokenWriter, seal
from fineweb_shards.output.sidecars import FinishedFile, write_sidecars
from fineweb_shards.output.store import Segment, Store
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Batch, EncodedBlock, HeldTokens, Placement, Tokens

Result = TypeVar("Result")
Writes = list[Future[None]]  # one for each placement


@dataclass
class Lane:
    """The progress of one listing of batches, in bytes of text."""

    waiting_bytes: int = 0  # of batches with blocks still to be yielded
    output_bytes: int = 0  # of batches before them


# Picks one of the unfinished listings; returns its number, and whether the stream is blocked until it is read.
ChooseListing = Callable[[Mapping[int, Lane]], tuple[int, bool]]


def choose_first(lanes: Mapping[int, Lane]) -> tuple[int, bool]:
    return min(lanes), True


class DataPlane(ABC):
    """Writes tokens to files and finishes the files while the caller continues. A failure (a disk that stays full, an
    I/O error) is raised by the next method called."""

    @abstractmethod
    def place(self, tokens: Tokens | HeldTokens, placements: Sequence[Placement], *, last: bool = True) -> Writes:
        """Write ranges of a block's tokens to their files before those are sealed. Returns a future for each placement;
        a file may be sealed once its futures are done. The `last` call, which every block needs, drops the tokens."""

    def seal(self, work: Segment | PileWork) -> Future[str]:
        """Seal a segment or make piles durable, once all placements in it are done; return the SHA-256."""
        return self._finish_file(work)

    def write_sidecars(self, file: FinishedFile) -> Future[None]:
        """Write all sidecars of a file (output/sidecars.py)."""
        return self._finish_file(file)

    @abstractmethod
    def _finish_file(self, work: FileWork) -> Future[Any]:
        """Do the work, and again if a worker dies."""

    @abstractmethod
    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        """Wait for a future and return its result; TimeoutError if it takes too long. Never call the future's own
        `result`: it would block the thread that has to do the work."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """The current number of workers."""

    @property
    def nodes(self) -> int:
        """The number of machines in the cluster; 0 without a cluster."""
        return 0


class InProcessPlane(DataPlane):
    """Does the work in this process, for exports, which take their tokens from finished files. Writes immediately and
    seals files in threads. Call `close` at the end."""

    workers = 0

    def __init__(self, store: Store, shard_format: ShardFormat, disk: Disk) -> None:
        self._settings = shard_format, store, disk.max_outage_seconds
        self._writer = TokenWriter(shard_format, disk)

    def place(self, tokens: Tokens | HeldTokens, placements: Sequence[Placement], *, last: bool = True) -> Writes:
        assert not isinstance(tokens, HeldTokens), "no worker holds tokens here"
        return write_at_once(self._writer, tokens, placements)

    def _finish_file(self, work: FileWork) -> Future[Any]:
        if isinstance(work, FinishedFile):
            return self._start(partial(write_sidecars, Observer(), work))
        return self._start(partial(seal, Observer(), work, *self._settings))

    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        return future.result(longest_seconds)

    def close(self) -> None:
        self._writer.close()

    def _start(self, call: Callable[[], Result]) -> Future[Result]:
        return in_background(call)


def write_at_once(writer: TokenWriter, tokens: Tokens, placements: Sequence[Placement]) -> Writes:
    """Write tokens held by this process; return completed futures."""
    for placement in placements:
        writer.write(tokens, placement)
    return [completed(None) for _ in placements]


def completed(result: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(result)
    return future


class Executor(DataPlane):
    """Tokenizes for one run. A context manager: starts its workers on entry and ends them on exit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End every worker, even one that is busy."""

    @abstractmethod
    def encode(
        self,
        listings: Sequence[Iterator[Batch]],
        on_idle: Callable[[], None] = lambda: None,
        wanted_tokens: Callable[[], int | None] = lambda: None,
        choose: ChooseListing = choose_first,
    ) -> Generator[EncodedBlock]:
        """Yield the blocks of all batches, in order within each listing. The caller must place each block that does
        not carry its tokens. Closing the generator drops the batches not yet yielded. `on_idle` is called from time to
        time while no block arrives, for example during an outage. `wanted_tokens` returns how many more tokens the
        caller needs, so that little more than that is fetched and encoded; None: all.

        A mix has one listing for each part. `choose` picks the one to read next; when text in flight fills the memory,
        only a listing that all others wait for is read. After the last block of a listing comes a block without tokens
        that has `ends_part` set."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """The memory used by all processes of the run when last measured; 0 if unknown."""

    @property
    @abstractmethod
    def peak_bytes(self) -> int:
        """The highest value of `used_bytes` so far."""
