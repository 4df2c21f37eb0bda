"""The first pass of a shuffle: decide which bytes of which pile the tokens of the stream become, and record progress.

A checkpoint waits until everything before it is written, has the data plane make all piles durable, appends the
documents that have ended to the list, and saves the manifest with the length of each file. So after a crash the pass
continues there, and whatever was written later is truncated. Checkpoints are made after a number of tokens, after half
a minute, and when a run is stopped.

In a bucket a checkpoint is an object of its own (formats/piles.py). So placements name the checkpoint, not the folder,
and several checkpoints are uploaded at once.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from fineweb_shards.errors import ChangedError, Interrupted, OutputError, ShardError
from fineweb_shards.executors.base import DataPlane
from fineweb_shards.formats.piles import (
    append_to_list,
    block_bytes,
    digest_of,
    list_block,
    list_path,
    object_name,
    pile_errors,
)
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.manifest_file import ManifestFile
from fineweb_shards.output.pile_objects import add_list_block, remove_objects
from fineweb_shards.output.shard_files import PileWork, prepare_piles, sizes_of
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.stream.packer import PackedTotals, Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.shuffle import CHECKSUMS, Listed, PileState, Shuffler
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.system.durable import output_errors
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Cursors, Placement, ShardSlice
from fineweb_shards.writing.placement import LONGEST_LAST_SECONDS, rows_by_block

# Tokens between two checkpoints: a few seconds of work. Making many piles durable takes a while.
_CHECKPOINT_TOKENS = 100_000_000
_TOKENS_PER_PILE = 2**18
_CHECKPOINT_SECONDS = 30.0  # at most, if there is anything to record
_MOST_LISTED = 2**20  # documents waiting for a checkpoint
_UPLOADED_AT_ONCE = 4  # checkpoints


def make_pile_packer(spec: OutputSpec, state: PileState, max_tokens: int | None) -> Packer:
    """Return the packer of the first pass, for its checkpoints. It separates validation from training only if the files
    decide that."""
    val, train = state.tokens[0], sum(state.tokens[1:])
    every = min(_CHECKPOINT_TOKENS, max(spec.shard_tokens, state.count * _TOKENS_PER_PILE))
    return Packer(
        every,
        split_rule=SplitRule(val_files=spec.split_rule.val_files),
        one_file=True,
        eot_first=spec.layout.eot_first,
        done=PackedTotals(val, train, state.documents),
        starts=state.end,
        taken=state.taken,
        max_tokens=None if max_tokens is None else max_tokens - val - train,
    )


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """What to record once the first `after` placements are written and the piles are durable."""

    before: PileState
    state: PileState
    listed: Listed
    after: int
    path: Path  # of the placements since the previous checkpoint
    syncs: list[Future[str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its object in a bucket."""
        return object_name(self.before.list_bytes, sum(self.state.tokens))


@dataclass(eq=False)
class PileOutput:
    """Places the documents of a stream into piles. Everything that `manifest` records is durable; `add_totals` and
    `on_record` are those of `Output`."""

    spec: OutputSpec
    folder: Path
    manifest: Manifest
    plane: DataPlane
    disk: Disk
    add_totals: Callable[[Manifest], Manifest] = lambda manifest: manifest
    on_record: Callable[[Cursors], None] = lambda end: None

    def __post_init__(self) -> None:
        piles = self.manifest.piles
        assert piles is not None, "the manifest of a shuffle has its piles"
        self._manifest_file = ManifestFile(self.spec.store)
        self._shuffler = Shuffler(self.manifest.settings["shuffle"], piles, eot_first=self.spec.layout.eot_first)
        self._writes: deque[tuple[int, Future[None]]] = deque()  # of placements that may be unwritten, with numbers
        self._placed = 0  # placements
        self._checkpoints: deque[_Checkpoint] = deque()
        self._last = piles  # the state at the last one
        self._begun = 0  # checkpoints in this run
        self._most = _UPLOADED_AT_ONCE if piles.in_bucket else 1
        self._counts, self._end, self._taken = piles.counts, piles.end, piles.taken
        # The last place for a checkpoint, if none was begun there: the state, and the lists and placements before it.
        self._noted: tuple[PileState, int, int] | None = None
        self._checkpoint_time = time.monotonic()  # when the last one was begun
        self._is_recording = False
        sizes = sizes_of(self.folder, piles, self.spec.shard_format)
        self.disk.attempt(lambda: prepare_piles(sizes))
        if piles.in_bucket:
            remove_objects(self.spec.store, piles.list_bytes)
        with pile_errors(list_path(self.folder)):
            self._list_digest = digest_of(list_path(self.folder), 0, piles.list_bytes)

    def __enter__(self) -> PileOutput:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """When a run is stopped, record the placed sections, unless the output is at fault, or Ctrl-C interrupted a
        recording."""
        stops = isinstance(error, (ShardError, Interrupted)) and not isinstance(error, OutputError)
        if not stops or self._is_recording:
            return
        # Not for long; and the first error is the one to report.
        self.spec.store.hurry(LONGEST_LAST_SECONDS)
        with contextlib.suppress(ShardError, Interrupted, TimeoutError):
            self._begin_checkpoint()
            self._settle(0, LONGEST_LAST_SECONDS)

    @property
    def _path(self) -> Path:
        """Where placements are made: the folder of the piles, or a name for the next checkpoint's object."""
        is_folder = not self._last.in_bucket
        return self.folder if is_folder else self.spec.folder / WORK_FOLDER / f"piles-{self._begun}"

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Mark work that must not be interrupted: if it is, nothing can be recorded any more."""
        self._is_recording = True
        yield
        self._is_recording = False

    def add(self, section: Section, slices: Iterable[ShardSlice]) -> None:
        """Place a section, which `slices` divide, in order."""
        of_block: dict[int, list[Placement]] = {}
        begin = 0
        for part in slices:
            self._counts += part.counts
            self._end, self._taken = part.end, part.taken
            if part.tokens:
                for holder, placement in self._place(section, begin, part):
                    of_block.setdefault(holder, []).append(placement)
                begin += part.tokens
            if part.checkpoint:
                self._write(section, of_block, whole=False)
                of_block = {}
                self._note_place()
                self._begin_checkpoint()
        self._write(section, of_block, whole=True)
        self._note_place()
        if self._shuffler.listed >= _MOST_LISTED:
            self._begin_checkpoint()
        self._settle(self._most)

    def _place(self, section: Section, begin: int, part: ShardSlice) -> list[tuple[int, Placement]]:
        """Return a placement for each block of a slice that begins with token `begin` of its section, with the block's
        number."""
        pieces = self._shuffler.assign(section.eots, begin, begin + part.tokens, part.split)
        ranges, holders = section.find(np.stack([pieces.bounds[:-1], pieces.bounds[1:]], 1))
        lengths = ranges[:, 1] - ranges[:, 0]
        piles, places = pieces.place(begin + np.cumsum(lengths) - lengths)
        offsets = self.spec.shard_format.size_bytes(places)
        path = str(self._path)
        if len(section.blocks) == 1:  # without a mix
            return [(0, Placement(path, offsets, ranges, piles))]
        found = rows_by_block(holders)
        return [(number, Placement(path, offsets[rows], ranges[rows], piles[rows])) for number, rows in found]

    def _write(self, section: Section, of_block: dict[int, list[Placement]], *, whole: bool) -> None:
        """Have these placements written; `whole`: they complete the section, and so the blocks that end in it."""
        for number, block in enumerate(section.blocks):
            own, last = of_block.get(number, []), whole and number in section.finished
            if own or last:
                self._writes.extend(enumerate(self.plane.place(block.tokens, own, last=last), self._placed))
                self._placed += len(own)

    def _note_place(self) -> None:
        """Note that a checkpoint may begin here: everything that the shuffler has assigned is placed."""
        state = self._shuffler.state(self._end, self._taken, self._counts)
        self._noted = state, self._shuffler.lists, self._placed

    def _begin_checkpoint(self) -> None:
        """Begin a checkpoint at the place noted last, if that has none yet."""
        if self._noted is None:
            return
        with self._recording():
            state, lists, placed = self._noted
            listed = self._shuffler.take_listed(lists)
            end = self._last.list_bytes + block_bytes(len(state.tokens), len(listed.hashes))
            state = replace(state, list_bytes=end, checksum=(self._last.checksum + listed.checksum) % CHECKSUMS)
            self._checkpoints.append(_Checkpoint(self._last, state, listed, placed, self._path))
            self._last = state
            self._begun += 1
            self._noted, self._checkpoint_time = None, time.monotonic()

    def advance(self) -> None:
        """Without waiting, begin a checkpoint if one is due, have written piles made durable, and record."""
        if not self._checkpoints and time.monotonic() - self._checkpoint_time >= _CHECKPOINT_SECONDS:
            self._begin_checkpoint()
        while self._writes and self._writes[0][1].done():
            self._writes[0][1].result()
            self._writes.popleft()
        written = self._writes[0][0] if self._writes else self._placed
        while self._checkpoints:
            for checkpoint in islice(self._checkpoints, self._most):
                if checkpoint.after <= written and not checkpoint.syncs:
                    self.spec.store.check_lock()
                    self._begin_syncs(checkpoint)
            first = self._checkpoints[0]
            if not first.syncs or not all(sync.done() for sync in first.syncs):
                return
            hashes = [sync.result() for sync in first.syncs]
            with self._recording():
                self._record(first, hashes)
                self._checkpoints.popleft()

    def _begin_syncs(self, checkpoint: _Checkpoint) -> None:
        """Have the additions to the piles made durable, a share by each worker."""
        size_bytes, bounds = self.spec.shard_format.size_bytes, (checkpoint.before.tokens, checkpoint.state.tokens)
        ranges = [(n, size_bytes(begin), size_bytes(end)) for n, (begin, end) in enumerate(zip(*bounds, strict=True))]
        each, path = -(-len(ranges) // max(1, self.plane.workers)), checkpoint.path
        works = [PileWork(path, tuple(ranges[first : first + each])) for first in range(0, len(ranges), each)]
        if checkpoint.state.in_bucket:
            works = [PileWork(path, tuple(ranges), checkpoint.name)]
        checkpoint.syncs.extend([self.plane.seal(work) for work in works])

    def _record(self, checkpoint: _Checkpoint, hashes: list[str]) -> None:
        """Append a block to the list, and save the manifest."""
        before, state, listed, path = checkpoint.before, checkpoint.state, checkpoint.listed, list_path(self.folder)
        whole = bytes.fromhex("".join(hashes))
        added = [whole[first : first + 32] for first in range(0, len(whole), 32)]
        block = list_block(before.tokens, state.tokens, added, listed.hashes, listed.lengths, listed.piles)

        def append() -> None:
            with output_errors(path):
                append_to_list(path, before.list_bytes, block)

        self.disk.attempt(append)
        if state.in_bucket:
            self.spec.store.check_lock()
            add = partial(add_list_block, self.spec.store, checkpoint.name, block, self.disk.observer)
            self.disk.attempt(add)
        self._list_digest.update(block)
        self._save(replace(state, list_sha256=self._list_digest.hexdigest()))
        self.on_record(state.end)

    def _save(self, state: PileState) -> None:
        self.spec.store.check_lock()
        self.manifest = self.add_totals(replace(self.manifest, piles=state))
        self.disk.attempt(lambda: self._manifest_file.save(self.manifest))

    def _settle(self, most: int, longest_seconds: float | None = None) -> None:
        """Wait until at most `most` checkpoints are left."""
        self.advance()
        while len(self._checkpoints) > most:
            for sync in self._checkpoints[0].syncs:
                self.plane.wait(sync, longest_seconds)
            if not self._checkpoints[0].syncs:
                self.plane.wait(self._writes[0][1], longest_seconds)
            self.advance()

    def finish(self) -> Manifest:
        """Record the end of the pass."""
        self._shuffler.end()
        self._note_place()
        self._begin_checkpoint()
        self._settle(0)
        state = self.manifest.piles
        assert state is not None
        if self.manifest.shards and state.earlier_checksum not in (None, state.checksum):
            self._save(state.again())  # for another try
            raise ChangedError(
                f"{self.spec.store.location}: the first pass of the shuffle was repeated, and yielded other documents "
                "than those in the finished shards.",
                "Make the whole input readable and rerun with the original --on-bad-file, which repeats the pass; or "
                "start over with --fresh.",
            )
        self._save(replace(state, ended=True, earlier_checksum=None))
        return self.manifest
