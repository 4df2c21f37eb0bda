"""Find where a run begins: behind what the folder's manifest has, if input and settings are the same."""

from __future__ import annotations

from typing import Any

from fineweb_shards.errors import ChangedError
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job
from fineweb_shards.sources.changed_files import check_same_files
from fineweb_shards.sources.files import files_to_json
from fineweb_shards.store.added_index import add_index
from fineweb_shards.store.changed_settings import check_settings, check_vocabulary
from fineweb_shards.store.fresh import holds_shards, refuse_untracked_shards
from fineweb_shards.store.lost_files import trim_to_whole_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_file import load_manifest
from fineweb_shards.store.quarantine import check_batch_bytes
from fineweb_shards.store.token_limit import move_limit


def open_manifest(job: Job, *, same_source: bool) -> Manifest:
    """Return the folder's manifest, checked against this job, or a new one, without versions yet. If no shard
    is finished, other settings are no error: the manifest starts anew."""
    manifest = load_manifest(job.folder)
    settings, files = job.config.fingerprint(), files_to_json(job.source.files)
    if manifest is None:
        refuse_untracked_shards(job.output.store, job.layout, set())
        return _new_manifest(job, settings, files)
    try:
        settings_now = {**settings, "max_tokens": manifest.settings["max_tokens"]}
        check_settings(manifest, settings_now, Config().fingerprint())
        check_vocabulary(manifest, job.vocabulary)
        check_same_files(job.source.files, manifest.files, same_source=same_source)
        check_batch_bytes(manifest.quarantined, job.config.batch_bytes)
    except ChangedError:
        if holds_shards(job.output.store, manifest):
            raise
        refuse_untracked_shards(job.output.store, job.layout, set())
        return _new_manifest(job, settings, files)
    # Before the records behind a lost file are dropped: those shards still exist, and a new limit must not be
    # before their end.
    moved = move_limit(manifest, job.config.max_tokens, job.output.store)
    moved = add_index(moved, job.output.store, asked=job.config.index)
    return trim_to_whole_files(moved, job.output.store)


def _new_manifest(job: Job, settings: dict[str, Any], files: list[dict[str, Any]]) -> Manifest:
    return Manifest(settings, files, {}, job.commit, vocabulary=job.vocabulary, index=job.config.index)
