"""The report's sections about documents: lengths, tokens, what was left out, samples.

All of it is somebody else's text: it only reaches the page through `markup`, which escapes it.
"""

from __future__ import annotations

from fineweb_shards.charts import draw_columns
from fineweb_shards.markup import Markup, tag
from fineweb_shards.reading.folder_statistics import SAMPLE_TOKENS
from fineweb_shards.reading.samples import spell
from fineweb_shards.reading.token_statistics import TokenStatistics, bucket_range
from fineweb_shards.report import Report
from fineweb_shards.report_run import section, table
from fineweb_shards.types import Quarantined
from fineweb_shards.units import show_bytes, show_count

_SHOWN_TOKENS = 25
_SHOWN_QUARANTINED = 100


def render_lengths(report: Report) -> Markup:
    """The histogram of document lengths, as a picture and as a table."""
    figures = _figures(report)
    if figures is None or not figures.documents:
        return section("Lengths of documents", _absence(report))
    used = [bucket for bucket in range(len(figures.lengths)) if figures.lengths[bucket]]
    buckets = range(used[0], used[-1] + 1)
    labels = [_power(bucket_range(bucket)[0]) for bucket in buckets]
    counts = [int(figures.lengths[bucket]) for bucket in buckets]
    mean = (figures.tokens - figures.borders) / max(1, figures.borders)
    title = f"Lengths of {figures.documents:,} documents; {mean:,.0f} tokens on average"
    rows = [
        [f"{bucket_range(bucket)[0]:,} to {bucket_range(bucket)[1]:,}", f"{count:,}",
         f"{100 * count / figures.documents:.1f} %"]
        for bucket, count in zip(buckets, counts, strict=True)
    ]  # fmt: skip
    return section(
        "Lengths of documents",
        tag("p", f"{mean:,.0f} tokens on average, {figures.longest:,} in the longest. ", _basis(report)),
        tag("figure", tag("figcaption", "Documents with so many tokens or more (1k is 1,024)"),
            draw_columns(labels, counts, show_count, title)),
        tag("details", tag("summary", "The same as a table"),
            table({"tokens": "name", "documents": "number", "share": "number"}, rows)),
    )  # fmt: skip


def _power(tokens: int) -> str:
    """A power of two, shortly."""
    return (
        str(tokens) if tokens < 2**10 else f"{tokens // 2**10}k" if tokens < 2**20 else f"{tokens // 2**20}M"
    )


def render_tokens(report: Report) -> Markup:
    """The most frequent tokens."""
    figures = _figures(report)
    if figures is None:
        return section("Most frequent tokens", _absence(report))
    text_tokens = max(1, figures.tokens - figures.borders)
    rows = [
        [spell(token, figures.vocabulary), str(token), f"{count:,}", f"{100 * count / text_tokens:.2f} %"]
        for token, count in figures.most_frequent(_SHOWN_TOKENS)
    ]
    return section(
        "Most frequent tokens",
        tag("p", f"{figures.bytes_per_token:.2f} bytes of text a token. ␣ is a space. ", _basis(report)),
        table({"token": "token", "id": "number", "times": "number", "share": "number"}, rows),
    )


def render_left_out(report: Report) -> Markup:
    """Documents that are not in the shards as they were in the input."""
    manifest = report.status.manifest
    if manifest is None:
        return Markup()
    counts = manifest.counts
    rows = [
        ["skipped: no text (null)", f"{counts.skipped_documents:,}"],
        ["invalid characters that became U+FFFD", f"{counts.replaced_characters:,}"],
        ["damaged files, row groups or lines left out", f"{counts.bad_parts:,}"],
        ["documents whose token_count differs from ours", f"{counts.token_count_mismatches:,}"],
        ["quarantined: could not be encoded", f"{len(manifest.quarantined):,}"],
    ]
    parts = [table({"what": "text", "count": "number"}, rows, heads=True)]
    if manifest.quarantined:
        names = [str(file["name"]) for file in manifest.files]
        lost = [_quarantined_row(one, names) for one in manifest.quarantined[:_SHOWN_QUARANTINED]]
        columns = dict.fromkeys(("file", "row", "id", "size", "cause", "begins"), "text")
        parts.append(table(columns, lost))
    return section("Left out and replaced", *parts)


def _quarantined_row(document: Quarantined, names: list[str]) -> list[str]:
    name = names[document.file] if document.file < len(names) else str(document.file)
    row = f"{document.row:,}" if document.row is not None else ""
    size = show_bytes(document.text_bytes)
    return [name, row, document.id or "", size, document.cause, document.begins]


def render_samples(report: Report) -> Markup:
    """The beginnings of a few documents."""
    if not report.samples:
        return section("Sample documents", _absence(report))
    articles = [
        tag(
            "article",
            tag("h3", f"{sample.shard}, token {sample.token:,}"),
            tag("pre", sample.text + ("…" if sample.cut else ""), dir="auto", tabindex="0"),
        )
        for sample in report.samples
    ]
    return section("Sample documents", *articles)


def _figures(report: Report) -> TokenStatistics | None:
    """With the documents at the ends of the stream, where nothing between was left out."""
    survey, manifest = report.survey, report.status.manifest
    if not survey.statistics.tokens or manifest is None:
        return None
    if not survey.whole or not manifest.split_rule.is_in_order:
        return survey.statistics
    return survey.statistics.closed(eot_first=manifest.layout.eot_first)


def _basis(report: Report) -> str:
    survey = report.survey
    if survey.whole:
        counted = f"Counted over all {survey.statistics.tokens:,} tokens of the finished shards"
        manifest = report.status.manifest
        in_order = manifest is None or manifest.split_rule.is_in_order
        return f"{counted}." if in_order else f"{counted}, without documents that run from one into the next."
    return (
        f"Counted over the first {SAMPLE_TOKENS:,} tokens of every finished shard, "
        f"{show_count(survey.statistics.tokens)} in all."
    )


def _absence(report: Report) -> Markup:
    return tag("p", report.problem or "No shard is finished yet.", class_="absent")
