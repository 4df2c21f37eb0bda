"""Define the two interfaces of the data plane: who encodes batches, and who writes and seals files of tokens.

The control plane (run/, stream/, writing/) decides what belongs where and in which order, and handles
lengths, boundaries and cursors only. The data plane holds the tokens; what it does to files is in store/
(shard_files.py, sidecars.py). Where its work is done is up to the implementation:
`local/` uses worker processes on this machine, `ray/` tasks on a Ray cluster, `InProcessPlane` this process.
The rules that all executors share (order, window, retries, quarantine) are in schedule.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from fineweb_shards.events import Observer
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.store.pile_files import PileWork, seal
from fineweb_shards.store.shard_files import TokenWriter
from fineweb_shards.store.sidecars import FinishedFile, write_sidecars
from fineweb_shards.store.store import Segment, Store
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Batch, EncodedBlock, HeldTokens, Placement, Tokens

Result = TypeVar("Result")


@dataclass
class Lane:
    """What is under way of one listing of batches, in bytes of text."""

    waiting_bytes: int = 0  # of batches whose blocks were not all yielded
    output_bytes: int = 0  # of those before


# Returns the number of one of these listings, which have not ended, and whether nothing is placed until it is read.
ChooseListing = Callable[[Mapping[int, Lane]], tuple[int, bool]]


def choose_first(lanes: Mapping[int, Lane]) -> tuple[int, bool]:
    return min(lanes), True


class DataPlane(ABC):
    """Writes tokens into files, and finishes files, while the caller continues. A failure (a disk that stays full, an
    I/O error) is raised by whichever method is called next."""

    @abstractmethod
    def place(
        self, tokens: Tokens | HeldTokens, placements: Sequence[Placement], *, last: bool = True
    ) -> list[Future[None]]:
        """Write ranges of a block's tokens where they belong, at the latest when the file is sealed; each placement has
        a future, which is done when the file may be. After the `last` ones the tokens are gone: every block is placed
        for the last time once, even if it belongs nowhere."""

    @abstractmethod
    def seal(self, work: Segment | PileWork) -> Future[str]:
        """Seal a segment (store/shard_files.py), or make piles durable (store/pile_files.py); return the SHA-256. The
        futures of all placements into it are done. If a worker dies, another one does it again."""

    @abstractmethod
    def write_sidecars(self, file: FinishedFile) -> Future[None]:
        """Write all sidecars of a file (store/sidecars.py), again if a worker dies."""

    @abstractmethod
    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        """Wait until something is done, and return its result; TimeoutError if it takes too long. Only this waits: a
        future's own `result` would block the thread that has to do the work."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of workers that exist now."""

    @property
    def nodes(self) -> int:
        """The number of machines that they are on, if there can be several; 0: they are on this one."""
        return 0


class InProcessPlane(DataPlane):
    """Does the work in this process, for an export, whose tokens come from finished files. It writes at once, and seals
    files in threads. `close` it in the end."""

    def __init__(self, store: Store, shard_format: ShardFormat, disk: Disk) -> None:
        self._store = store
        self._format = shard_format
        self._max_wait_seconds = disk.max_outage_seconds
        self._writer = TokenWriter(shard_format, disk)

    @property
    def workers(self) -> int:
        return 0

    def place(
        self, tokens: Tokens | HeldTokens, placements: Sequence[Placement], *, last: bool = True
    ) -> list[Future[None]]:
        assert not isinstance(tokens, HeldTokens), "nobody else holds tokens here"
        return write_at_once(self._writer, tokens, placements)

    def seal(self, work: Segment | PileWork) -> Future[str]:
        settings = self._format, self._store, self._max_wait_seconds
        return self._start(partial(seal, Observer(), work, *settings))

    def write_sidecars(self, file: FinishedFile) -> Future[None]:
        return self._start(partial(write_sidecars, Observer(), file))

    def wait(self, future: Future[Result], longest_seconds: float | None = None) -> Result:
        return future.result(longest_seconds)

    def close(self) -> None:
        self._writer.close()

    def _start(self, call: Callable[[], Result]) -> Future[Result]:
        return in_background(call)


def write_at_once(writer: TokenWriter, tokens: Tokens, placements: Sequence[Placement]) -> list[Future[None]]:
    """Write tokens that are in this process; return futures that are done."""
    for placement in placements:
        writer.write(tokens, placement)
    return [completed(None) for _ in placements]


def completed(result: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(result)
    return future


class Executor(DataPlane):
    """Tokenizes for one run. As a context manager it starts its workers on entry and ends them on exit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End every worker, even in the middle of its work."""

    @abstractmethod
    def encode(
        self,
        listings: Sequence[Iterator[Batch]],
        on_idle: Callable[[], None] = lambda: None,
        wanted_tokens: Callable[[], int | None] = lambda: None,
        choose: ChooseListing = choose_first,
    ) -> Generator[EncodedBlock]:
        """Yield the blocks of all batches, those of each listing in their order. Each has to be placed, unless it
        brings its tokens. If the generator is closed, batches that were not yielded yet are dropped. While no block
        comes, perhaps for as long as an outage, `on_idle` is called now and then. `wanted_tokens` says how many tokens
        are still missing after the blocks so far, so that little more than that is fetched and encoded; None: all.

        Several listings are those of the parts of a mix, in their order. `choose` says which of them is to be read
        next; when the memory for text in flight is full, only one that all others wait for. Where one has ended, and
        its last block was yielded, a block without tokens says so (`ends_part`)."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """The memory of all processes of the run when last measured; 0 if it can't be measured."""

    @property
    @abstractmethod
    def peak_bytes(self) -> int:
        """The highest value of `used_bytes` so far."""
