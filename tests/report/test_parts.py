"""The parts of a mix on the page: the manifest's figures, and a chart that every share can be read from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.report.contents import Facts, Section, Table, list_parts
from fineweb_shards.report.page import render_page
from fineweb_shards.watching.run_files import History
from fineweb_shards.watching.status import Status
from tests.report.page_payloads import PAYLOADS
from tests.support import runs
from tests.support.example_run import mix_manifest


def facts_of(manifest: Manifest | None) -> Facts:
    return Facts(Status(FolderStore(Path("out")), "stopped", manifest, None, []), History())


def shown(manifest: Manifest) -> tuple[Table, Section]:
    parts = list_parts(facts_of(manifest))
    assert parts is not None
    return parts["table"], parts["chart"]


def widths(path: str) -> list[tuple[float, float, float]]:
    """Begin, end and height of each step of an area: its upper edge from left to right, and its lower one back. The
    stream is 1,000 wide, and 100 % is at the top, at 0."""
    outline = [(float(x), 100 - float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path)]
    above, below = outline[: len(outline) // 2], outline[len(outline) // 2 :][::-1]
    assert [place for place, _ in above] == [place for place, _ in below]
    heights = [round(high - low, 2) for (_, high), (_, low) in zip(above, below, strict=True)]
    assert heights[::2] == heights[1::2]
    return list(zip([place for place, _ in above[::2]], [place for place, _ in above[1::2]], heights[::2], strict=True))


def test_the_table_has_the_figures_of_the_last_record() -> None:
    """Requested and achieved share, tokens, documents and the epoch of each part."""
    table, _ = shown(mix_manifest([3, 1], [300, 100], [900, 100], epochs=2, ended=1))
    assert table.rows == [
        ["1", "org/part-0", "75.00 %", "90.00 %", "900", "90", "1 of 2"],
        ["2", "org/part-1", "25.00 %", "10.00 %", "100", "10", "2 of 2, exhausted"],
    ]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_chart_has_the_share_of_each_stretch() -> None:
    """Between one record and the next: of a part that has run out nothing is left."""
    _, chart = shown(mix_manifest([3, 1], [300, 100], [900, 100]))
    (_, first), (title, second) = chart["areas"]
    assert title == "org/part-1"
    assert widths(first) == [(0, 400, 75), (400, 1000, 100)]
    assert widths(second) == [(0, 400, 25), (400, 1000, 0)]
    assert chart["limits"] == [25]
    assert chart["tokens"] == "1k"


@pytest.mark.parametrize("parts", range(2, 7))
@pytest.mark.parametrize("records", [1, 2, 149, 150, 151, 1000])
def test_a_long_stream_is_drawn_in_few_stretches(parts: int, records: int) -> None:
    """At most 150, without a gap, from the beginning to the end, and all shares together are everything."""
    states = [[1000 * number * (part + 1) for part in range(parts)] for number in range(1, records + 1)]
    _, chart = shown(mix_manifest(range(1, parts + 1), *states))
    steps = [widths(outline) for _, outline in chart["areas"]]
    assert all(len(one) == min(records, 150) for one in steps)
    for stretches in zip(*steps, strict=True):
        assert sum(height for _, _, height in stretches) == pytest.approx(100, abs=0.1)
    assert (steps[0][0][0], steps[0][-1][1]) == (0, 1000)
    assert all(before[1] == after[0] for before, after in zip(steps[0], steps[0][1:], strict=False))


def test_records_of_one_checkpoint_are_one_place() -> None:
    """Such as those of two splits, and those of files for validation, which don't count."""
    _, chart = shown(mix_manifest([1, 1], [0, 0], [50, 50], [50, 50], [90, 110]))
    assert [end for _, end, _ in widths(chart["areas"][0][1])] == [500, 1000]


def test_before_the_first_shard_there_is_no_chart() -> None:
    """But the table shows what is requested."""
    parts = list_parts(facts_of(mix_manifest([1, 3])))
    assert parts is not None
    assert parts["chart"] is None
    assert [row[2] for row in parts["table"].rows] == ["25.00 %", "75.00 %"]
    assert "25.00 %" in render_page(facts_of(mix_manifest([1, 3])))


def test_without_a_mix_the_page_has_no_parts() -> None:
    """Nor before there is a manifest."""
    plain = runs.manifest_of(mix_manifest([1]).settings, [])
    for manifest in (None, plain):
        assert list_parts(facts_of(manifest)) is None
        assert "Parts of the mix" not in render_page(facts_of(manifest))


def test_each_part_has_its_colour_in_table_and_chart() -> None:
    """The same class of the style sheet; after the sixth they begin again."""
    page = render_page(facts_of(mix_manifest([1] * 8, [10] * 8)))
    numbers = [0, 1, 2, 3, 4, 5, 0, 1]
    assert [int(number) for number in re.findall(r'<span class="key part-(\d)">', page)] == numbers
    assert [int(number) for number in re.findall(r'<path class="area part-(\d)"', page)] == numbers
    assert 'role="img" aria-label="Shares of 8 parts' in page


def test_labels_stay_text() -> None:
    """Whatever a dataset or a file is called."""
    manifest = mix_manifest([1] * len(PAYLOADS), [10] * len(PAYLOADS))
    for part, payload in zip(manifest.parts, PAYLOADS, strict=True):
        part.settings["dataset"] = payload
    page = render_page(facts_of(manifest))
    for tag in ("<script", "<img", "<iframe", "<svg/", "<a "):
        assert tag not in page.lower()
    assert all(char.isprintable() or char == "\n" for char in page)
