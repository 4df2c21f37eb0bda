"""What a person reads when a build has ended."""

from __future__ import annotations

from typing import Any

from fineweb_shards.build import Outcome
from fineweb_shards.job import Job
from fineweb_shards.result_text import content_lines, output_notes, training_lines
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds


def summary_lines(job: Job, outcome: Outcome) -> list[str]:
    """Where the shards are, what is in them, and how to feed a loader."""
    manifest = outcome.manifest
    if not outcome.new_shards:
        lines = ["Nothing to do: the shards are complete."]
    else:
        speed = show_count(outcome.new_tokens / max(outcome.seconds, 1e-9))
        verified = "verified, " if job.config.verify else ""
        lines = [f"Done: {verified}in {show_seconds(outcome.seconds)}, {speed} tokens/s."]
        if manifest.seconds > outcome.seconds + 1:
            lines[0] += f" All runs together: {show_seconds(manifest.seconds)}."
    lines += content_lines(job.output, manifest)
    if manifest.peak_memory_bytes:  # only Linux tells
        peak = show_bytes(manifest.peak_memory_bytes)
        lines.append(f"{'memory':<10} {peak} at most, all processes together")
    lines += _notes(job, outcome)
    return lines + training_lines(job.output, manifest)


def summary_values(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The same for programs."""
    manifest = outcome.manifest
    return {
        "folder": str(job.folder),
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        **{name: value for name, value in manifest.totals.items() if name != "shards"},
        "new_shards": outcome.new_shards,
        "new_tokens": outcome.new_tokens,
        "seconds": round(outcome.seconds, 3),
        "verified": job.config.verify and outcome.new_shards > 0,
        "quarantined": len(manifest.quarantined),
        "peak_memory_bytes": manifest.peak_memory_bytes,
    }


def _notes(job: Job, outcome: Outcome) -> list[str]:
    manifest = outcome.manifest
    totals = manifest.totals
    notes = []
    if totals["skipped_documents"]:
        notes.append(
            f"Skipped: {show_number_of(totals['skipped_documents'], 'document')} without a text (null)."
        )
    if totals["replaced_characters"]:
        notes.append(f"{show_number_of(totals['replaced_characters'], 'invalid character')} became U+FFFD.")
    if totals["bad_parts"]:
        notes.append(f"{totals['bad_parts']:,} damaged files, row groups or lines were left out.")
    if totals["wrong_claims"]:
        notes.append(f"{totals['wrong_claims']:,} documents have another token_count than ours; see above.")
    if totals.get("quarantined_documents"):
        notes.append(f"{totals['quarantined_documents']:,} documents ended whoever encoded them; see below.")
    if not manifest.shards:
        notes.append("The input holds no document, so there is no shard.")
    notes += output_notes(job.output, manifest)
    return [f"{'note':<10} {note}" for note in notes]
