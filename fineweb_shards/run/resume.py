"""Find where a run begins: after what the folder's manifest has, if input and settings are the same."""

from __future__ import annotations

from dataclasses import replace

from fineweb_shards.errors import ChangedError
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job
from fineweb_shards.sources.files import check_same_files, files_to_json
from fineweb_shards.store.cleanup import holds_shards, refuse_untracked_shards
from fineweb_shards.store.manifest import InputPart, Manifest, divide_settings, load_manifest
from fineweb_shards.store.resume_rules import (
    add_index,
    check_batch_bytes,
    check_settings,
    move_limit,
    trim_to_whole_files,
)


def open_manifest(job: Job, *, same_source: bool) -> Manifest:
    """Return the folder's manifest, checked against this job, or a new one, without versions yet. If no shard
    is finished, other settings are no error: the manifest starts anew."""
    manifest, new = load_manifest(job.folder), begin_manifest(job)
    if manifest is None:
        refuse_untracked_shards(job.output.store, job.layout, set())
        return new
    try:
        settings = {**new.settings, "max_tokens": manifest.settings["max_tokens"]}  # see `move_limit`
        check_settings(manifest, replace(new, settings=settings), Config().fingerprint())
        for part, recorded in zip(job.source.parts, manifest.parts, strict=True):
            check_same_files(part.files, recorded.files, same_source=same_source)
        check_batch_bytes(manifest.quarantined, job.config.batch_bytes)
    except ChangedError:
        if holds_shards(job.output.store, manifest):
            raise
        refuse_untracked_shards(job.output.store, job.layout, set())
        return new
    # Before the records after a lost file are dropped: those shards still exist, and a new limit must not be
    # before their end.
    moved = move_limit(manifest, job.config.max_tokens, job.output.store)
    moved = add_index(moved, job.output.store, asked=job.config.index)
    return trim_to_whole_files(moved, job.output.store)


def begin_manifest(job: Job) -> Manifest:
    """Return the manifest of a folder in which nothing is finished, without versions yet."""
    settings, own = divide_settings(job.config.fingerprint())
    parts = tuple(
        InputPart(own, files_to_json(part.files), part.settings.hub.commit if part.settings.hub else None)
        for part in job.source.parts
    )
    return Manifest(settings, parts, {}, vocabulary=job.vocabulary, index=job.config.index)
