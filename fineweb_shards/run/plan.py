"""`plan`: predict what a build will do, before anything is written. estimate.py measures the input.

In a mix the weights decide how much is read of each part, and which one runs out first (`forecast_parts`). The tokens
are exact to within one document per part, because the lengths of single documents are unknown.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fineweb_shards.errors import NoTrainingError
from fineweb_shards.formats.registry import FORMATS
from fineweb_shards.run.estimate import QUICK_SAMPLE_BYTES, Extent, measure_extent, take_sample
from fineweb_shards.run.job import Job
from fineweb_shards.run.output_text import training_error
from fineweb_shards.run.resources import DiskNeed, Rest, find_needs
from fineweb_shards.run.shuffle import empty_piles
from fineweb_shards.sources.source import Source
from fineweb_shards.storage.place import HUB_ON_DISK
from fineweb_shards.stream.mix import MixRule
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.types import Cursor, Cursors
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.watching.run_files import second_pass_seconds

_BEGINNING = Cursor(0, 0)
_SAMPLE_BYTES = 24 * 2**20
# Measured with two workers on two cores, which they share with the parent, which packs, hashes and writes.
_PARALLEL_EFFICIENCY = 0.7
_MOST_TOKENS_PER_BYTE = 3  # an invalid byte becomes U+FFFD, whose three bytes may be a token each


@dataclass(frozen=True, slots=True)
class Forecast:
    """How many tokens a stream takes from each part of the input, and where the parts run out. Files for validation,
    which a mix reads first, are not counted. None: unknown."""

    available: tuple[int | None, ...]  # tokens in all epochs of a part
    taken: tuple[int | None, ...]  # up to the end of the stream
    # The length of the stream, including validation, at the first turn of a part that has run out; None also if no
    # such turn comes.
    ends: tuple[int | None, ...]
    cut: bool  # the stream ends at the limit

    @property
    def first_end(self) -> int | None:
        """The part that runs out first; of several, the first one."""
        ended = [(end, number) for number, end in enumerate(self.ends) if end is not None]
        return min(ended)[1] if ended else None

    def shares(self) -> tuple[float | None, ...]:
        total = sum(filter(None, self.taken))
        return tuple(None if one is None or None in self.taken else one / max(1, total) for one in self.taken)


@dataclass(frozen=True, slots=True)
class Plan:
    job: Job
    extent: Extent
    part_extents: tuple[Extent, ...]  # of what each part has, read once
    forecast: Forecast
    separator_rows: list[tuple[str, str]]  # how text files, if there are any, are split
    first_documents: list[str]
    tokens_per_second: float | None  # of all workers together, measured by a trial
    read_bytes: int  # of the input, by all runs together: less with --max-tokens, more with epochs
    bytes_to_fetch: int  # still, in whole batches; an estimate unless all of the input is left
    done_tokens: int = 0  # in finished shards
    piles: PileState | None = None  # of a shuffle: the progress of its first pass

    @property
    def tokens_left(self) -> int | None:
        return None if self.extent.tokens is None else max(0, self.extent.tokens - self.done_tokens)

    @property
    def output_bytes(self) -> int | None:
        left = self.tokens_left
        return None if left is None else self.job.output.shard_format.size_bytes(left)

    @property
    def seconds(self) -> float | None:
        """How long the rest takes, including both passes of a shuffle; None if unknown."""
        left, speed = self.tokens_left, self.tokens_per_second
        if left is None or not speed:
            return None
        if self.piles is None:
            return left / speed
        first_left = 0 if self.piles.ended else max(0, left + self.done_tokens - sum(self.piles.tokens))
        return first_left / speed + second_pass_seconds(left, speed)

    @property
    def disk_needs(self) -> list[DiskNeed]:
        """The space that the rest takes on this machine's disks; empty if the length of the stream is unknown."""
        extent, job = self.extent, self.job
        if extent.tokens is None:
            return []
        val_tokens = 0.0  # estimated from file sizes
        for part, one in zip(job.source.parts, self.part_extents, strict=True):
            val_bytes = sum(file.size_bytes for file in part.files[: part.val_files])
            val_tokens += (one.tokens or 0) * val_bytes / max(1, part.size_bytes)
        val = min(extent.tokens, round(val_tokens))
        documents, workers = extent.documents or 0, job.budget.workers
        rest = Rest(extent.tokens, documents, self.done_tokens, workers, self.piles, val)
        return find_needs(job.output, job.config.pile_folder, rest)

    @property
    def shards(self) -> int | None:
        if self.extent.tokens is None:
            return None
        return -(-self.extent.tokens // self.job.output.shard_tokens)


def make_plan(
    job: Job, *, trial_seconds: float, start: Cursors = (), done_tokens: int = 0, piles: PileState | None = None
) -> Plan:
    """Sample the input and make a plan. With `trial_seconds` above 0, as for `plan`, also measure the speed and read
    every footer; the estimates are the same as for `build`, which passes 0. `start` is where the run will begin, after
    `done_tokens` in shards. `piles` are those of a shuffle whose first pass has begun."""
    config = job.config
    with contextlib.closing(job.source.reopened()) as source:
        opened, starts = replace(job, source=source), start or source.starts
        if piles is not None and piles.ended and not trial_seconds:
            # The input is no longer needed, and it may be on a hub that can't be reached now.
            none, unknown = Extent(0, 0, exact=True), Extent(None, None, exact=False)
            parts = [_MeasuredPart(none, unknown, 1, one.read_bytes, 0, 1.0, [], [], 0.0) for one in source.parts]
        else:
            parts = [_measure_part(opened, number, first, trial_seconds) for number, first in enumerate(starts)]
    forecast, taken = _take_from(parts, config.mix, config.max_tokens)
    extent = functools.reduce(operator.add, taken)
    if forecast.cut:
        extent = replace(extent, tokens=extent.tokens and config.max_tokens)
    takes_all = config.mix is None or config.mix.until_all  # else the last documents depend on their lengths
    extent = replace(
        extent,
        exact=extent.exact and (takes_all or forecast.cut),
        documents_exact=extent.documents_exact and takes_all and config.max_tokens is None,
    )
    if config.shuffle is not None and piles is None:
        piles = empty_piles(job.output, config, extent.tokens, starts)
    if piles is not None and piles.ended:
        extent = replace(extent, tokens=sum(piles.tokens), documents=piles.documents, exact=True, documents_exact=True)
    read_bytes = to_fetch = 0
    tokens, seconds = 0, 0.0  # of the parts that are read, with one worker
    for part, one in zip(parts, taken, strict=True):
        whole, batches = part.whole.tokens, part.whole.batches
        share = one.tokens / whole if whole and one.tokens is not None else 1.0
        read_bytes += round(share * part.size_bytes)
        left = max(0.0, share - part.passed)
        left_bytes = round((math.ceil(left * batches) / batches if batches else left) * part.size_bytes)
        to_fetch += min(left_bytes, part.most_fetched_bytes)
        if one.tokens != 0:
            is_known = one.tokens is not None and part.tokens_per_second
            seconds += (one.tokens or 0) / part.tokens_per_second if is_known else math.inf
            tokens += one.tokens or 0
    extents = tuple(part.val + part.train for part in parts)
    rows = [row for part in parts for row in part.separator_rows]
    texts = [text for part in parts for text in part.first_documents]
    speed = (tokens / seconds if seconds else 0.0) * job.budget.workers * _PARALLEL_EFFICIENCY or None
    return Plan(job, extent, extents, forecast, rows, texts, speed, read_bytes, to_fetch, done_tokens, piles=piles)


@dataclass(frozen=True, slots=True)
class _MeasuredPart:
    val: Extent  # files for validation, where they are counted separately
    train: Extent  # the others, once
    epochs: int
    size_bytes: int  # of its files, counted each time they are read
    most_fetched_bytes: int
    passed: float  # the share of these bytes before the cursor
    separator_rows: list[tuple[str, str]]
    first_documents: list[str]
    tokens_per_second: float  # of one worker; 0: unknown

    @property
    def whole(self) -> Extent:
        return self.val + self.train.scaled(self.epochs)


def _measure_part(job: Job, number: int, start: Cursor, trial_seconds: float) -> _MeasuredPart:
    """Measure a part of the input; from the cursor on if reading costs requests."""
    part, own = job.source.parts[number], job.config.part_configs[number]
    first = start if part.costs_requests else _BEGINNING
    # The estimates come from a small sample, so that `plan` and `build` agree; the speed from a large one, of which as
    # much is encoded as time allows.
    sample = take_sample(job, number, QUICK_SAMPLE_BYTES, first, download=not trial_seconds)
    if not sample.read_bytes and first != _BEGINNING:  # a finished part would look empty
        first = _BEGINNING
        sample = take_sample(job, number, QUICK_SAMPLE_BYTES, first, download=not trial_seconds)
    # Files for validation are measured separately where they count differently.
    val_files = part.val_files if job.config.mix or own.epochs > 1 else 0
    val, train = (
        measure_extent(sample, files, first, every_footer=trial_seconds > 0).sampled(own.sample)
        for files in (part.files[:val_files], part.files[val_files:])
    )
    bytes_before = sum(part.file(number).size_bytes for number in range(start.file))
    passed = part.share_before(start) or bytes_before / max(1, part.read_bytes)
    size_bytes, most_bytes = part.read_bytes, most_fetched_bytes(part)
    rows = sample.separator_rows()
    speed, documents = 0.0, []
    if trial_seconds:
        parts = len(job.source.parts)
        large = take_sample(job, number, _SAMPLE_BYTES // parts, first, download=False)
        speed, documents = large.tokens_per_second(trial_seconds / parts, own.sample) or 0.0, large.show_documents()
    return _MeasuredPart(val, train, own.epochs, size_bytes, most_bytes, passed, rows, documents, speed)


def most_fetched_bytes(part: Source) -> int:
    """Return how much a run may have to fetch for a part; downloaded files count once, whatever the epochs."""
    if not part.costs_requests:
        return 0
    return part.size_bytes if all(file.place == HUB_ON_DISK for file in part.files) else part.read_bytes


def _take_from(
    parts: Sequence[_MeasuredPart], rule: MixRule | None, limit: int | None
) -> tuple[Forecast, list[Extent]]:
    """Return what a stream of up to `limit` tokens takes from each part, including files for validation."""
    before = sum(part.val.tokens or 0 for part in parts)
    train = [part.train.scaled(part.epochs) for part in parts]
    forecast = forecast_parts(rule, [one.tokens for one in train], limit, before=before)
    taken = [
        part.val + (one.scaled(Fraction(tokens, one.tokens)) if tokens is not None and one.tokens else one)
        for part, one, tokens in zip(parts, train, forecast.taken, strict=True)
    ]
    return forecast, taken


def forecast_parts(
    rule: MixRule | None, available: Sequence[int | None], limit: int | None = None, *, before: int = 0
) -> Forecast:
    """Forecast what a stream of up to `limit` tokens takes from parts with `available` tokens (None: unknown), after
    `before` tokens for validation. Without a rule the parts follow one another.

    In terms of the keys of stream/mix.py: a part runs out at the key tokens / weight, and up to the key k the stream
    takes k times its weight from each part that has not run out. This is exact to within one document per part.
    """
    taken: list[int | None] = []
    ends: list[int | None] = [None] * len(available)
    if rule is None:
        done: int | None = before
        for number, tokens in enumerate(available):
            if tokens is None or done is None:
                taken.append(None)
                done = None
                continue
            taken.append(tokens if limit is None else max(0, min(tokens, limit - done)))
            done += taken[-1] or 0
            ends[number] = done if taken[-1] == tokens else None
        return Forecast(tuple(available), tuple(taken), tuple(ends), cut=done is not None and None in ends)
    key, total, weight = Fraction(0), Fraction(before), sum(rule.weights)  # `weight` of the parts that have not run out
    is_over = False
    known = [(number, tokens) for number, tokens in enumerate(available) if tokens is not None]
    for end, number in sorted((Fraction(tokens, rule.weights[number]), number) for number, tokens in known):
        total_there = total + weight * (end - key)
        if limit is not None and total_there >= limit:
            break
        key, total, weight = end, total_there, weight - rule.weights[number]
        ends[number] = round(total)
        is_over = not rule.until_all or not weight
        if is_over:
            break
    is_endless = not is_over and limit is None
    if not is_over and limit is not None:
        key += max(Fraction(0), limit - total) / weight
    for number, tokens in enumerate(available):
        reached = math.floor(rule.weights[number] * key)
        if is_endless and ends[number] is None:
            taken.append(None)
        else:
            taken.append(reached if tokens is None else min(tokens, reached))
    return Forecast(tuple(available), tuple(taken), tuple(ends), cut=not is_over and not is_endless)


def split_error(plan: Plan) -> NoTrainingError | None:
    """Return the error if certainly nothing would be left to train on; otherwise the end of the stream decides."""
    job, extent = plan.job, plan.extent
    files = [
        (file, own.epochs)
        for part, own in zip(job.source.parts, job.config.part_configs, strict=True)
        for file in part.files
    ]
    limit = job.config.max_tokens or math.inf
    most = math.inf
    if extent.exact and extent.tokens:
        most = extent.tokens
    elif job.vocabulary.reference == GPT2.reference and all(  # others have normalizers
        FORMATS[file.format].is_text and not file.compression and not file.is_pipe for file, _ in files
    ):
        most = sum((file.size_bytes * _MOST_TOKENS_PER_BYTE + 1) * epochs for file, epochs in files)
    most = min(limit, most)
    if plan.done_tokens or most > job.output.split_rule.val_tokens:
        return None
    tokens = int(most) if extent.tokens is None else extent.tokens
    about = not extent.exact and tokens != limit
    return training_error(job.output, job.config, tokens, extent.documents or 1, about=about)
