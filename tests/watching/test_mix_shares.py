"""The shares of a mix: true figures beside what was requested, wherever a run is seen; nothing without a mix."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fineweb_shards import api
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.run.output_text import result_lines
from fineweb_shards.system.json_values import make
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.types import Cursor, Taken
from fineweb_shards.watching.mix_shares import share_rows, shares_in, show_share
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_files import EventLog, Heartbeat, Invocation, PartShare, Snapshot, load_heartbeat
from fineweb_shards.watching.screen import describe, make_frame
from fineweb_shards.watching.status import RUNNING, Status, status_lines, status_values
from tests.support import runs
from tests.support.example_run import SNAPSHOT, mix_manifest
from tests.support.inputs import write_jsonl

MIX = mix_manifest([7, 3], [700, 300], [1390, 610])


def status_of(manifest: Manifest, state: str = "stopped", heartbeat: Heartbeat | None = None) -> Status:
    store = runs.job_of(Path("out"), Path(__file__), format="text").output.store
    return Status(store, state, manifest, heartbeat, [])


def test_the_last_record_is_the_state_of_the_folder() -> None:
    """Tokens, documents, and shares of all tokens so far."""
    first, second = shares_in(MIX)
    assert first == PartShare("org/part-0", 1390, 139, 0.695, 0.7, 1, 1, exhausted=False)
    assert second == PartShare("org/part-1", 610, 61, 0.305, 0.3, 1, 1, exhausted=False)


def test_a_new_mix_has_taken_nothing() -> None:
    """Its shares are 0, beside those that were requested."""
    assert [(part.share, part.requested_share) for part in shares_in(mix_manifest([1, 3]))] == [(0, 0.25), (0, 0.75)]


def test_without_a_mix_there_are_no_shares() -> None:
    """With one part, with parts that are read one after the other, and in a plain export of a mix."""
    plain = {name: value for name, value in MIX.parts[0].settings.items() if name != "weight"}
    for settings in (plain, {**plain, "weight": None}):
        parts = tuple(replace(part, settings=settings) for part in MIX.parts)
        assert shares_in(replace(MIX, parts=parts)) == ()
    assert shares_in(replace(MIX, shards=tuple(replace(one, taken=()) for one in MIX.shards))) == ()


@pytest.mark.parametrize(
    ("file", "epoch", "exhausted"),
    [(0, 1, False), (2, 1, False), (4, 1, False), (5, 2, False), (7, 2, False), (8, 3, False), (11, 3, True)],
)
def test_the_epoch_follows_from_the_cursor(file: int, epoch: int, exhausted: bool) -> None:
    """Of a part with two files for validation and three others, which are read three times."""
    mix = mix_manifest([1, 1], [10, 10], files=3, val_files=2, epochs=3)
    record = replace(mix.shards[-1], end=(Cursor(file, 0), Cursor(2, 0)))
    part, _ = shares_in(replace(mix, shards=(record,)))
    assert (part.epoch, part.epochs, part.exhausted) == (epoch, 3, exhausted)


def test_small_files_have_the_right_epoch(tmp_path: Path) -> None:
    """Also those that are read together, of which a block has several."""
    paths = [write_jsonl(tmp_path / f"{name}.jsonl", [f"{name} and more"] * 40) for name in "abc"]
    parts = ({"input": (str(paths[0]),), "epochs": 9, "weight": 2}, {"input": tuple(map(str, paths[1:])), "weight": 1})
    manifest = runs.build_inline(tmp_path / "out", parts=parts, shard_tokens=50)
    for number in range(len(manifest.shards)):
        part, _ = shares_in(replace(manifest, shards=manifest.shards[: number + 1]))
        assert part.epoch - 1 <= part.documents / 40 <= part.epoch
    assert part.epoch > 2


def test_a_part_without_files_is_exhausted() -> None:
    """Such as one whose files are all for validation."""
    assert all(part.exhausted for part in shares_in(mix_manifest([1, 1], [0, 0], files=0)))


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0.00 %"), (0.7, "70.00 %"), (1, "100.00 %"), (1e-3, "0.10 %"), (9.97e-6, "0.0010 %"), (1e-8, "0.0000010 %")],
)
def test_a_share_has_digits_that_say_something(share: float, shown: str) -> None:
    """Also one in a million, which is not 0.00 %."""
    assert show_share(share) == shown


def test_rows_are_for_people() -> None:
    """A row for each part; epochs if there are several, and whether it is exhausted."""
    assert share_rows(shares_in(MIX))[1] == (
        "part 2", "org/part-1: 30.50 % (30.00 % requested), 610 tokens, 61 documents"
    )  # fmt: skip
    texts = [text for _, text in share_rows(shares_in(mix_manifest([1, 1], [10, 20], epochs=4, ended=1)))]
    assert texts[0].endswith(", 1 document, epoch 1 of 4")
    assert texts[1].endswith(", 2 documents, epoch 4 of 4, exhausted")


def test_a_run_knows_its_shares(tmp_path: Path) -> None:
    """From the beginning, from where it resumes, and as it advances."""
    log = EventLog(tmp_path)
    assert [part.tokens for part in Progress(log, begun=mix_manifest([7, 3])).shares] == [0, 0]
    progress = Progress(log, begun=MIX)
    assert progress.shares == shares_in(MIX)
    progress.advance(1000, 0, MIX.end, (Taken(2100, 210), Taken(900, 90)))
    assert [part.share for part in progress.shares] == [0.7, 0.3]
    plain = runs.manifest_of({"text_column": "text"}, [])
    progress = Progress(log, begun=plain)
    progress.advance(1000, 0, plain.end)
    assert progress.shares == ()


def test_a_line_has_the_shares_and_a_bar_has_not() -> None:
    """In the order of the parts; before the first token there are none."""
    snapshot = replace(SNAPSHOT, parts=shares_in(MIX))
    assert ", 6 min left, shares 69.5 : 30.5 %, 2 workers," in describe(snapshot)
    assert describe(replace(SNAPSHOT, parts=shares_in(mix_manifest([7, 3])))) == describe(SNAPSHOT)
    assert make_frame(snapshot, 100, 20) == make_frame(SNAPSHOT, 100, 20)


def test_a_heartbeat_keeps_the_shares(tmp_path: Path) -> None:
    """They are read back as they were, also by the library."""
    (tmp_path / WORK_FOLDER).mkdir()
    snapshot = replace(SNAPSHOT, parts=shares_in(MIX))
    Heartbeat(time.time(), Invocation("build", "/", 1, 0.0), snapshot).save(tmp_path)
    heartbeat = load_heartbeat(tmp_path)
    assert heartbeat is not None
    assert heartbeat.snapshot == snapshot
    assert make(Snapshot, heartbeat.to_json()["snapshot"] | {"parts": []}) == SNAPSHOT


def test_status_shows_the_parts() -> None:
    """Of the finished shards, or as a run has just told."""
    stopped = status_lines(status_of(MIX))
    assert "part 1     org/part-0: 69.50 % (70.00 % requested), 1,390 tokens, 139 documents" in stopped
    now = replace(SNAPSHOT, parts=shares_in(mix_manifest([7, 3], [2100, 900])))
    heartbeat = Heartbeat(time.time(), Invocation("build", "/", 1, 0.0), now)
    running = status_lines(status_of(MIX, RUNNING, heartbeat))
    assert "part 2     org/part-1: 30.00 % (30.00 % requested), 900 tokens, 90 documents" in running
    assert len([line for line in running if line.startswith("part ")]) == 2


def test_programs_get_the_parts() -> None:
    """In `status --json`, and of the library as values with names; without a mix there is an empty list."""
    values = json.loads(json.dumps(status_values(status_of(MIX))))
    assert values["parts"][1] == {
        "label": "org/part-1", "tokens": 610, "documents": 61, "share": 0.305, "requested_share": 0.3,
        "epoch": 1, "epochs": 1, "exhausted": False,
    }  # fmt: skip
    assert api._make(api.StatusResult, {**values, "snapshot": None}).parts == shares_in(MIX)
    plain = runs.manifest_of({"text_column": "text", **MIX.settings}, [])
    assert status_values(status_of(plain))["parts"] == []


def test_a_result_shows_the_parts() -> None:
    """Below the documents."""
    spec = runs.job_of(Path("out"), Path(__file__), format="text").output
    totals = {"shards": 2, "tokens": 2000, "documents": 200, "dropped_tokens": 0}
    lines = result_lines(spec, replace(MIX, totals=totals))
    first = lines.index("documents  200") + 1
    assert [line[:22] for line in lines[first : first + 2]] == ["part 1     org/part-0:", "part 2     org/part-1:"]
