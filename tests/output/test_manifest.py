"""The manifest: what it says is what it reads back, and it refuses what does not fit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import ChangedError, DamageError, OutputError
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import FILE_NAME, FORMAT_VERSION, Manifest, load_manifest
from fineweb_shards.output.manifest_file import ManifestFile, save_manifest
from fineweb_shards.output.resume_rules import check_settings, trim_to_whole_files
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.run.config import Config
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.types import Counts, Cursor, Quarantined, ShardRecord
from tests.support import layout_reference, reference, runs
from tests.support.layout_reference import Wanted
from tests.support.promises import Tries

RECORD = ShardRecord(
    "edufineweb_val_000000.npy", "val", 0, 10, 2, 148, "ab" * 32, (Cursor(0, 3, 7, True),), Counts(5, 1)
)
MANIFEST = runs.manifest_of(
    Config(shard_tokens=10).fingerprint(),
    [{"name": "a", "size_bytes": 1, "content_hash": "ab"}],
    "c0ffee",
    versions={"python": "3"},
    shards=(RECORD,),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / WORK_FOLDER).mkdir()
    return tmp_path


def test_round_trip(folder: Path) -> None:
    """Loading gives what was saved; a folder without one gives None."""
    assert load_manifest(folder) is None
    save_manifest(MANIFEST, FolderStore(folder))
    assert load_manifest(folder) == MANIFEST


def test_a_person_and_a_program_can_read_it(folder: Path) -> None:
    """The records have the fields that docs/reference.md names, and `complete` stands last."""
    save_manifest(MANIFEST, FolderStore(folder))
    data = json.loads((folder / FILE_NAME).read_text())
    assert {"name", "tokens", "documents", "bytes", "sha256", "end"} <= data["shards"][0].keys()
    assert list(data)[-1] == "complete"


def test_a_file_that_is_saved_again_is_as_if_saved_at_once(folder: Path) -> None:
    """Whether lists grow, shrink or change between two saves, the text is what `json` writes of all values, and its
    checksum is theirs."""
    file = ManifestFile(FolderStore(folder))
    names = [{"name": name, "size_bytes": 1, "content_hash": "ab"} for name in ("é", "\udc80", "c")]
    records = [dataclasses.replace(RECORD, end=(Cursor(0, row),)) for row in range(4)]
    saves: list[tuple[list[dict[str, Any]], list[ShardRecord]]] = [
        ([], []),
        (names, records[:1]),
        (names, records[:3]),
        (names, records),
        (names[:2], [records[1], *records[:1]]),
        (names[1:], []),
    ]
    for number, (files, shards) in enumerate(saves):
        parts = (dataclasses.replace(MANIFEST.parts[0], files=files), *MANIFEST.parts[: number % 2])
        file.save(dataclasses.replace(MANIFEST, parts=parts, shards=tuple(shards), seconds=number))
        text = (folder / FILE_NAME).read_bytes()
        data = json.loads(text)
        assert data["parts"] == [dataclasses.asdict(part) for part in parts]
        values = [dataclasses.asdict(record) for record in shards]
        assert data["shards"] == json.loads(
            json.dumps([{**one, "taken": ()} for one in values]).replace(', "taken": []', "")
        )
        indented = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        assert text == indented.encode("utf-8", "backslashreplace")
        checksum = data.pop("checksum")
        assert checksum == hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@pytest.mark.promise("a changed source or setting is refused by name")
@pytest.mark.parametrize("field", ["layout", "shard_tokens"])
def test_a_changed_setting_is_refused_by_name(field: str) -> None:
    """The sentence names the flag and both values."""
    changed = dataclasses.replace(MANIFEST, settings={**MANIFEST.settings, field: "other"})
    with pytest.raises(ChangedError, match=f"--{field.replace('_', '-')} was .* and is other now"):
        check_settings(MANIFEST, changed, {})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2}', "null", '{"format": 2, "shards": 3}', "\ud800", "[" * 10**5, "1" * 10**4]
)
def test_a_damaged_manifest_is_told(folder: Path, text: str) -> None:
    """Garbage is no traceback; a run has been here, so it is ours."""
    (folder / WORK_FOLDER / "log.txt").touch()
    (folder / FILE_NAME).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DamageError, match="the manifest is damaged: "):
        load_manifest(folder)


def test_another_format_is_refused(folder: Path) -> None:
    """A manifest of a later version is not guessed at, and --fresh is not recommended."""
    save_manifest(MANIFEST, FolderStore(folder))
    text = (folder / FILE_NAME).read_text()
    (folder / FILE_NAME).write_text(text.replace(f'"format": {FORMAT_VERSION}', '"format": 99'))
    with pytest.raises(ChangedError, match="format 99") as refused:
        load_manifest(folder)
    assert "fresh" not in refused.value.hint


@pytest.mark.promise("nothing from data is executed or followed")
@pytest.mark.parametrize("name", ["../escape.npy", "/etc/passwd", "a/b.npy", "..", ""])
def test_no_name_escapes_the_folder(folder: Path, name: str) -> None:
    """A doctored manifest can't make us read or delete files elsewhere, even if its checksum fits."""
    save_manifest(dataclasses.replace(MANIFEST, shards=(dataclasses.replace(RECORD, name=name),)), FolderStore(folder))
    with pytest.raises(DamageError, match="but should name edufineweb_val_000000"):
        load_manifest(folder)


def make_unfinished(folder: Path) -> Manifest:
    """Of three shards, with everything in it that a manifest can have."""
    names = ["edufineweb_val_000000.npy", "edufineweb_train_000001.npy", "edufineweb_train_000002.npy"]
    records = tuple(
        dataclasses.replace(
            RECORD, name=name, split="train" if i else "val", sha256=f"{i}a" * 32, end=(Cursor(i, 3 + i, 7 * i),)
        )
        for i, name in enumerate(names)
    )
    lost = Quarantined(1, 5, 3, 17, "é", 9, "cd" * 32, "be\ud800gin", "it ended")
    files = [{"name": name, "size_bytes": 10**6, "mtime_ns": 10**18, "content_hash": "ef"} for name in "abc"]
    manifest = dataclasses.replace(
        MANIFEST,
        parts=(dataclasses.replace(MANIFEST.parts[0], files=files),),
        shards=records,
        quarantined=(lost,),
        seconds=12.345,
        peak_memory_bytes=10**9,
        digits=6,
    )
    save_manifest(manifest, FolderStore(folder))
    return manifest


@pytest.mark.full
@pytest.mark.promise("a changed source or setting is refused by name")
def test_every_flipped_character_is_found(folder: Path, tries: Tries) -> None:
    """One character of an unfinished folder's manifest is another: it says the same, or it is refused."""
    manifest = make_unfinished(folder)
    path = folder / FILE_NAME
    good = path.read_bytes()
    chooser = random.Random(28)
    refused = 0
    for number in tries(2 * len(good), 20 * len(good)):
        data = bytearray(good)
        place = number % len(good)
        data[place] = chooser.choice([data[place] ^ 1 << chooser.randrange(8), ord(chooser.choice("0123456789 e.-"))])
        path.write_bytes(data)
        try:
            assert load_manifest(folder) == manifest
        except (DamageError, ChangedError):
            refused += 1
    assert refused > len(good)


def test_an_edited_manifest_is_told(folder: Path) -> None:
    """Somebody who edits it by hand hears why it is refused."""
    make_unfinished(folder)
    text = (folder / FILE_NAME).read_text()
    (folder / FILE_NAME).write_text(text.replace('"position": 4', '"position": 5'))
    with pytest.raises(DamageError, match="its checksum does not match; it was changed") as refused:
        load_manifest(folder)
    assert refused.value.exit_code == 7


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("tokens", 11, "tokens do not fit"),
        ("tokens", 0, "tokens do not fit"),
        ("tokens", 9, "bytes are not 9 tokens"),
        ("bytes", 147, "bytes are not"),
        ("offset", 1, "begins at 1, should begin at 128"),
        ("documents", -1, "-1 documents"),
        ("documents", 11, "11 documents"),
        ("sha256", "AB" * 32, "not a SHA-256"),
        ("split", "train", "should name edufineweb_train_000001"),
        ("name", "edufineweb_val_000001.npy", "should name edufineweb_val_000000"),
        ("end", (Cursor(0, -1),), "outside the input"),
        ("end", (Cursor(9, 0),), "outside the input"),
        ("end", (Cursor(2, 9),), "goes back"),
        ("counts", Counts(-1), "negative"),
    ],
)
def test_records_that_contradict_each_other_are_refused(folder: Path, field: str, value: object, words: str) -> None:
    """Even where the checksum fits, or there is none yet."""
    manifest = make_unfinished(folder)
    doctored = dataclasses.replace(manifest.shards[0], **{field: value})
    save_manifest(dataclasses.replace(manifest, shards=(doctored, *manifest.shards[1:])), FolderStore(folder))
    with pytest.raises(DamageError, match=words):
        load_manifest(folder)


@pytest.mark.parametrize("junk", [None, True, -1, 1.5, "x", [], {}, 10**30, [[]], {"a": {}}], ids=repr)
def test_no_value_of_another_kind_is_a_traceback(folder: Path, junk: object) -> None:
    """Every value of a manifest without a checksum, replaced by junk: it loads, or is refused."""
    make_unfinished(folder)
    data = json.loads((folder / FILE_NAME).read_text())
    for holder, key in list(places_in(data)):
        before, holder[key] = holder[key], junk
        runs.write_manifest(folder, dict(data))
        try:
            manifest = load_manifest(folder)
            assert manifest is not None
            assert manifest.done.documents >= 0
            trim_to_whole_files(manifest, FolderStore(folder))
        except (DamageError, ChangedError, OutputError):
            pass
        holder[key] = before


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value that can hold another value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from places_in(value[key])


SPECIMENS = Path(__file__).parent / "specimens" / "format-2"


@pytest.mark.parametrize("name", ["killed-before-its-record", "growing"])
def test_a_folder_of_the_first_version_is_finished(tmp_path: Path, name: str) -> None:
    """Killed by version 0.1.0, when a manifest had no checksum: resumed to the right bytes, and given one."""
    shutil.copytree(SPECIMENS / name, tmp_path / "out")
    shutil.copy(SPECIMENS / "input.txt", tmp_path)
    data = json.loads((tmp_path / "out" / FILE_NAME).read_text())
    os.utime(tmp_path / "input.txt", ns=(0, data["files"][0]["mtime_ns"]))
    layout = data["settings"]["layout"]
    verdict = verify_folder(FolderStore(tmp_path / "out"))
    assert verdict.damages == []
    runs.build_inline(tmp_path / "out", tmp_path / "input.txt", shard_tokens=900, layout=layout)
    documents = (SPECIMENS / "input.txt").read_text().split("\n\n")
    assert runs.outputs_in(tmp_path / "out") == layout_reference.files(documents, Wanted(layout, 900))
    assert "checksum" in json.loads((tmp_path / "out" / FILE_NAME).read_text())


FORMAT_3 = Path(__file__).parent / "specimens" / "format-3"
FORMAT_3_SETTINGS: dict[str, dict[str, Any]] = {
    "killed-before-its-record": {},
    "growing": {"layout": "nanogpt", "val_ratio": 0.25, "where": "score > 0", "min_tokens": 20},
    "limited": {},  # it was finished at --max-tokens 2000
}


@pytest.mark.parametrize("name", FORMAT_3_SETTINGS)
def test_a_folder_of_format_3_is_finished(tmp_path: Path, name: str) -> None:
    """From when a manifest had one cursor and no parts: two killed ones and one that ends at a limit resume to the
    bytes of the reference, and are saved with parts."""
    settings = FORMAT_3_SETTINGS[name]
    shutil.copytree(FORMAT_3 / name, tmp_path / "out")
    shutil.copy(FORMAT_3 / "input.jsonl", tmp_path)
    data = json.loads((tmp_path / "out" / FILE_NAME).read_text())
    assert data["format"] == 3
    os.utime(tmp_path / "input.jsonl", ns=(0, data["files"][0]["mtime_ns"]))
    assert verify_folder(FolderStore(tmp_path / "out")).damages == []
    with pytest.raises(ChangedError, match="--min-tokens was"):
        runs.build_inline(tmp_path / "out", tmp_path / "input.jsonl", shard_tokens=900, **{**settings, "min_tokens": 7})
    with pytest.raises(ChangedError, match="--text-column was text when"):
        runs.build_inline(
            tmp_path / "out", tmp_path / "input.jsonl", shard_tokens=900, **{**settings, "text_column": "id"}
        )
    runs.build_inline(tmp_path / "out", tmp_path / "input.jsonl", shard_tokens=900, **settings)
    rows = [json.loads(line) for line in (FORMAT_3 / "input.jsonl").read_text().splitlines()]
    least = settings.get("min_tokens", 0)
    documents = [
        row["text"]
        for row in rows
        if (not settings or row["score"] > 0) and len(reference.encode(row["text"])) >= least
    ]
    wanted = Wanted("nanogpt", 900, val_ratio=Fraction(1, 4)) if settings else Wanted("build-nanogpt", 900)
    assert runs.outputs_in(tmp_path / "out") == layout_reference.files(documents, wanted)


def test_trim_drops_everything_from_the_first_missing_shard(folder: Path) -> None:
    """A missing or shortened shard and all behind it are made again."""
    records = [dataclasses.replace(RECORD, name=f"{i}.npy", end=(Cursor(0, i),)) for i in range(3)]
    for record in records:
        (folder / record.name).write_bytes(b"x" * record.bytes)
    manifest = dataclasses.replace(MANIFEST, shards=tuple(records), complete=True)
    assert trim_to_whole_files(manifest, FolderStore(folder)) == manifest
    (folder / "1.npy").write_bytes(b"short")
    trimmed = trim_to_whole_files(manifest, FolderStore(folder))
    assert trimmed.shards == (records[0],)
    assert not trimmed.complete
