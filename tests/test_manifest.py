"""The ledger: what it says is what it reads back, and it refuses what does not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fineweb_shards.durable import WORK_FOLDER
from fineweb_shards.errors import ChangedError, DamageError
from fineweb_shards.manifest import FILE_NAME, Manifest, check_settings, load_manifest, trim
from fineweb_shards.types import Counts, Cursor, ShardRecord

RECORD = ShardRecord("edufineweb_val_000000.npy", 10, 2, 148, "ab" * 32, Cursor(0, 3, 7, True), Counts(5, 1))
MANIFEST = Manifest(
    {"layout": "build-nanogpt", "shard_tokens": 10}, [{"name": "a"}], {"python": "3"}, "c0ffee", (RECORD,)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / WORK_FOLDER).mkdir()
    return tmp_path


def test_round_trip(folder: Path) -> None:
    """Loading gives what was saved; a folder without one gives None."""
    assert load_manifest(folder) is None
    MANIFEST.save(folder)
    assert load_manifest(folder) == MANIFEST


def test_a_person_and_a_program_can_read_it(folder: Path) -> None:
    """The records have the fields that the README names, and `complete` stands last."""
    MANIFEST.save(folder)
    data = json.loads((folder / FILE_NAME).read_text())
    assert {"name", "tokens", "documents", "bytes", "sha256", "end"} <= data["shards"][0].keys()
    assert list(data)[-1] == "complete"


@pytest.mark.promise(6)
@pytest.mark.parametrize("field", ["layout", "shard_tokens"])
def test_a_changed_setting_is_refused_by_name(field: str) -> None:
    """The sentence names the field and both values."""
    changed = {**MANIFEST.settings, field: "other"}
    with pytest.raises(ChangedError, match=f"setting {field} was .* and is 'other'"):
        check_settings(MANIFEST, changed)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', "null", '{"format": 1, "shards": 3}', "\ud800"]
)
def test_a_damaged_manifest_is_told(folder: Path, text: str) -> None:
    """Garbage is no traceback."""
    (folder / FILE_NAME).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DamageError, match="not a readable manifest"):
        load_manifest(folder)


def test_another_format_is_refused(folder: Path) -> None:
    """A manifest of a later version is not guessed at."""
    (folder / FILE_NAME).write_text('{"format": 99}')
    with pytest.raises(ChangedError, match="format 99"):
        load_manifest(folder)


@pytest.mark.promise(23)
@pytest.mark.parametrize("name", ["../escape.npy", "/etc/passwd", "a/b.npy", "..", ""])
def test_no_name_escapes_the_folder(folder: Path, name: str) -> None:
    """A doctored manifest can't make us read or delete files elsewhere."""
    dataclasses.replace(MANIFEST, shards=(dataclasses.replace(RECORD, name=name),)).save(folder)
    with pytest.raises(DamageError, match="no file name"):
        load_manifest(folder)


def test_trim_drops_everything_from_the_first_missing_shard(folder: Path) -> None:
    """A missing or shortened shard and all behind it are made again."""
    records = [dataclasses.replace(RECORD, name=f"{i}.npy") for i in range(3)]
    for record in records:
        (folder / record.name).write_bytes(b"x" * record.bytes)
    manifest = dataclasses.replace(MANIFEST, shards=tuple(records), complete=True)
    assert trim(manifest, folder) == manifest
    (folder / "1.npy").write_bytes(b"short")
    trimmed = trim(manifest, folder)
    assert trimmed.shards == (records[0],)
    assert not trimmed.complete
