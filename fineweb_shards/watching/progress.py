"""Keep the progress of a run: updated by the run itself, read by the monitor.

As the run's observer it also passes events on to the log, the history and the screen. It estimates how many tokens the
run will make, and how long that will take. Unless `token_count` is known, the plan's number of tokens is a guess from a
small sample of the input; as the run reads, the tokens made from the share of the input read so far replace it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fineweb_shards.events import Event, Observer
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.types import Cursors, ShardRecord, Taken
from fineweb_shards.units import show_number_of
from fineweb_shards.watching.mix_shares import find_shares
from fineweb_shards.watching.run_files import EventLog, History, PartShare, second_pass_seconds
from fineweb_shards.watching.screen import Screen

ReadShare = Callable[[Cursors], float | None]
# The plan's guess weighs as much as a measurement over this share of the input.
_GUESS_SHARE = 0.03
WINDOW_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Total:
    """Estimates the number of tokens in the whole stream."""

    planned_tokens: int | None
    exact: bool = False
    limit: int | None = None

    def tokens(self, done_tokens: int, read_tokens: int, read_share: float | None) -> int | None:
        """Return the expected number of tokens; None if nothing is known.

        `read_tokens` were made from `read_share` of the input; the rest of `done_tokens` from the beginning of the next
        file or row group.
        """
        if self.planned_tokens is None:
            return None
        total: float = self.planned_tokens
        if not self.exact and read_share is not None:
            weight = _GUESS_SHARE + read_share
            whole_input = (_GUESS_SHARE * self.planned_tokens + read_tokens) / weight
            total = read_tokens + (1 - read_share) * whole_input
        if self.limit is not None:
            total = min(total, self.limit)
        return max(done_tokens, round(total))


class Speedometer:
    """Measures tokens or bytes per second over the last minutes of work, not counting start-up and waits."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()  # seconds of work, amount
        self._last: tuple[float, int] | None = None
        self._work_seconds = 0.0

    def add(self, now_seconds: float, amount: int, *, working: bool) -> None:
        """Record the amount reached by now; call it about once a second."""
        last_seconds, last_amount = self._last or (now_seconds, amount)
        self._last = (now_seconds, amount)
        if not self._marks:  # measure from the first increase on: until then the workers start
            if amount > last_amount:
                self._marks.append((0.0, amount))
            return
        if working:
            self._work_seconds += now_seconds - last_seconds
        self._marks.append((self._work_seconds, amount))
        while self._work_seconds - self._marks[1][0] > WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def per_second(self) -> float | None:
        if len(self._marks) < 2:
            return None
        (first_seconds, first), (last_seconds, last) = self._marks[0], self._marks[-1]
        seconds = last_seconds - first_seconds
        return (last - first) / seconds if seconds > 0 else None


class Progress(Observer):
    """What a run has done, what it will probably make, and what it waits for."""

    def __init__(
        self,
        log: EventLog,
        screen: Screen | None = None,
        history: History | None = None,
        *,
        begun: Manifest | None = None,
    ) -> None:
        self.began = time.monotonic()
        self.screen = screen or Screen()
        self.history = history or History()
        self.records = list(begun.shards) if begun else []  # of finished shards
        self.resumed_tokens = self.tokens = self.pass_number = self.other_pass_tokens = 0  # as in a Snapshot
        self.shard = self.shard_tokens = 0
        self.verifying = False
        self.fetched_bytes = 0  # over the network, in this run
        self.waited_seconds = 0.0  # in which no token was made; counted by the monitor
        self.total = Total(None)
        self.planned_tokens: Sequence[int | None] = ()
        self._log = log
        self._parts = begun.parts if begun else ()
        self._places: Cursors = ()
        self._mixed = begun.mixed if begun else ((), ())  # how much was taken of each part of the input, up to where
        self._read_share: ReadShare = lambda places: None
        self._verified: Counter[str] = Counter()  # file name to the number of its records read back
        self._waits: dict[str, str] = {}  # cause to reason
        self._lock = threading.Lock()
        if begun is not None:
            self.begin_pass(begun)

    def expect(self, total: Total, read_share: ReadShare, planned_tokens: Sequence[int | None] = ()) -> None:
        """Set the estimate of the stream. `read_share` returns the share of the input before a place, `planned_tokens`
        has the tokens of each part. The second pass of a shuffle, which reads piles, knows its length."""
        if self.pass_number != 2:
            self.total, self._read_share, self.planned_tokens = total, read_share, planned_tokens

    def begin_pass(self, manifest: Manifest) -> None:
        """Begin with what the manifest records; in a shuffle, of the current pass."""
        number, tokens, other = manifest.pass_number, manifest.tokens, manifest.piled_tokens
        if number == 2:
            self.total, self._read_share = Total(other, exact=True), lambda places: None
        self._places, self._mixed = manifest.end, manifest.mixed
        if number == 1:
            tokens, other, self._places = other, tokens, manifest.input_end
        # Together, for the monitor's thread.
        self.pass_number, self.tokens, self.other_pass_tokens, self.resumed_tokens = number, tokens, other, tokens
        self.shard_tokens = 0

    def advance(self, tokens: int, shard: int, places: Cursors, taken: tuple[Taken, ...] = ()) -> None:
        """Add tokens packed into a shard or put into piles, up to `places`; a mix has `taken` this from its parts."""
        if shard != self.shard:
            self.shard, self.shard_tokens = shard, 0
        self.tokens += tokens
        self._places = places
        if self.pass_number != 1:
            self.shard_tokens += tokens
        if self.pass_number != 2:
            self._mixed = taken, places

    def finish_shards(self, records: Iterable[ShardRecord]) -> None:
        for record in records:
            self.records.append(record)
            counted = f"{record.tokens:,} tokens, {show_number_of(record.documents, 'document')}"
            self.tell(Event("shard", f"{record.name}: {counted}, SHA-256 {record.sha256}", loud=False))

    def verify_shard(self, record: ShardRecord) -> None:
        """Count a shard record that was read back. May be called from any thread."""
        with self._lock:
            self._verified[record.name] += 1

    @property
    def finished_shards(self) -> int:
        """The number of files in the manifest, including one that is still growing."""
        return len({record.name for record in self.records[:]})

    @property
    def verified_shards(self) -> int:
        """The number of files whose records were all read back."""
        records = Counter(record.name for record in self.records[:])
        with self._lock:
            return sum(count == records[name] for name, count in self._verified.items())

    @property
    def shares(self) -> tuple[PartShare, ...]:
        return find_shares(self._parts, *self._mixed)

    @property
    def begun(self) -> bool:
        """Whether this run, or its pass, has made any token."""
        return self.tokens > self.resumed_tokens

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def work_seconds(self) -> float:
        """The same without the time in which the run only waited."""
        return max(0.0, self.seconds - self.waited_seconds)

    @property
    def waits(self) -> str:
        """The reasons of all current waits; empty if there is none."""
        with self._lock:
            return "; ".join(self._waits.values())

    def expected_tokens(self) -> int | None:
        """Return the estimated number of tokens in the whole stream; None if unknown."""
        places, tokens = self._places, self.tokens
        read = max(0, tokens - sum(place.skip_tokens for place in places))
        return self.total.tokens(tokens, read, self._read_share(places) if self.begun else None)

    def seconds_left(self, expected_tokens: int | None, per_second: float | None) -> float | None:
        """Return how long the rest takes; None if unknown."""
        if expected_tokens is None or not per_second:
            return None
        left = (expected_tokens - self.tokens) / per_second
        if self.pass_number == 1:  # then comes a shuffle's second pass
            left += second_pass_seconds(max(0, expected_tokens - self.other_pass_tokens), per_second)
        return left

    def expected_left(self) -> int | None:
        expected = self.expected_tokens()
        return None if expected is None else expected - self.tokens

    def add_fetched(self, size_bytes: int) -> None:
        with self._lock:
            self.fetched_bytes += size_bytes

    def tell(self, event: Event) -> None:
        self._log.write(event)
        self.history.note(event)
        if event.loud:
            self.screen.tell(event)

    def set_wait(self, cause: str, reason: str | None) -> None:
        with self._lock:
            begun = cause not in self._waits
            if reason is None:
                self._waits.pop(cause, None)
            else:
                self._waits[cause] = reason
        loud = not self.screen.shows_waits
        if reason is not None and begun:
            self.history.begin_wait(cause, reason)
            self.tell(Event("wait", reason, loud=loud))
        elif reason is None and not begun:
            self.history.end_wait(cause)
            self.tell(Event("wait", f"the wait for the {cause} is over", loud=loud))
