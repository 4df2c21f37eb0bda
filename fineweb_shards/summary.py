"""What a person reads when a build has ended."""

from __future__ import annotations

from fineweb_shards.build import Outcome
from fineweb_shards.job import Job
from fineweb_shards.result_text import content_lines, output_notes, training_lines
from fineweb_shards.units import show_bytes, show_count, show_seconds


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


def _notes(job: Job, outcome: Outcome) -> list[str]:
    manifest = outcome.manifest
    totals = manifest.totals
    notes = []
    if totals["skipped_documents"]:
        notes.append(f"{totals['skipped_documents']:,} documents without a text (null) were skipped.")
    if totals["replaced_characters"]:
        notes.append(f"{totals['replaced_characters']:,} invalid characters became U+FFFD.")
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
