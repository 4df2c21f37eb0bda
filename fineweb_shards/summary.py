"""What a person reads when a build has ended."""

from __future__ import annotations

from fineweb_shards.build import Outcome
from fineweb_shards.files import list_files
from fineweb_shards.job import Job
from fineweb_shards.units import show_bytes, show_count, show_seconds


def summary_lines(job: Job, outcome: Outcome) -> list[str]:
    """Where the shards are, what is in them, and how to feed a loader."""
    manifest = outcome.manifest
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    if not outcome.new_shards:
        lines = ["Nothing to do: the shards are complete."]
    else:
        speed = show_count(outcome.new_tokens / max(outcome.seconds, 1e-9))
        verified = "verified, " if job.config.verify else ""
        lines = [f"Done: {verified}in {show_seconds(outcome.seconds)}, {speed} tokens/s."]
    lines += [
        f"{'folder':<10} {job.folder}",
        f"{'shards':<10} {len(manifest.shards):,}, {size}",
        f"{'tokens':<10} {manifest.tokens:,}",
        f"{'documents':<10} {manifest.documents:,}",
    ]
    lines += _notes(job, outcome)
    if manifest.shards:
        names = [file.name for file in list_files(manifest.shards)]
        lines += ["", "To train on them:", ""]
        lines += [f"    {line}" for line in job.layout.loader_lines(str(job.folder), names)]
    return lines


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
    if not manifest.shards:
        notes.append("The input holds no document, so there is no shard.")
    elif totals["dropped_tokens"]:
        notes.append(f"The last {totals['dropped_tokens']:,} tokens do not fill a shard and were left out.")
    elif not job.layout.one_file and (last := manifest.shards[-1].tokens) < job.config.shard_tokens:
        notes.append(f"The last shard holds the rest, {last:,} tokens: that is expected, nothing is missing.")
    notes += job.layout.warnings(manifest.shards, job.config.shard_tokens)
    return [f"{'note':<10} {note}" for note in notes]
