"""What a person reads when a build has ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fineweb_shards.build import Outcome
from fineweb_shards.job import Job
from fineweb_shards.report.closing import closing_lines
from fineweb_shards.result_text import (
    content_lines,
    output_notes,
    output_warnings,
    training_lines,
    warning_lines,
)
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds


def summary_lines(job: Job, outcome: Outcome) -> list[str]:
    """Where the shards are, what is in them, and how to feed a loader."""
    manifest = outcome.manifest
    lines = [_first_line(job, outcome), *content_lines(job.output, manifest)]
    if manifest.peak_memory_bytes:  # only Linux tells
        peak = show_bytes(manifest.peak_memory_bytes)
        lines.append(f"{'memory':<10} {peak} at most, all processes together")
    lines += _notes(job, outcome)
    if outcome.run is not None:
        lines += closing_lines(job.folder, outcome.run)
    warnings = output_warnings(job.output, manifest)
    return lines + training_lines(job.output, manifest) + warning_lines(warnings)


def summary_values(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The same for programs."""
    manifest, run = outcome.manifest, outcome.run
    return {
        "folder": str(job.folder),
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        **{name: value for name, value in manifest.totals.items() if name != "shards"},
        "new_shards": outcome.new_shards,
        "new_tokens": outcome.new_tokens,
        "seconds": round(outcome.seconds, 3),
        "waited_seconds": round(run.stood_still_seconds, 3) if run else 0.0,
        "waits": {cause: asdict(waited) for cause, waited in run.waited.items()} if run else {},
        "fetched_bytes": run.fetched_bytes if run else 0,
        "verified": job.config.verify and outcome.new_shards > 0,
        "quarantined": len(manifest.quarantined),
        "peak_memory_bytes": manifest.peak_memory_bytes,
        "warnings": output_warnings(job.output, manifest),
    }


def _first_line(job: Job, outcome: Outcome) -> str:
    """What was done. A run that had nothing to do takes no time; one that made no shard does."""
    manifest = outcome.manifest
    if not manifest.shards:
        return "No shard was made."
    if outcome.run is None:
        return "Nothing to do: all shards were made before."
    worked_seconds = outcome.seconds - (outcome.run.stood_still_seconds if outcome.run else 0.0)
    speed = show_count(outcome.new_tokens / max(worked_seconds, 1e-9))
    at_speed = f", {speed} tokens/s" if outcome.new_tokens else ""
    verified = "verified, " if job.config.verify and outcome.new_shards else ""
    together = manifest.seconds > outcome.seconds + 1
    return f"Done: {verified}in {show_seconds(outcome.seconds)}{at_speed}." + (
        f" All runs together: {show_seconds(manifest.seconds)}." if together else ""
    )


def _notes(job: Job, outcome: Outcome) -> list[str]:
    manifest = outcome.manifest
    totals = manifest.totals
    notes = []
    for name, verb, noun, more in (
        ("skipped_documents", "Skipped", "document", " without a text (null)"),
        ("replaced_characters", "Replaced by U+FFFD", "invalid character", ""),
        ("bad_parts", "Left out", "damaged part", " (files, row groups or lines)"),
        ("wrong_claims", "Another token_count than ours", "document", "; see above"),
        ("quarantined_documents", "Left out", "document", " that crashed its worker; see below"),
    ):
        if count := totals.get(name):
            notes.append(f"{verb}: {show_number_of(count, noun)}{more}.")
    if not manifest.shards and manifest.quarantined:
        notes.append("No other document was in the input, so there is no shard.")
    notes += output_notes(job.output, manifest)
    return [f"{'note':<10} {note}" for note in notes]
