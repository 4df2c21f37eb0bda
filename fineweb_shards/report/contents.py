"""Make the report's sections about the content of the shards: the parts of a mix, document lengths, frequent tokens,
omissions, the files with their hashes, and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise

import numpy as np

from fineweb_shards.reading.statistics import TokenStatistics, bucket_range, spell
from fineweb_shards.report.facts import Facts, Section, Table
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.units import show_bytes, show_count, show_number_of
from fineweb_shards.watching.mix_shares import shares_in, show_share
from fineweb_shards.watching.run_files import PartShare
from fineweb_shards.watching.status import describe_shuffle

_STRETCHES = 150  # of the chart of a mix
_SHOWN_TOKENS = 25
_SHOWN_QUARANTINED = 100
_SHOWN_SHARDS = 1000
_FOLDED_SHARDS = 12  # longer tables are collapsed
# The manifest's totals, each with the words before its noun, the noun, and the words after it.
LEFT_OUT = (
    ("skipped_documents", "Skipped", "document", " without a text (null)"),
    ("replaced_characters", "Replaced by U+FFFD", "invalid character", ""),
    ("bad_parts", "Left out", "damaged part", " (files, row groups or lines)"),
    ("token_count_mismatches", "Different token_count in the source", "document", ""),
    ("quarantined_documents", "Left out", "document", " that could not be encoded"),
    ("filtered_documents", "Left out by --where", "document", ""),
    ("unknown_documents", "Left out", "document", " without a value that --where needs"),
    ("unsampled_documents", "Left out by --sample", "document", ""),
    ("short_documents", "Left out by --min-tokens", "document", ""),
    ("long_documents", "Left out by --max-document-tokens", "document", ""),
)


def list_parts(facts: Facts) -> Section | None:
    """Return a table of the parts of a mix and, unless the stream is shuffled, a chart of their shares along it; None
    if the input is not a mix."""
    manifest = facts.status.manifest
    shares = shares_in(manifest) if manifest is not None else ()
    if manifest is None or not shares:
        return None
    rows = [
        [
            str(number),
            part.label,
            show_share(part.requested_share),
            show_share(part.share),
            f"{part.tokens:,}",
            f"{part.documents:,}",
            f"{part.epoch:,} of {part.epochs:,}{', exhausted' if part.exhausted else ''}",
        ]
        for number, part in enumerate(shares, 1)
    ]
    numbers = dict.fromkeys(("requested", "achieved", "tokens", "documents"), "number")
    table = Table({"part": "part", "input": "text", **numbers, "epoch": "name"}, rows)
    # A shard of a shuffled stream is a random sample of the mix.
    return {"table": table, "chart": None if manifest.is_shuffled else _stack_shares(manifest, shares)}


def _stack_shares(manifest: Manifest, shares: Sequence[PartShare]) -> Section | None:
    """Return a chart of the shares along the stream, stacked up to 100 %, in a space 1,000 wide and 100 high, which the
    page stretches: the outline of each part as an SVG path, and lines between them at the requested shares. None before
    the first shard is finished."""
    # Records of one checkpoint, and of validation files, repeat the previous counts.
    taken = (tuple(part.tokens for part in record.taken) for record in manifest.shards)
    counts = [*dict.fromkeys([(0,) * len(shares), *taken])]
    last = len(counts) - 1
    if not last:
        return None
    stretches = min(last, _STRETCHES)
    thin = np.array([counts[round(number * last / stretches)] for number in range(stretches + 1)], np.float64)
    made = np.diff(thin, axis=0)
    ends = 1000 * thin.sum(axis=1) / thin[-1].sum()
    edges = 100 * np.maximum(0, 1 - np.cumsum(made, axis=1) / made.sum(axis=1, keepdims=True))
    columns = [np.full(stretches, 100.0), *edges.T]
    places = np.repeat(ends, 2)[1:-1]  # each edge is a flight of steps
    paths = []
    for lower, upper in pairwise(columns):
        heights = np.concatenate([np.repeat(upper, 2), np.repeat(lower, 2)[::-1]])
        outline = zip([*places, *places[::-1]], heights, strict=True)
        paths.append("M" + "L".join(f"{place:.2f} {height:.2f}" for place, height in outline) + "Z")
    return {
        "title": f"Shares of {len(shares):,} parts along the stream",
        "areas": [(part.label, path) for part, path in zip(shares, paths, strict=True)],
        "limits": [100 - 100 * share for share in accumulate(part.requested_share for part in shares)][:-1],
        "tokens": show_count(thin[-1].sum()),
    }


def measure_lengths(facts: Facts) -> Section | None:
    """Return a histogram of document lengths as a table; None if no whole document was counted."""
    figures = _figures(facts)
    if figures is None or not figures.documents:
        return None
    used = [bucket for bucket in range(len(figures.lengths)) if figures.lengths[bucket]]
    counts = {bucket: int(figures.lengths[bucket]) for bucket in range(used[0], used[-1] + 1)}
    rows = []
    for bucket, count in counts.items():
        share = f"{100 * count / figures.documents:.1f} %"
        rows.append(["{:,} to {:,}".format(*bucket_range(bucket)), f"{count:,}", share])
    columns = {"tokens": "name", "documents": "number", "share": "number"}
    table = Table(columns, rows, bars=list(counts.values()))
    return {"mean": f"{figures.mean_tokens:,.0f}", "longest": f"{figures.longest:,}", "table": table}


def list_tokens(facts: Facts) -> Section | None:
    figures = _figures(facts)
    if figures is None:
        return None
    text_tokens = max(1, figures.tokens - figures.boundaries)
    frequent = figures.most_frequent(_SHOWN_TOKENS)
    rows = [
        [spell(token, figures.vocabulary), str(token), f"{count:,}", f"{100 * count / text_tokens:.2f} %"]
        for token, count in frequent
    ]
    columns = {"token": "token", "id": "number", "times": "number", "share": "number"}
    table = Table(columns, rows, bars=[count for _, count in frequent])
    return {"bytes_per_token": f"{figures.bytes_per_token:.2f}", "table": table}


def describe_basis(facts: Facts) -> str:
    """Return a sentence that says which tokens were counted."""
    figures, manifest = facts.figures, facts.status.manifest
    if figures.whole:
        counted = f"Counted over all {figures.statistics.tokens:,} tokens of the finished shards"
        in_order = manifest is None or manifest.split_rule.is_in_order
        return f"{counted}." if in_order else f"{counted}, without documents that continue in the next shard."
    return f"Counted over a sample of {show_count(figures.statistics.tokens)} tokens, taken throughout the folder."


def _figures(facts: Facts) -> TokenStatistics | None:
    """Return the statistics, with the stream's first and last document if all tokens were counted in order."""
    figures, manifest = facts.figures, facts.status.manifest
    if not figures.statistics.tokens or manifest is None:
        return None
    if not figures.whole or not manifest.split_rule.is_in_order:
        return figures.statistics
    return figures.statistics.closed(eot_first=manifest.layout.eot_first)


def count_left_out(facts: Facts) -> Section | None:
    """Return the counts above 0 of what was left out or changed; None before the first manifest."""
    manifest = facts.status.manifest
    if manifest is None:
        return None
    # The totals of a complete build include the input after the last shard.
    counts = {**asdict(manifest.counts), **manifest.totals, "quarantined_documents": len(manifest.quarantined)}
    rows = [[f"{what}: {noun}s{more}", f"{counts[name]:,}"] for name, what, noun, more in LEFT_OUT if counts.get(name)]
    table = Table({"what": "text", "count": "number"}, rows, heads=True) if rows else None
    lost = [
        [
            str(manifest.parts[one.part].files[one.file]["name"]),
            f"{one.row:,}" if one.row is not None else "",
            one.id or "",
            show_bytes(one.text_bytes),
            one.cause,
            one.begins,
        ]
        for one in manifest.quarantined[:_SHOWN_QUARANTINED]
    ]
    columns = dict.fromkeys(("file", "row", "id", "size", "cause", "begins"), "text")
    return {"counts": table, "quarantined": Table(columns, lost) if lost else None}


def list_shards(facts: Facts) -> Section | None:
    """Return a table of the last shards, with notes; None before the first one is finished."""
    manifest = facts.status.manifest
    if manifest is None or not manifest.shards:
        return None
    count, last_tokens = len(manifest.shards), manifest.shards[-1].tokens
    rows = [
        [record.name, f"{record.tokens:,}", f"{record.documents:,}", f"{record.bytes:,}", record.sha256]
        for record in manifest.shards[-_SHOWN_SHARDS:]
    ]
    notes = []
    if count > _SHOWN_SHARDS:
        notes.append(f"The last {_SHOWN_SHARDS:,} of {count:,}; manifest.json has all of them.")
    short = last_tokens < manifest.settings["shard_tokens"] and not manifest.layout.one_file
    if manifest.complete and short:
        notes.append(f"The last shard holds the rest, {last_tokens:,} tokens: that is expected.")
    # A growing file has a row for each checkpoint.
    noun = "shard" if manifest.shard_count == count else "segment"
    summary = f"{'All' if len(rows) == count else 'The last'} {show_number_of(len(rows), noun)}"
    numbers = dict.fromkeys(("tokens", "documents", "bytes"), "number")
    table = Table({"file": "name", **numbers, "SHA-256": "hash"}, rows)
    return {"table": table, "notes": notes, "folded": len(rows) > _FOLDED_SHARDS, "summary": summary}


def list_settings(facts: Facts) -> Table | None:
    manifest, heartbeat = facts.status.manifest, facts.status.heartbeat
    if manifest is None:
        return None
    rows: list[list[str]] = []
    inputs = [{**part.settings, "commit": part.commit} for part in manifest.parts]
    for settings in (*inputs, manifest.settings):
        given = {name: value for name, value in settings.items() if value not in ("", None)}
        rows += [[name, f"{value:,}" if type(value) is int else str(value)] for name, value in given.items()]
    if manifest.is_shuffled:
        rows = [row if row[0] != "shuffle" else ["shuffle", describe_shuffle(manifest)] for row in rows]
    rows.append(["input files", f"{sum(len(part.files) for part in manifest.parts):,}"])
    rows.append(["for validation", manifest.split_rule.describe()])
    rows += [[name, version] for name, version in manifest.versions.items()]
    if heartbeat is not None:
        rows.append(["command", heartbeat.invocation.command])
    return Table({"name": "name", "value": "text"}, rows, heads=True)
