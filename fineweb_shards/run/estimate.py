"""Measure how many documents and tokens the input has, and how fast it can be encoded, before it is read.

Parquet footers give the number of documents and the sizes; FineWeb's `token_count` column gives the exact number of
tokens, even with --where and length limits. Everything else is estimated from a sample: a few batches spread over the
files, of which only the beginnings are kept, because the parent's share of memory is small.

For text the sample also shows how it will be split into documents. A wrong separator turns a few documents into
millions whose tokens are all valid: only a person who sees some of them can notice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.base import utf8_bytes
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.formats.registry import TEXT
from fineweb_shards.formats.text_samples import given_separators
from fineweb_shards.run.job import Job
from fineweb_shards.sources.source import Source
from fineweb_shards.storage.place import InputFile
from fineweb_shards.storage.streams import expansion_of
from fineweb_shards.stream.length_limits import LengthLimits
from fineweb_shards.system.terminal import safe_text
from fineweb_shards.texts import Texts, TokenLists
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.references import decode
from fineweb_shards.types import Cursor, TextChunk, Tokens
from fineweb_shards.units import show_number_of

_SAMPLE_FILES = 64
_TEXTS_AT_ONCE = 16
_LEAST_SAMPLE_FILES = 8
_LOOKED_AT_BYTES = 64 * 2**20  # limits how many large files are sampled: at least a chunk of each is read
_LARGE_FILE_BYTES = 8 * 2**20
_LONGEST_TEXT_CHARACTERS = 65_536
_SHOWN_DOCUMENTS = 3
_SHOWN_TOKENS = 100
_MOST_BATCHES = 64  # per file, because batches may have no documents
QUICK_SAMPLE_BYTES = 2**18
_LOOKED_AT_TIMES = 16  # limits what is read if little of it meets --where
# Documents shorter than a sentence on average are rarely intended.
SENTENCE_BYTES = 100
_NAMES = {"blank": "a blank line", "line": "a line end", "none": "none: one document per file"}
_SHOWN_CHARACTERS = 66  # in a terminal of 80 columns


def document_rows(documents: Iterable[str]) -> list[tuple[str, str]]:
    return [(f"document {number}", safe_text(text, _SHOWN_CHARACTERS)) for number, text in enumerate(documents, 1)]


@dataclass(frozen=True, slots=True)
class MeasuredSample:
    documents: int
    tokens: int
    text_bytes: int
    tokens_per_second: float  # infinite if nothing has to be encoded, 0 if unknown
    kept_documents: int  # within --min-tokens and --max-document-tokens
    kept_tokens: int


@dataclass
class InputSample:
    """Some texts of a part of the input (with --tokens-column: tokens), and totals over everything that was read."""

    job: Job
    part: Source
    limits: LengthLimits
    texts: list[str] = field(default_factory=list)  # documents, or pieces of long ones
    first_documents: list[str] = field(default_factory=list)  # the beginnings of the first ones
    token_counts: list[int] = field(default_factory=list)  # per document, if the input is tokens
    first_tokens: list[Tokens] = field(default_factory=list)  # the beginnings of the first ones
    documents: int = 0
    seen_documents: int = 0  # including those that --where leaves out
    read_bytes: int = 0  # as stored in the files
    content_bytes: int = 0  # of the documents: text, or tokens
    separators: set[str] = field(default_factory=set)
    separated_documents: int = 0  # in text files, which have separators
    separated_bytes: int = 0
    read_seconds: float = 0.0

    def separator_rows(self) -> list[tuple[str, str]]:
        """Return rows that show how text files, sampled or not, are split, with a warning if documents are short."""
        texts = [file for file in self.part.files if file.format == TEXT]
        separators = sorted(self.separators.union(given_separators(texts, self.part.settings.separator)))
        if not separators:
            return []
        average = self.separated_bytes / max(1, self.separated_documents)
        shown = ", ".join(_NAMES.get(name, repr(name)) for name in separators)
        if self.separated_documents:
            per_megabyte = max(1, round(1e6 / max(1.0, average)))
            shown += f" (about {show_number_of(per_megabyte, 'document')} per MB of text)"
        rows = [("separator", shown), *document_rows(self.first_documents)]
        if self.separated_documents > 1 and average < SENTENCE_BYTES and separators != ["none"]:
            others = ", ".join(f"--separator {name}" for name in ("blank", "none", "TEXT") if name not in separators)
            rows.append(("WARNING", f"documents have {average:.0f} bytes on average, less than a sentence."))
            rows.append(("", f"If unintended: {others}"))
        return rows

    def read_file(self, file: InputFile, position: int, limit_bytes: int) -> None:
        """Add documents of a file, from `position` on, up to about `limit_bytes` of text."""
        source = self.part
        enough = self.content_bytes + limit_bytes
        most_read = self.read_bytes + _LOOKED_AT_TIMES * limit_bytes
        batches = source.reader_of(file).sample_batches(file, position, limit_bytes)
        for batch in islice(batches, _MOST_BATCHES):
            source.prefetch(batch)
            self.read_bytes += batch.size_bytes
            for chunk in source.chunks(batch):
                self._add(chunk, batch.separator, enough - self.content_bytes)
                if self.content_bytes >= enough:
                    return
            if self.read_bytes >= most_read:  # --where leaves nearly nothing
                return

    def _add(self, chunk: TextChunk, separator: str, limit_bytes: int) -> None:
        if isinstance(chunk.documents, TokenLists):
            lengths = chunk.documents.lengths.tolist()
            self.token_counts += lengths
            self.content_bytes += chunk.documents.size_bytes
            end = 0
            for length in lengths[: _SHOWN_DOCUMENTS - len(self.first_tokens)]:
                self.first_tokens.append(chunk.documents.ids[end : end + min(length, _SHOWN_TOKENS)])
                end += length
        else:
            texts: list[str] = []
            for text in chunk.documents:
                if limit_bytes <= 0:
                    break
                texts.append(text[: min(limit_bytes, _LONGEST_TEXT_CHARACTERS)])
                limit_bytes -= len(text)
            missing = _SHOWN_DOCUMENTS - len(self.first_documents)
            self.first_documents += texts[chunk.starts_mid_document :][:missing]
            self.texts += texts
            self.content_bytes += chunk.counts.text_bytes
        # Those that end here, because a long document spans several chunks.
        documents = len(chunk.documents) - chunk.ends_mid_document
        self.documents += documents
        self.seen_documents += documents + chunk.counts.filtered_documents + chunk.counts.unknown_documents
        if separator:
            self.separators.add(separator)
            self.separated_documents += documents
            self.separated_bytes += chunk.counts.text_bytes

    @cached_property
    def measured(self) -> MeasuredSample:
        """The result of encoding a little of the sample; lazy, because files may state their tokens."""
        return self._measure(0)

    def tokens_per_second(self, seconds: float, share: float) -> float | None:
        """Return the speed at which one worker reads, and encodes a share; None if the sample is too small."""
        measured = self._measure(seconds)
        if not measured.tokens_per_second or not measured.tokens or not self.content_bytes:
            return None
        bytes_per_token = measured.text_bytes / measured.tokens
        read_seconds = self.read_seconds / (self.content_bytes * share) * bytes_per_token
        token_seconds = read_seconds + 1 / measured.tokens_per_second
        return 1 / token_seconds if token_seconds else None

    def show_documents(self) -> list[str]:
        """Return the beginnings of some documents; decoded tokens show whether the vocabulary is right."""
        decoded = (decode(tokens, self.job.vocabulary) for tokens in self.first_tokens)
        return self.first_documents or [data.decode("utf-8", "replace") for data in decoded]

    def _measure(self, seconds: float) -> MeasuredSample:
        """Encode as much of the sample as `seconds` allow (a little if 0); if it is tokens, count them."""
        job = self.job
        lengths, text_bytes, speed = self.token_counts, self.content_bytes, math.inf
        if job.engine is not None and self.part.settings.tokens_column is None:
            lengths, text_bytes, speed = _encode(job.engine(job.vocabulary), self.texts, seconds)
        kept = [length for length in lengths if self.limits.judge(length, ended=True) == "kept"]
        tokens, kept_tokens = sum(lengths) + len(lengths), sum(kept) + len(kept)
        return MeasuredSample(len(lengths), tokens, text_bytes, speed, len(kept), kept_tokens)


def _encode(engine: Engine, texts: list[str], seconds: float) -> tuple[list[int], int, float]:
    """Return token counts, bytes, and the tokens per second (0: unknown) of the second half, when caches are warm."""
    lengths: list[int] = []
    text_bytes = tokens = 0
    begin = time.monotonic()
    marks = [(begin, 0)]
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        # Without lone surrogates.
        part = [text.encode("utf-8", "replace").decode() for text in texts[first : first + _TEXTS_AT_ONCE]]
        some = [len(ids) for ids in engine.encode(Texts.from_strings(part))]
        lengths += some
        tokens += sum(some) + len(some)
        text_bytes += sum(map(utf8_bytes, part))
        marks.append((time.monotonic(), tokens))
        if marks[-1][0] - begin > seconds and text_bytes > QUICK_SAMPLE_BYTES:
            break
    middle = marks[len(marks) // 2]
    elapsed = marks[-1][0] - middle[0]
    return lengths, text_bytes, (tokens - middle[1]) / elapsed if elapsed > 0 else 0.0


def take_sample(job: Job, number: int, limit_bytes: int, start: Cursor, *, download: bool = True) -> InputSample:
    """Read the beginnings of some files, evenly spread over a part; without `download`, of those that are here."""
    part = job.source.parts[number]
    part = replace(part, settings=replace(part.settings, sample=None))  # the share is known exactly, a sample's is not
    files = [file for file in part.files[start.file :] if not (file.is_pipe or file.problem)]
    if not download:
        files = [file for file in files if not file.is_missing]
    average_bytes = sum(file.size_bytes for file in files) // max(1, len(files)) + 1
    wanted = _LOOKED_AT_BYTES // min(average_bytes, _LARGE_FILE_BYTES)
    most = 1 if part.costs_requests else min(max(wanted, _LEAST_SAMPLE_FILES), _SAMPLE_FILES)
    chosen = files[:: max(1, len(files) // most)][:most]
    sample = InputSample(job, part, job.length_limits[number])
    begin = time.monotonic()
    for file in chosen:
        position = start.position if file.index == start.file else 0
        try:
            sample.read_file(file, position, limit_bytes // len(chosen))
        except BadFileError:
            # With --max-tokens the run may end before this file; otherwise it would stop there anyway.
            if not part.settings.skip_bad and job.config.max_tokens is None:
                raise
    sample.read_seconds = time.monotonic() - begin
    return sample


_FOOTERS_AT_ONCE = 32  # before a build; `plan` reads all of them
REMOTE_FOOTERS = 3
_CHEAP_ROW_GROUPS = 64  # reading token_count on the hub takes one request per row group


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of the stream, or of a part of the input. `exact`: the tokens were counted, not estimated."""

    documents: int | None
    tokens: int | None  # EOT included
    exact: bool
    batches: int = 0  # for the workers; an estimate unless all footers were read
    documents_exact: bool = False

    def __add__(self, other: Extent) -> Extent:
        documents = tokens = None
        if self.documents is not None and other.documents is not None:
            documents = self.documents + other.documents
        if self.tokens is not None and other.tokens is not None:
            tokens = self.tokens + other.tokens
        exact, documents_exact = self.exact and other.exact, self.documents_exact and other.documents_exact
        return Extent(documents, tokens, exact, self.batches + other.batches, documents_exact)

    def scaled(self, factor: Fraction | int) -> Extent:
        documents = None if self.documents is None else round(self.documents * factor)
        tokens = None if self.tokens is None else round(self.tokens * factor)
        return replace(self, documents=documents, tokens=tokens, batches=math.ceil(self.batches * factor))

    def sampled(self, share: float) -> Extent:
        """Return the extent of a random sample, an estimate with the same batches."""
        if share == 1:
            return self
        return replace(self.scaled(Fraction(share)), exact=False, documents_exact=False, batches=self.batches)


def measure_extent(sample: InputSample, files: tuple[InputFile, ...], start: Cursor, *, every_footer: bool) -> Extent:
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
        # Estimate the tokens as `build` does; the documents are known from the footers.
        return replace(seen, tokens=_parquet_extent(sample, files, start, every_footer=False).tokens)
    measured = sample.measured
    if not measured.text_bytes:
        return Extent(0, 0, exact=False)
    # After decompression. Files of the hub that are not on the disk yet are assumed to be like those that are, and
    # files in a bucket like the first few.
    chosen = [file for file in files if not file.is_missing]
    chosen = [file for file in chosen if not file.is_remote] or chosen[:REMOTE_FOOTERS]
    packed = unpacked = 0.0
    for file in chosen:
        expansion = expansion_of(file, part.reader_of(file).place)
        packed, unpacked = packed + file.size_bytes, unpacked + file.size_bytes * expansion
    total_bytes = unpacked / max(1, packed) * sum(file.size_bytes for file in files)
    scale = total_bytes / sample.read_bytes
    texts = [file for file in files if file.format == TEXT and file.size_bytes]
    # A document may be longer than the sample of its file, so that none ends in it.
    documents = max(len(texts), round(sample.documents * scale))
    if part.settings.separator == "none" and len(texts) == len(files):
        documents = len(files)
    # The sample keeps only some of what was read, and the trial may have encoded only some of the sample.
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
    if part.settings.where is not None:  # the documents kept may be longer or shorter than the others
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
