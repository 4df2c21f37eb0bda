"""Find out how many documents and tokens the input has, before it is read.

Parquet footers give the number of documents and the sizes, FineWeb's `token_count` column the exact number of tokens,
also of those documents that --where and the limits keep. Everything else is estimated from a few batches spread over
the files, and marked as an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.parquet import ParquetFormat
from fineweb_shards.formats.registry import TEXT
from fineweb_shards.run.input_sample import (
    InputSample,
    MeasuredSample,
)
from fineweb_shards.storage.place import InputFile
from fineweb_shards.storage.streams import expansion_of
from fineweb_shards.types import Cursor

_FOOTERS_AT_ONCE = 32  # before a build; `plan` reads all of them
REMOTE_FOOTERS = 3
_CHEAP_ROW_GROUPS = 64  # reading token_count on the hub takes a request for each row group


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


def measure_extent(sample: InputSample, files: tuple[InputFile, ...], start: Cursor, *, every_footer: bool) -> Extent:
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
