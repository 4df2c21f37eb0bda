"""Make the report's tables of shards with their hashes, and of the settings they were made with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fineweb_shards.report.facts import Facts
from fineweb_shards.report.table import Table
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.types import ShardRecord
from fineweb_shards.units import show_number_of

_SHOWN_SHARDS = 1000
_FOLDED_SHARDS = 12  # a longer table is folded, to be opened by a click
_COLUMNS = {"file": "name", "tokens": "number", "documents": "number", "bytes": "number", "SHA-256": "hash"}


@dataclass(frozen=True, slots=True)
class Shards:
    """The table of the last shards, with notes."""

    table: Table
    notes: list[str]
    folded: bool
    summary: str  # of the folded table


def list_shards(facts: Facts) -> Shards | None:
    """Return the table of shards; None before the first one is finished."""
    manifest = facts.status.manifest
    if manifest is None or not manifest.shards:
        return None
    rows = [_shard_row(record) for record in manifest.shards[-_SHOWN_SHARDS:]]
    # Of a file that grows there is a row for each checkpoint.
    noun = "shard" if manifest.shard_count == len(manifest.shards) else "segment"
    summary = (
        f"{'All' if len(rows) == len(manifest.shards) else 'The last'} {show_number_of(len(rows), noun)}"
    )
    return Shards(Table(_COLUMNS, rows), list(_notes(manifest)), len(rows) > _FOLDED_SHARDS, summary)


def _shard_row(record: ShardRecord) -> list[str]:
    return [record.name, f"{record.tokens:,}", f"{record.documents:,}", f"{record.bytes:,}", record.sha256]


def _notes(manifest: Manifest) -> Iterator[str]:
    count, last_tokens = len(manifest.shards), manifest.shards[-1].tokens
    if count > _SHOWN_SHARDS:
        yield f"The last {_SHOWN_SHARDS:,} of {count:,}; all are in manifest.json."
    short = last_tokens < manifest.settings["shard_tokens"] and not manifest.layout.one_file
    if manifest.complete and short:
        yield f"The last shard holds the rest, {last_tokens:,} tokens: that is expected."


def list_settings(facts: Facts) -> Table | None:
    """Return the table of settings, input and versions; None while there is no manifest, as a run starts."""
    manifest, heartbeat = facts.status.manifest, facts.status.heartbeat
    if manifest is None:
        return None
    rows: list[list[str]] = []
    inputs = [{**part.settings, "commit": part.commit} for part in manifest.parts]
    for settings in (*inputs, manifest.settings):
        given = {name: value for name, value in settings.items() if value not in ("", None)}
        rows += [[name, _show_setting(value)] for name, value in given.items()]
    rows.append(["input files", f"{len(manifest.files):,}"])
    rows.append(["for validation", manifest.split_rule.describe()])
    rows += [[name, version] for name, version in manifest.versions.items()]
    if heartbeat is not None:
        rows.append(["command", heartbeat.invocation.command])
    return Table({"name": "name", "value": "text"}, rows, heads=True)


def _show_setting(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
