"""`plan`: predict what a build will do, before anything is written.

Parquet footers give the number of documents and the sizes, FineWeb's `token_count` column the exact number of tokens,
also of those documents that --where and the limits keep. Everything else is estimated from a few batches spread over
the files, and marked as an estimate.

Of a mix the weights decide how much is read of each part, and which one runs out first (`forecast_parts`). The tokens
are exact to one document of each part: the lengths of single documents are not known.

The plan's text here is the short one, for the beginning of a build; `plan` shows more (commands/plan.py).
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fineweb_shards.errors import BadFileError, NoTrainingError
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.formats.registry import FORMATS, TEXT
from fineweb_shards.run.disk_space import DiskNeed, Rest, check_needs, find_needs
from fineweb_shards.run.input_sample import (
    QUICK_SAMPLE_BYTES,
    InputSample,
    MeasuredSample,
    take_sample,
)
from fineweb_shards.run.job import Job
from fineweb_shards.run.output_text import expect_files, reader_warnings, stray_warnings, training_error
from fineweb_shards.run.shuffle import count_piles
from fineweb_shards.sources.source import Source
from fineweb_shards.storage.place import HUB_ON_DISK, STANDARD_INPUT, InputFile
from fineweb_shards.storage.streams import expansion_of
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.stream.mix import MixRule
from fineweb_shards.stream.shuffle import PileState
from fineweb_shards.system.machine import busy_cores, usable_cores
from fineweb_shards.system.terminal import printable
from fineweb_shards.types import Cursor, Cursors
from fineweb_shards.units import show_bytes, show_count, show_number_of
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.watching.run_files import SECOND_PASS_COST

_BEGINNING = Cursor(0, 0)
_SAMPLE_BYTES = 24 * 2**20
_FOOTERS_AT_ONCE = 32  # before a build; `plan` reads all of them
REMOTE_FOOTERS = 3
_CHEAP_ROW_GROUPS = 64  # reading token_count on the hub takes a request for each row group
# Measured with two workers on two cores, which they share with the parent: it packs, hashes and writes.
_PARALLEL_EFFICIENCY = 0.7
_SHOWN_FILES = 3
_BUSY_SHARE = 0.5  # of the cores, from which on other programs slow a build down
_MOST_TOKENS_PER_BYTE = 3  # an invalid byte becomes U+FFFD, whose three bytes may be a token each


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of the stream, or of a part of the input. `exact`: the tokens were counted, not estimated."""

    documents: int | None
    tokens: int | None  # EOT included
    exact: bool
    batches: int = 0  # that workers will be given; an estimate unless all footers were read
    documents_exact: bool = False

    def __add__(self, other: Extent) -> Extent:
        def add(one: int | None, two: int | None) -> int | None:
            return None if one is None or two is None else one + two

        return Extent(
            add(self.documents, other.documents),
            add(self.tokens, other.tokens),
            self.exact and other.exact,
            self.batches + other.batches,
            self.documents_exact and other.documents_exact,
        )

    def scaled(self, factor: Fraction | int) -> Extent:
        """Return the extent of so many times the documents, or of a share of them, rounded."""
        documents = None if self.documents is None else round(self.documents * factor)
        tokens = None if self.tokens is None else round(self.tokens * factor)
        return replace(self, documents=documents, tokens=tokens, batches=math.ceil(self.batches * factor))

    def sampled(self, share: float) -> Extent:
        """Return the extent of a random sample: of the same batches, and only an estimate."""
        if share == 1:
            return self
        return replace(self.scaled(Fraction(share)), exact=False, documents_exact=False, batches=self.batches)


@dataclass(frozen=True, slots=True)
class Forecast:
    """How many tokens a stream takes of each part of the input, and where the parts run out. Files for validation,
    which a mix reads first, are not counted. None: not known."""

    available: tuple[int | None, ...]  # tokens that a part has, in all its epochs
    taken: tuple[int | None, ...]  # up to the end of the stream
    # How many tokens the stream has, those for validation included, when it is a part's turn that has run out; None
    # also if that does not happen.
    ends: tuple[int | None, ...]
    cut: bool  # the stream ends at the limit

    @property
    def first_end(self) -> int | None:
        """The part that runs out first, of several the first one."""
        ended = [(end, number) for number, end in enumerate(self.ends) if end is not None]
        return min(ended)[1] if ended else None

    def shares(self) -> tuple[float | None, ...]:
        """Return the share of each part in the tokens of all."""
        total = sum(filter(None, self.taken))
        return tuple(None if one is None or None in self.taken else one / max(1, total) for one in self.taken)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a build will do and need."""

    job: Job
    extent: Extent
    part_extents: tuple[Extent, ...]  # of what each part has, read once
    forecast: Forecast
    separator_rows: list[tuple[str, str]]  # to show how text files, if there are any, are split
    first_documents: list[str]
    tokens_per_second: float | None  # of all workers, by a trial on this machine
    read_bytes: int  # of the input, by all runs together: --max-tokens may end early, epochs count each time
    bytes_to_fetch: int  # still, in whole batches; an estimate unless it is all of the input
    done_tokens: int = 0  # in finished shards
    fetched_bytes: int = 0  # over the network, for this plan
    busy_cores: float = 0.0  # with other programs, before the build
    piles: PileState | None = None  # of a shuffle: how far its first pass is

    @property
    def tokens_left(self) -> int | None:
        """The number of tokens that are still to be made."""
        return None if self.extent.tokens is None else max(0, self.extent.tokens - self.done_tokens)

    @property
    def output_bytes(self) -> int | None:
        """The size of the shards that are still to be written."""
        left = self.tokens_left
        return None if left is None else self.job.output.shard_format.size_bytes(left)

    @property
    def seconds(self) -> float | None:
        """How long the rest takes, with both passes of a shuffle; None if that is not known."""
        left, speed = self.tokens_left, self.tokens_per_second
        if left is None or not speed:
            return None
        if self.piles is None:
            return left / speed
        first_left = 0 if self.piles.ended else max(0, left + self.done_tokens - sum(self.piles.tokens))
        return (first_left + SECOND_PASS_COST * left) / speed

    @property
    def disk_needs(self) -> list[DiskNeed]:
        """What the rest takes on this machine's disks; nothing if the length of the stream is not known."""
        extent, job = self.extent, self.job
        if extent.tokens is None:
            return []
        rest = Rest(extent.tokens, extent.documents or 0, self.done_tokens, job.budget.workers, self.piles)
        return find_needs(job.output, job.config.pile_folder, rest)

    @property
    def shards(self) -> int | None:
        if self.extent.tokens is None:
            return None
        return -(-self.extent.tokens // self.job.output.shard_tokens)


def make_plan(
    job: Job, *, trial_seconds: float, start: Cursors = (), done_tokens: int = 0, piles: PileState | None = None
) -> Plan:
    """Sample the input and make a plan. With a trial of more than 0 seconds, as for `plan`, it also tells the speed and
    looks at every footer; what is estimated is the same as without, as for `build`.

    `start` is where a run will begin, after `done_tokens` in shards: from the hub nothing before it is fetched. `piles`
    are those of a shuffle, if its first pass has begun.
    """
    config = job.config
    with contextlib.closing(job.source.reopened()) as source:
        opened, starts = replace(job, source=source), start or source.starts
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
        piles = PileState.beginning(count_piles(job.output, extent.tokens), starts)
    if piles is not None and piles.ended:
        extent = replace(extent, tokens=sum(piles.tokens), documents=piles.documents, exact=True, documents_exact=True)
    read_bytes = to_fetch = 0
    tokens, seconds = 0, 0.0  # of those parts of which something is taken, by one worker
    for part, one in zip(parts, taken, strict=True):
        share, batches = part.share_of(one), part.whole.batches
        read_bytes += round(share * part.size_bytes)
        left = max(0.0, share - part.passed)
        left_bytes = round((math.ceil(left * batches) / batches if batches else left) * part.size_bytes)
        to_fetch += min(left_bytes, part.most_fetched_bytes)
        if one.tokens != 0:
            is_known = one.tokens is not None and part.tokens_per_second
            seconds += (one.tokens or 0) / part.tokens_per_second if is_known else math.inf
            tokens += one.tokens or 0
    alone = tokens / seconds if seconds else 0.0
    return Plan(
        job,
        extent,
        tuple(part.val + part.train for part in parts),
        forecast,
        [row for part in parts for row in part.separator_rows],
        [text for part in parts for text in part.first_documents],
        alone * job.budget.workers * _PARALLEL_EFFICIENCY or None,
        read_bytes,
        to_fetch,
        done_tokens,
        busy_cores=busy_cores(),
        piles=piles,
    )


@dataclass(frozen=True, slots=True)
class _MeasuredPart:
    """What is known of a part of the input."""

    val: Extent  # files for validation, where they are counted by themselves
    train: Extent  # the others, once
    epochs: int
    size_bytes: int  # of its files, each as often as it is read
    most_fetched_bytes: int
    passed: float  # the share of them that is before the cursor
    separator_rows: list[tuple[str, str]]
    first_documents: list[str]
    tokens_per_second: float  # of one worker; 0: unknown

    @property
    def whole(self) -> Extent:
        return self.val + self.train.scaled(self.epochs)

    def share_of(self, extent: Extent) -> float:
        """Return how much of it that is; all, if that is not known."""
        tokens = self.whole.tokens
        return extent.tokens / tokens if tokens and extent.tokens is not None else 1.0


def _measure_part(job: Job, number: int, start: Cursor, trial_seconds: float) -> _MeasuredPart:
    """Look at a part of the input, from a cursor on if every look costs requests."""
    part, own = job.source.parts[number], job.config.part_configs[number]
    first = start if part.costs_requests else _BEGINNING
    # A small sample is for the estimates: those of `plan` and of `build` must not differ. A large one, of which as much
    # is encoded as there is time for, is for the speed.
    sample = take_sample(job, number, QUICK_SAMPLE_BYTES, first, download=not trial_seconds)
    if not sample.read_bytes and first != _BEGINNING:  # a part that is done would seem to be empty
        first = _BEGINNING
        sample = take_sample(job, number, QUICK_SAMPLE_BYTES, first, download=not trial_seconds)
    # Files for validation are measured by themselves where they count in another way than the others.
    val_files = part.val_files if job.config.mix or own.epochs > 1 else 0
    val, train = (
        _measure_extent(sample, files, first, every_footer=trial_seconds > 0).sampled(own.sample)
        for files in (part.files[:val_files], part.files[val_files:])
    )
    bytes_before = sum(part.file(number).size_bytes for number in range(start.file))
    speed, documents = 0.0, []
    if trial_seconds:
        parts = len(job.source.parts)
        large = take_sample(job, number, _SAMPLE_BYTES // parts, first, download=False)
        speed, documents = large.tokens_per_second(trial_seconds / parts, own.sample) or 0.0, large.show_documents()
    return _MeasuredPart(
        val,
        train,
        own.epochs,
        part.read_bytes,
        most_fetched_bytes(part),
        part.share_before(start) or bytes_before / max(1, part.read_bytes),
        sample.separator_rows(),
        documents,
        speed,
    )


def most_fetched_bytes(part: Source) -> int:
    """Return how much a part can make a run fetch: nothing if its files are on this machine, and what is downloaded
    once, whatever its epochs."""
    if not part.costs_requests:
        return 0
    return part.size_bytes if all(file.place == HUB_ON_DISK for file in part.files) else part.read_bytes


def _take_from(
    parts: Sequence[_MeasuredPart], rule: MixRule | None, limit: int | None
) -> tuple[Forecast, list[Extent]]:
    """Return what a stream of up to `limit` tokens takes of each part, with the files for validation."""
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
    """Forecast what a stream of up to `limit` tokens takes of its parts, of which this many tokens are `available`
    (None: unknown); `before` tokens, for validation, come first. Without a rule it is one part after the other.

    With the keys of stream/mix.py: a part runs out at the key tokens / weight, and up to the key k the stream takes k
    times the weight of each part that has not run out. That is right to one document of each part.
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
    key, total, weight = Fraction(0), Fraction(before), sum(rule.weights)  # the weight of those that have not run out
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


def check_disk(plan: Plan) -> None:
    """Raise DiskFullError if a disk can't hold what is to be written."""
    check_needs(plan.disk_needs, plan.job.output, exact=plan.extent.exact)


def resume_text(manifest: Manifest) -> str:
    """Say after what a build resumes, and in which pass of a shuffle; empty if it begins."""
    finished = f"{show_number_of(manifest.shard_count, 'shard')}, {show_count(manifest.tokens)} tokens"
    if not manifest.is_shuffled:
        return f"after {finished}" if manifest.shards else ""
    if manifest.pass_number == 2:
        return f"in the second pass, after {finished}"
    kept = f"; {finished} are finished" if manifest.shards else ""
    piled = manifest.piled_tokens
    return f"in the first pass, after {show_count(piled)} tokens{kept}" if piled or kept else ""


def split_error(plan: Plan) -> NoTrainingError | None:
    """Return the error if it is certain that nothing would be left to train on. Where only an estimate says so, the end
    of the stream will tell."""
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


def _measure_extent(sample: InputSample, files: tuple[InputFile, ...], start: Cursor, *, every_footer: bool) -> Extent:
    """Count or estimate the documents and tokens of files of a part of the input."""
    job, part = sample.job, sample.part
    files = tuple(file for file in files if file.problem is None)
    if any(file.is_pipe for file in files) or (every_footer and any(file.is_missing for file in files)):
        return Extent(None, None, exact=False)  # `plan` downloads nothing
    if all(isinstance(part.reader_of(file), ParquetFormat) for file in files):
        seen = _parquet_extent(sample, files, start, every_footer=every_footer)
        is_counted = len(files) <= REMOTE_FOOTERS or not part.costs_requests
        if part.settings.where is not None or sample.limits:
            is_counted = seen.exact
        # A row of ids may hold several documents.
        seen = replace(seen, documents_exact=is_counted and part.settings.tokens_column is None)
        if seen.exact or not every_footer:
            return seen
        # What is not known exactly is estimated as `build` does it; the footers have told the documents.
        return replace(seen, tokens=_parquet_extent(sample, files, start, every_footer=False).tokens)
    measured = sample.measured
    if not measured.text_bytes:
        return Extent(0, 0, exact=False)
    # After decompression; files that are not on the disk yet, because they come from the hub, as if they were like
    # those that are, and those in a bucket like the first few.
    chosen = [file for file in files if not file.is_missing]
    chosen = [file for file in chosen if not file.is_remote] or chosen[:REMOTE_FOOTERS]
    packed = unpacked = 0.0
    for file in chosen:
        expansion = expansion_of(file, part.reader_of(file).place)
        packed, unpacked = packed + file.size_bytes, unpacked + file.size_bytes * expansion
    total_bytes = unpacked / max(1, packed) * sum(file.size_bytes for file in files)
    scale = total_bytes / sample.read_bytes
    texts = [file for file in files if file.format == TEXT and file.size_bytes]
    # A document may be longer than the sample of its file, which then has none that ends.
    documents = max(len(texts), round(sample.documents * scale))
    if part.settings.separator == "none" and len(texts) == len(files):
        documents = len(files)
    # The sample keeps only a part of what was read, and the trial may have encoded only a part of that.
    sampled_tokens = (measured.tokens - measured.documents) * (sample.content_bytes / measured.text_bytes)
    tokens = round(documents + sampled_tokens * scale)
    batches = len(files) + round(total_bytes / job.config.batch_bytes)
    return _within_limits(Extent(documents, tokens, exact=False, batches=batches), measured)


def _parquet_extent(sample: InputSample, files: tuple[InputFile, ...], start: Cursor, *, every_footer: bool) -> Extent:
    """Count documents by the footers, and tokens by `token_count`; estimate tokens if a file lacks it."""
    part, limits = sample.part, sample.limits
    most = len(files) if every_footer else _FOOTERS_AT_ONCE
    chosen = files[:most]
    if part.costs_requests:
        ahead = tuple(file for file in files if file.index >= start.file)
        chosen = ahead[: REMOTE_FOOTERS if every_footer else 1] or files[-1:]
    rows = documents = text_bytes = counted = batches = 0
    all_counted = True
    for file in chosen:
        parquet = part.reader_of(file)
        assert isinstance(parquet, ParquetFormat)
        try:
            footer = parquet.footer(file)
            few = len(footer.group_rows) <= _CHEAP_ROW_GROUPS and parquet.row_filter is None
            cheap = not part.costs_requests or (every_footer and few)
            stated = parquet.stated_extent(file, limits.least_tokens, limits.most_tokens) if cheap else None
            batches += sum(1 for _ in parquet.batches(file, 0, False))
        except BadFileError:
            if not part.settings.skip_bad:
                raise
            continue
        rows += sum(footer.group_rows)
        text_bytes += sum(footer.group_bytes)
        if stated is None:
            all_counted = False
        else:
            documents += stated.documents
            counted += stated.tokens
    scale = sum(file.size_bytes for file in files) / max(1, sum(file.size_bytes for file in chosen))
    batches = round(batches * scale)
    if all_counted:
        tokens = round((counted + documents) * scale)
        return Extent(round(documents * scale), tokens, chosen == files, batches)
    measured = sample.measured
    per_byte = (measured.tokens - measured.documents) / max(1, measured.text_bytes)
    if part.settings.where is not None:  # what is kept may be longer or shorter than the others
        rows = round(rows * sample.documents / max(1, sample.seen_documents))
        text_bytes = round(rows * sample.content_bytes / max(1, sample.documents))
    tokens = round((rows + text_bytes * per_byte) * scale)
    return _within_limits(Extent(round(rows * scale), tokens, False, batches), measured)


def _within_limits(extent: Extent, measured: MeasuredSample) -> Extent:
    """Reduce an estimate by what --min-tokens and --max-document-tokens leave out of the sample."""
    if extent.documents is None or extent.tokens is None or not measured.documents:
        return extent
    documents = extent.documents * measured.kept_documents / measured.documents
    tokens = extent.tokens * measured.kept_tokens / max(1, measured.tokens)
    return replace(extent, documents=round(documents), tokens=round(tokens), exact=False)


def short_lines(plan: Plan) -> list[str]:
    """Return the plan in a few lines, with warnings, for the beginning of a build. They also show how a text is split
    into documents, because later nothing shows it."""
    rows = [*short_rows(plan), *plan.separator_rows]
    rows += [("WARNING", warning) for warning in plan_warnings(plan)]
    return [f"{name:<10} {text}" for name, text in rows]


def plan_warnings(plan: Plan) -> list[str]:
    """Return warnings about problems that the loader of the files will have, and about a mix that ends at once, as far
    as the plan can tell."""
    job, extent = plan.job, plan.extent
    warnings = stray_warnings(job.output.store, job.layout)
    if job.config.mix and not job.config.mix.until_all and 0 in plan.forecast.available:
        empty = plan.forecast.available.index(0)
        about = "" if plan.part_extents[empty].exact else "By the estimate: "
        warnings.append(
            f"{about}part {empty + 1} has no document, and the mix ends at its first turn. Leave it out, or choose "
            "--mix-until all-exhausted."
        )
    if extent.tokens and extent.documents and not split_error(plan):
        exact = extent.exact and job.output.split_rule.counts_tokens
        val_bytes = sum(file.size_bytes for file in job.source.files if file.for_validation)
        share = val_bytes / max(1, plan.read_bytes)
        files = expect_files(job.output, extent.tokens, extent.documents, exact=exact, val_files_share=share)
        about = "" if exact else "By the estimate: "
        warnings += [f"{about}{warning}" for warning in reader_warnings(job.output, files, made=False)]
    return warnings


def short_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return name and text of each line."""
    return [*_input_rows(plan), *_tokenizer_rows(plan.job), *_output_rows(plan), *_machine_rows(plan)]


def _input_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    job, source = plan.job, plan.job.source
    fetch = ""
    if job.is_remote:
        whole = plan.bytes_to_fetch == source.size_bytes
        of_it = " of it" if plan.bytes_to_fetch < source.size_bytes else ""
        fetch = " to fetch" if whole else f", about {show_bytes(plan.bytes_to_fetch)}{of_it} to fetch"
        fetch += f", {show_bytes(plan.fetched_bytes)} fetched for this plan" if plan.fetched_bytes else ""
    several = len(source.parts) > 1
    if several:
        total = f"{show_number_of(len(source.files), 'file')}, {show_bytes(source.size_bytes)}"
        how = "mixed by tokens" if job.config.mix else "one after the other"
        yield "input", f"{len(source.parts)} parts, {how}: {total}{fetch}"
    for number, (part, config) in enumerate(zip(source.parts, job.config.part_configs, strict=True), 1):
        files = [file for file in part.files if not file.is_pipe]
        named = [file for file in part.files if file.is_pipe and file.path != STANDARD_INPUT]
        counts = [f"{show_number_of(len(files), 'file')}, {show_bytes(part.size_bytes)}"] if files else []
        counts += [show_number_of(len(named), "pipe")] if named else []  # whose size is unknown
        counts += ["standard input"] if len(files) + len(named) < len(part.files) else []
        hub = part.settings.hub
        where = f"{' '.join(filter(None, (hub.dataset, hub.name)))} at {hub.commit[:10]}: " if hub else ""
        kinds = ", ".join(sorted({file.format for file in part.files}))
        shown = f"{where}{', and '.join(counts) or 'no file'}{'' if several else fetch} ({kinds})"
        if several:
            extent = plan.part_extents[number - 1]
            shown += f", {show_estimate(extent.tokens, exact=extent.exact)} tokens" if extent.tokens else ""
        yield f"part {number}" if several else "input", shown
        if job.config.mix:
            share = show_share(float(job.config.mix.shares()[number - 1]))
            epochs = f", {config.epochs:,} epochs" if config.epochs > 1 else ""
            yield "weight", f"{config.weight:,} ({share}){epochs}"
        elif config.epochs > 1:
            yield "epochs", f"{config.epochs:,}, one after the other"
        if config.where:
            yield "kept", f"documents with {config.where}"
        if config.sample < 1:
            yield "kept", f"{show_share(config.sample)} of the documents at random (seed {config.sample_seed})"
        limits = [f"at least {config.min_tokens:,}"] if config.min_tokens else []
        most = config.max_document_tokens
        limits += [f"at most {most:,}"] if most is not None else []
        if limits:
            yield "kept", f"documents of {' and '.join(limits)} tokens"
    if job.config.mix:
        yield "mix", _mix_end(plan)
    if plan.piles is not None:
        what = "all documents" if job.config.max_tokens is None else "the beginning of the stream, up to --max-tokens"
        passes = f"in two passes: into {show_number_of(plan.piles.count, 'pile')}, then into shards"
        yield "shuffle", f"{what}, by seed {job.config.shuffle}, {passes}"
    for note in job.notes:
        yield "note", note


def _mix_end(plan: Plan) -> str:
    """Say when a mix ends, and which part runs out first."""
    forecast, first = plan.forecast, plan.forecast.first_end
    unknown = [f"part {number}" for number, tokens in enumerate(forecast.available, 1) if tokens is None]
    doubt = f", unless {' or '.join(unknown)}, of unknown size, does so before" if unknown else ""
    rule = plan.job.config.mix
    assert rule is not None
    after = "" if first is None else f"after about {show_count(forecast.ends[first] or 0)} tokens"
    if first is None:
        if forecast.cut:
            return f"until --max-tokens, before any part runs out{doubt}"
        return "until all parts run out" if rule.until_all else "until a part runs out"
    if not rule.until_all:
        return f"until part {first + 1} runs out, {after}{doubt}"
    if forecast.cut:
        return f"until --max-tokens; part {first + 1} runs out before, {after}{doubt}"
    return f"until all parts run out; part {first + 1} is first, {after}{doubt}"


def mix_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what the stream takes of each part of a mix."""
    forecast = plan.forecast
    columns = zip(forecast.available, forecast.taken, forecast.shares(), forecast.ends, strict=True)
    for number, (available, taken, share, end) in enumerate(columns, 1):
        if taken is None:
            yield "", f"part {number}: tokens unknown before the end"
            continue
        of = f"all {show_count(taken)}" if taken == available else show_count(taken)
        of += f" of {show_count(available)}" if available is not None and taken != available else ""
        shown = f"part {number}: {of} tokens" + ("" if share is None else f", {show_share(share)}")
        yield "", shown + ("" if end is None else f", runs out after {show_count(end)}")


def show_share(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.3g} %"


def _tokenizer_rows(job: Job) -> Iterator[tuple[str, str]]:
    """Say what encodes, if it is not GPT-2: nobody should find out in the morning that EOT is another one."""
    vocabulary, engine = job.vocabulary, job.engine
    if vocabulary == GPT2:
        return
    names = {number: name for name, number in job.definition.special_tokens.items()}
    name = printable(names.get(vocabulary.eot, ""))
    eot = f"{name} ({vocabulary.eot})" if name else str(vocabulary.eot)
    dtype = job.output.shard_format.dtype.name
    yield "tokenizer", f"{printable(vocabulary.name)}: {vocabulary.size:,} ids ({dtype}), EOT {eot}"
    if engine and engine.name == vocabulary.reference and job.trial and job.trial.refusals:
        why = printable("; ".join(job.trial.refusals))
        yield "engine", f"{engine.name} itself, which is slow: {why}"
    elif engine and vocabulary.reference == "sentencepiece":
        yield "engine", "sentencepiece itself, which is slow: nothing faster gives the same tokens"


def _output_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    job, extent, location = plan.job, plan.extent, plan.job.output.store.location
    if extent.tokens is None:
        yield "tokens", show_estimate(None, exact=False)
    else:
        how = "exact, from token_count" if extent.exact else "an estimate"
        if plan.piles is not None and plan.piles.ended:
            how = "exact, counted in the first pass"
        if not extent.exact and all(one.exact for one in plan.part_extents):
            how = "exact to a document of each part"
        yield "tokens", f"{show_estimate(extent.tokens, exact=extent.exact)} ({how})"
        if job.layout.one_file:
            yield "files", f"one for each split ({job.layout.name}), in {location}"
        else:
            last = extent.tokens - (max(1, plan.shards or 1) - 1) * job.output.shard_tokens
            about, rest = "", f", the last with {last:,}"
            # Unless validation is a number of tokens, its last shard is not full, either.
            if not extent.exact or not job.output.split_rule.counts_tokens:
                about, rest = "about ", ""
            yield (
                "shards",
                f"{about}{plan.shards:,} of {job.output.shard_tokens:,} tokens{rest}, in {location}",
            )
        yield from _disk_rows(plan)
    names = [file.name for file in job.source.files if file.for_validation]
    shown = ", ".join(names[:_SHOWN_FILES]) + (", …" if len(names) > _SHOWN_FILES else "")
    rule = job.output.split_rule
    sampled = ": a random sample" if plan.piles and (rule.val_tokens or rule.val_documents) else ""
    yield "validation", rule.describe() + sampled + (f", which come first: {shown}" if names else "")


def _disk_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Say how much is needed: of shards that go to a bucket, there; with a shuffle, at the most on each disk here."""
    about = "" if plan.extent.exact else "about "
    first, *others = plan.disk_needs
    needed = first.size_bytes if plan.piles else plan.output_bytes or 0
    piles = f"{show_bytes(first.pile_bytes)} of it for the piles of the shuffle, " if first.pile_bytes else ""
    yield "disk", f"{about}{show_bytes(needed)} needed, {piles}{show_bytes(first.free_bytes)} free"
    for need in others:
        size = f"{about}{show_bytes(need.size_bytes)} needed for the piles of the shuffle"
        yield "", f"{size}, in {need.folder}, {show_bytes(need.free_bytes)} free"


def _machine_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    config, budget = plan.job.config, plan.job.budget
    memory, engine = show_bytes(budget.memory_bytes), plan.job.engine
    encoder = f"{engine.name} {engine.installed_version()}" if engine else "no tokenizer"
    yield "machine", f"{show_number_of(budget.workers, 'worker')}, {encoder}, memory budget {memory}"
    # Why a build will be slow on a machine with other work: it would look as if something were wrong.
    cores, busy = usable_cores(), plan.busy_cores
    if config.priority == "background" and config.executor == "local" and busy >= cores * _BUSY_SHARE:
        load = f"other programs want {busy:.1f} of {show_number_of(cores, 'core')}"
        yield "priority", f"lowest: {load} (or --priority normal)"
    wanted = budget.wanted_workers
    if wanted is not None and wanted > budget.workers:
        fewer = f"{budget.workers} instead of {wanted:,}: {memory} of memory hold no more"
        yield "workers", f"{fewer} (--max-memory)"


def show_estimate(count: int | None, *, exact: bool) -> str:
    """Return a count in words that tell whether it is exact."""
    if count is None:
        return "unknown before the end"
    return f"{count:,}" if exact else f"about {show_count(count)}"
