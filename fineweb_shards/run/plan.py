"""`plan`: what a build will do, before anything is written.

Parquet footers tell documents and sizes; FineWeb's `token_count` column tells tokens exactly. Everything
else is estimated from a few batches spread over the files, and said to be.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from fineweb_shards.errors import BadFileError, DiskFullError
from fineweb_shards.run.job import Job
from fineweb_shards.run.separator_preview import SeparatorPreview
from fineweb_shards.sources.base import InputFile
from fineweb_shards.sources.byte_view import expansion_of
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.system.machine import free_disk_bytes
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.tokenizers.vocabularies import load_token_bytes
from fineweb_shards.types import Batch, Cursor
from fineweb_shards.units import show_bytes

_BEGINNING = Cursor(0, 0)
_SAMPLE_FILES = 64
_LEAST_SAMPLE_FILES = 8
_LOOKED_AT_BYTES = 64 * 2**20  # where files are large, fewer of them: reading one begins with a chunk
_LARGE_FILE_BYTES = 8 * 2**20
_SAMPLE_BYTES = 24 * 2**20
_QUICK_SAMPLE_BYTES = 2**18
_LONGEST_TEXT_CHARACTERS = 2**16
_SHOWN_DOCUMENTS = 3
_FOOTERS_AT_ONCE = 32  # before a build; `plan` reads all of them
REMOTE_FOOTERS = 3
_CHEAP_ROW_GROUPS = 64  # a request for each, where token_count is on the hub
# Measured: two workers on two cores share them with the parent, which packs, hashes and writes.
_PARALLEL_EFFICIENCY = 0.7
_BENEFIT_OF_THE_DOUBT = 0.9


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is. `exact` tells whether tokens were counted or estimated."""

    documents: int | None
    tokens: int | None  # EOT included
    exact: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to "what will happen if I start it?"."""

    job: Job
    extent: Extent
    separator_preview: SeparatorPreview | None  # of the text files, if there are any
    first_documents: tuple[str, ...]
    tokens_per_second: float | None
    free_bytes: int
    read_share: float = 1.0  # of the input's bytes that a run will read: --max-tokens ends it before
    done_tokens: int = 0  # in finished shards

    @property
    def output_bytes(self) -> int | None:
        """What is still to be written."""
        if self.extent.tokens is None:
            return None
        return self.job.output.shard_format.size_bytes(max(0, self.extent.tokens - self.done_tokens))

    @property
    def read_bytes(self) -> int:
        """What is still to be read, or fetched; an estimate where it is not all of the input."""
        return round(self.read_share * self.job.source.size_bytes)

    @property
    def shards(self) -> int | None:
        if self.extent.tokens is None:
            return None
        return -(-self.extent.tokens // self.job.config.shard_tokens)


def make_plan(job: Job, *, trial_seconds: float, start: Cursor = _BEGINNING, done_tokens: int = 0) -> Plan:
    """Look at the input. Without a trial (0 seconds) only a glance, as `build` does it.

    `start` is where a run will begin, behind `done_tokens`: from the hub nothing is fetched that lies before.
    """
    with contextlib.closing(job.source):
        return replace(_look(job, trial_seconds, start), done_tokens=done_tokens)


def _look(job: Job, trial_seconds: float, start: Cursor) -> Plan:
    limit = _SAMPLE_BYTES if trial_seconds else _QUICK_SAMPLE_BYTES
    sample = _take_sample(job, limit, start if job.commit else _BEGINNING)
    engine = (job.engine if trial_seconds else TiktokenEngine)(load_token_bytes(job.vocabulary))
    measured = _measure(engine, sample.texts, trial_seconds)
    extent = _measure_extent(job, sample, measured, start, every_footer=trial_seconds > 0)
    limited = _limit(extent, job.config.max_tokens)
    before = sum(file.size_bytes for file in job.source.files[: start.file])
    passed = job.source.share_before(start) or before / max(1, job.source.size_bytes)
    return Plan(
        job,
        limited,
        sample.separator_preview(),
        tuple(sample.texts[:_SHOWN_DOCUMENTS]),
        _predict_speed(job, sample, measured) if trial_seconds else None,
        free_disk_bytes(job.folder),
        max(0.0, (limited.tokens / extent.tokens if extent.tokens and limited.tokens else 1.0) - passed),
    )


def check_disk(plan: Plan, done_tokens: int) -> None:
    """Refuse to start what the disk can't hold. An estimate gets the benefit of the doubt."""
    if plan.extent.tokens is None:
        return
    needed = plan.job.output.shard_format.size_bytes(plan.extent.tokens - done_tokens)
    free = plan.free_bytes
    about, told = ("", "") if plan.extent.exact else ("about ", " (an estimate)")
    if free < (needed if plan.extent.exact else needed * _BENEFIT_OF_THE_DOUBT):
        raise DiskFullError(
            f"{plan.job.folder}: the shards need {about}{show_bytes(needed)}{told}, {show_bytes(free)} "
            f"are free: {about}{show_bytes(needed - free)} are missing.",
            "Free some space, choose another --out, or end earlier with --max-tokens.",
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some texts, and how much was read of which they are a part: all of it would not fit the parent."""

    texts: list[str]
    documents: int
    read_bytes: int  # of the files, as their sizes count
    content_bytes: int  # of the documents
    separators: set[str]
    text_documents: int  # of text files, which have separators
    text_bytes: int
    read_seconds: float

    def separator_preview(self) -> SeparatorPreview | None:
        if not self.separators:
            return None
        separators, first = tuple(sorted(self.separators)), tuple(self.texts[:_SHOWN_DOCUMENTS])
        return SeparatorPreview(separators, self.text_documents, self.text_bytes, first)


@dataclass(frozen=True, slots=True)
class _Measured:
    documents: int
    tokens: int
    text_bytes: int
    tokens_per_second: float | None


def _take_sample(job: Job, limit_bytes: int, start: Cursor) -> _Sample:
    """The beginning of a few files, spread over all of them."""
    files = [file for file in job.source.files[start.file :] if not (file.is_pipe or file.problem)]
    most = 1 if job.commit else _files_to_sample(files)
    chosen = files[:: max(1, len(files) // most)][:most]
    texts: list[str] = []
    documents = read_bytes = content_bytes = text_documents = text_bytes = 0
    separators: set[str] = set()
    begin = time.monotonic()
    for file in chosen:
        share_bytes = limit_bytes // len(chosen)
        try:
            taken = 0
            position = start.position if file.index == start.file else 0
            for batch in _first_batches(job, file, position):
                if batch.separator:
                    separators.add(batch.separator)
                job.source.prefetch(batch)
                for chunk in job.source.chunks(batch):
                    texts += _beginnings(chunk.documents, share_bytes - taken)
                    documents += len(chunk.documents)
                    chunk_bytes = sum(len(text.encode("utf-8", "replace")) for text in chunk.documents)
                    content_bytes += chunk_bytes
                    if batch.separator:
                        text_documents += (
                            len(chunk.documents) - chunk.starts_mid_document
                        )  # not the rest of one
                        text_bytes += chunk_bytes
                    read_bytes += chunk.counts.text_bytes
                    taken += chunk.counts.text_bytes
                    if taken >= share_bytes:
                        break
                if taken >= share_bytes:
                    break
        except BadFileError:
            # With --max-tokens the run may never come to it; without, it would stop there in any case.
            if not job.source.settings.skip_bad and job.config.max_tokens is None:
                raise
    seconds = time.monotonic() - begin
    return _Sample(
        texts, documents, read_bytes, content_bytes, separators, text_documents, text_bytes, seconds
    )


def _files_to_sample(files: list[InputFile]) -> int:
    average = sum(file.size_bytes for file in files) // max(1, len(files)) + 1
    wanted = _LOOKED_AT_BYTES // min(average, _LARGE_FILE_BYTES)
    return min(max(wanted, _LEAST_SAMPLE_FILES), _SAMPLE_FILES)


def _beginnings(documents: list[str], limit: int) -> Iterator[str]:
    """The first documents, up to so many characters; of a long one the beginning."""
    for text in documents:
        if limit <= 0:
            return
        yield text[: min(limit, _LONGEST_TEXT_CHARACTERS)]
        limit -= len(text)


def _first_batches(job: Job, file: InputFile, position: int) -> Iterator[Batch]:
    return islice(job.source.formats[file.format].batches(file, position, False), 64)


def _measure(engine: Engine, texts: list[str], seconds: float) -> _Measured:
    """Encode the sample, or as much of it as fits the time (a little of it where that is 0).

    The speed is that of the second half, when the engine's caches are warm.
    """
    documents = tokens = text_bytes = 0
    begin = time.monotonic()
    marks = [(begin, 0)]
    for part in _parts(texts):
        tokens += len(engine.encode(part)[0]) + len(part)
        documents += len(part)
        text_bytes += sum(len(text.encode()) for text in part)
        marks.append((time.monotonic(), tokens))
        if marks[-1][0] - begin > seconds and text_bytes > _QUICK_SAMPLE_BYTES:
            break
    middle = marks[len(marks) // 2]
    elapsed = marks[-1][0] - middle[0]
    speed = (tokens - middle[1]) / elapsed if elapsed > 0 else None
    return _Measured(documents, tokens, text_bytes, speed)


def _predict_speed(job: Job, sample: _Sample, measured: _Measured) -> float | None:
    """Tokens a second of all workers, each of which reads and encodes."""
    if not measured.tokens_per_second or not measured.tokens or not sample.read_bytes:
        return None
    bytes_per_token = measured.text_bytes / measured.tokens
    read_seconds = sample.read_seconds / sample.read_bytes * bytes_per_token
    seconds = read_seconds + 1 / measured.tokens_per_second
    return job.budget.workers * _PARALLEL_EFFICIENCY / seconds


def _parts(texts: list[str]) -> Iterator[list[str]]:
    """The sampled texts a few at a time."""
    for first in range(0, len(texts), 16):
        yield [text.encode("utf-8", "replace").decode() for text in texts[first : first + 16]]


def _measure_extent(
    job: Job, sample: _Sample, measured: _Measured, start: Cursor, *, every_footer: bool
) -> Extent:
    files = tuple(file for file in job.source.files if file.problem is None)
    if any(file.is_pipe for file in files):
        return Extent(None, None, exact=False)
    if all(isinstance(job.source.formats[file.format], ParquetFormat) for file in files):
        return _parquet_extent(job, measured, start, every_footer=every_footer)
    if not measured.text_bytes:
        return Extent(0, 0, exact=False)
    total_bytes = sum(file.size_bytes * expansion_of(file) for file in files)
    scale = total_bytes / sample.read_bytes
    sampled = sample.documents
    # The sample holds only a part of what was read, and the trial may have seen only a part of it.
    tokens = sampled + (measured.tokens - measured.documents) * (sample.content_bytes / measured.text_bytes)
    a_file_a_document = job.config.separator == "none" and all(file.format == "text" for file in files)
    documents = len(files) if a_file_a_document else round(sampled * scale)
    return Extent(documents, round(tokens * scale), exact=False)


def _parquet_extent(job: Job, measured: _Measured, start: Cursor, *, every_footer: bool) -> Extent:
    """Documents from the footers; tokens from `token_count` where all files have it."""
    files = tuple(file for file in job.source.files if file.problem is None)
    most = len(files) if every_footer else _FOOTERS_AT_ONCE
    chosen = files[:most]
    if job.commit:
        chosen = files[start.file :][: REMOTE_FOOTERS if every_footer else 1] or files[-1:]
    documents = text_bytes = counted = 0
    all_counted = True
    for file in chosen:
        parquet = job.source.formats[file.format]
        assert isinstance(parquet, ParquetFormat)
        try:
            footer = parquet.footer(file)
            cheap = not job.commit or (every_footer and len(footer.group_rows) <= _CHEAP_ROW_GROUPS)
            count = parquet.stated_tokens(file) if cheap else None
        except BadFileError:
            if not job.source.settings.skip_bad:
                raise
            continue
        documents += sum(footer.group_rows)
        text_bytes += sum(footer.group_bytes)
        all_counted = all_counted and count is not None
        counted += count or 0
    scale = sum(file.size_bytes for file in files) / max(1, sum(file.size_bytes for file in chosen))
    if all_counted:
        return Extent(round(documents * scale), round((counted + documents) * scale), exact=chosen == files)
    per_byte = (measured.tokens - measured.documents) / max(1, measured.text_bytes)
    tokens = documents + text_bytes * per_byte
    return Extent(round(documents * scale), round(tokens * scale), exact=False)


def _limit(extent: Extent, max_tokens: int | None) -> Extent:
    if max_tokens is None or extent.tokens is None or extent.tokens <= max_tokens:
        return extent
    share = max_tokens / extent.tokens
    documents = None if extent.documents is None else round(extent.documents * share)
    return Extent(documents, max_tokens, extent.exact)
