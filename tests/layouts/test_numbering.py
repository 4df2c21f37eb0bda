"""The numbers in names: as many digits as are needed, so that names sort as the stream does."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from fineweb_shards.errors import OutputError
from fineweb_shards.events import Observer
from fineweb_shards.layouts import LAYOUTS, get_layout
from fineweb_shards.layouts.base import Numbering, choose_digits
from fineweb_shards.layouts.plain import Plain
from fineweb_shards.run.build import run
from fineweb_shards.run.job import open_manifest
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Counts, Cursor, ShardRecord
from fineweb_shards.units import show_number_of
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_files import EventLog
from tests.support import layout_reference, runs
from tests.support.doubles import AtOncePlane, InlineExecutor
from tests.support.inputs import write_text
from tests.support.layout_reference import Wanted


def test_files_without_a_record_follow_those_that_have_one() -> None:
    """Also after validation that does not fill its file; what comes after a gap is none of a run's."""
    numbering = Numbering(get_layout("build-nanogpt"), 6000, SplitRule(val_tokens=3000), 6)
    val = ShardRecord("edufineweb_val_000000.npy", "val", 0, 3000, 9, 6128, "", (Cursor(0, 0),), Counts())
    train = [f"edufineweb_train_{number:06}.npy" for number in (1, 2, 4)]
    for records in ([val], []):
        named = numbering.unrecorded_names(records, {val.name, *train})
        assert named - {val.name} == {train[0], train[1]}


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_names_sort_as_the_stream(name: str) -> None:
    """For any number of shards, and both splits; and they are those of a reader's own tool where that is enough."""
    layout = get_layout(name)
    if layout.one_file:
        return
    for shards in (10, 9_990, 10_050, 1_000_100):
        digits = choose_digits(layout, 7, 7 * shards, exact=True)
        numbering = Numbering(layout, 7, SplitRule(val_tokens=20), digits)
        step = max(1, shards // 1000)
        names = [
            numbering.name("train", {"val": 20, "train": 7 * index})
            for index in [*range(0, shards - 3, step), shards - 4]
        ]
        assert names == sorted(names)
        assert digits == layout.digits or shards > 9_000
        assert all(layout.owns(one) for one in names)
        numbering.check_width("train", {"val": 20, "train": 7 * (shards - 4)})


def test_an_estimate_may_be_wrong_by_half() -> None:
    """Then the numbers have room."""
    plain = get_layout("plain")
    assert choose_digits(plain, 1, 9_000, exact=True) == 4
    assert choose_digits(plain, 1, 9_000, exact=False) == 5


def build_with(out: Path, path: Path, digits: int) -> None:
    """A build of shards of one token whose plan has decided on so many digits."""
    job = runs.job_of(out, path, shard_tokens=1, layout="plain")
    plane = AtOncePlane(job.output.store, job.output.shard_format, Disk(out, 0, Observer()))
    executor = InlineExecutor(job.source, runs.encoder(eot_first=False), plane)
    with FolderLock(out), contextlib.closing(plane):
        manifest = open_manifest(job, same_source=False)
        manifest = replace(manifest, digits=manifest.digits or digits)
        run(job, manifest, executor, Progress(EventLog(out)))


def test_a_run_that_outgrows_its_numbers_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a name that would be sorted to the wrong place; a resume keeps what was decided."""
    monkeypatch.setattr(Plain, "digits", 1)
    text = "one two three four five six seven eight nine ten eleven twelve"
    path = write_text(tmp_path / "a.txt", [text])
    for digits in (1, 2):
        with pytest.raises(OutputError, match="have 1 digit, and shard 10 would need one more"):
            build_with(tmp_path / "out", path, digits)
        assert sorted(runs.outputs_in(tmp_path / "out")) == [f"train_shard_{i}.bin" for i in range(10)]


def test_wider_numbers_hold_the_same_bytes(tmp_path: Path) -> None:
    """Only the names are longer."""
    text = "one two three four five six seven"
    path = write_text(tmp_path / "a.txt", [text])
    build_with(tmp_path / "out", path, 6)
    found = runs.outputs_in(tmp_path / "out")
    expected = layout_reference.files([text], Wanted("plain", 1))
    assert list(found.values()) == list(expected.values())
    assert next(iter(found)) == "train_shard_000000.bin"
    build_with(tmp_path / "out", path, 4)
    assert runs.outputs_in(tmp_path / "out") == found


def test_one_of_a_kind() -> None:
    """1 shard, 2 shards."""
    assert [show_number_of(n, "shard") for n in (0, 1, 1000)] == ["0 shards", "1 shard", "1,000 shards"]
    assert show_number_of(2, "batch") == "2 batches"
