"""Rows that `datasets` streams: whatever comes, it is a document, a refusal, or told."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.columns import parse_template
from fineweb_shards.formats.hub_rows import HubRowsFormat
from fineweb_shards.formats.registry import ROWS
from fineweb_shards.formats.where import parse_where
from fineweb_shards.sources.source import Source
from fineweb_shards.storage.local import LocalPlace
from fineweb_shards.storage.place import HUB, HubRef, InputFile
from fineweb_shards.system.retry import TransientError
from fineweb_shards.types import Cursor
from tests.support import runs
from tests.support.promises import Tries

FILE = InputFile(0, "hf://datasets/a/b@c/train", "train", ROWS, None, 0, 0, "", place=HUB)
DATASET = HubRef("a/b", "", "train", "c", "", keep_downloads=False)
VALUES = ["text", "", None, 7, 1.5, float("nan"), True, ["a"], {"a": 1}, b"bytes", b"\xff", "\ud800",
          "\0\n\u2028", datetime.datetime(2026, 1, 1), object(), {1, 2}, 10**400]  # fmt: skip


def source_of(tmp_path: Path, rows: list[Any], *, skip: bool, batch_bytes: int = 1024) -> Source:
    """A source whose stream gives these rows; an exception among them is raised, each time it is reached."""
    settings = runs.job_of(tmp_path / "out", __file__, batch_bytes=batch_bytes).source.parts[0].settings

    class Rows(HubRowsFormat):
        def _open_rows(self, position: int) -> Iterator[Any]:
            for row in rows[position:]:
                if isinstance(row, Exception):
                    raise row
                yield row

    settings = replace(settings, skip_bad=skip, hub=DATASET, max_outage_seconds=3600)
    return Source((FILE,), settings, {(HUB, ROWS): Rows(settings, LocalPlace(DATASET, settings.max_outage_seconds))})


def documents_of(source: Source) -> tuple[list[str], int, list[str]]:
    """The documents, how much was left out, and what is told of it."""
    chunks = [chunk for batch in source.batches(Cursor(0, 0)) for chunk in source.chunks(batch)]
    return (
        [text for chunk in chunks for text in chunk.documents],
        sum(chunk.counts.bad_parts for chunk in chunks),
        [problem for chunk in chunks for problem in chunk.problems],
    )


@pytest.mark.full
def test_rows_of_every_kind(tmp_path: Path, tries: Tries) -> None:
    """A text, or bytes, is a document; a null is skipped; anything else is named or left out."""
    chooser = random.Random(31)
    for _ in tries(60, 5000):
        rows: list[Any] = [{"text": chooser.choice(VALUES), "other": object()} for _ in range(20)]
        rows[chooser.randrange(20)] = {"body": "x"}
        texts = [row.get("text") for row in rows]
        expected = [text for text in texts if isinstance(text, (str, bytes))]
        # Half a character is kept as tiktoken would read it: documents are UTF-8.
        good = [
            text.replace("\ud800", "\ufffd") if isinstance(text, str) else text.decode("utf-8", "replace")
            for text in expected
        ]
        found, bad, problems = documents_of(
            source_of(tmp_path, rows, skip=True, batch_bytes=chooser.choice([1024, 10**6]))
        )
        assert found == good
        assert bad == len(problems) == 20 - len(good) - sum("text" in row and row["text"] is None for row in rows)
        with pytest.raises(BadFileError):
            documents_of(source_of(tmp_path, rows, skip=False))


@pytest.mark.parametrize("error", [ValueError("Expected object"), KeyError("x"), TypeError(), UnicodeError("x")])
def test_a_stream_that_breaks_is_told_or_ended_there(tmp_path: Path, error: Exception) -> None:
    """Everything before the damage is read, whatever the batch size."""
    rows = [{"text": f"row {i} " * 20} for i in range(50)]
    broken = [*rows[:30], error, *rows[30:]]
    for batch_bytes in (1024, 3000, 10**7):
        found, bad, problems = documents_of(source_of(tmp_path, broken, skip=True, batch_bytes=batch_bytes))
        assert found == [row["text"] for row in rows[:30]]
        assert bad == 1
        assert "dataset a/b: row 30 can't be read" in problems[0]
    with pytest.raises(BadFileError, match="row 30 can't be read"):
        documents_of(source_of(tmp_path, broken, skip=False))


def test_an_outage_is_no_damage(tmp_path: Path) -> None:
    """The stream is opened again at the row that is due."""
    rows: list[Any] = [{"text": f"row {i}"} for i in range(9)]
    trouble = TransientError("the connection is gone")
    source = source_of(tmp_path, rows, skip=True)
    opened: list[int] = []
    real = source.reader_of(FILE)._open_rows  # type: ignore[attr-defined]  # the double's own

    def open_once_broken(position: int) -> Iterator[Any]:
        opened.append(position)
        for number, row in enumerate(real(position)):
            if len(opened) == 1 and number == 4:
                raise trouble
            yield row

    source.reader_of(FILE)._open_rows = open_once_broken  # type: ignore[attr-defined]
    assert documents_of(source)[0] == [row["text"] for row in rows]
    assert opened == [0, 4]


def test_fields_of_nested_rows(tmp_path: Path) -> None:
    """The text, and what --where needs, may be inside a struct: only that struct is passed on."""
    rows = [{"a": {"text": f"{i}", "n": i}, "b": "not needed"} for i in range(6)] + [{"a": None, "b": ""}]
    source = source_of(tmp_path, rows, skip=False)
    settings = replace(source.settings, text_column="a.text", where=parse_where("a.n > 2 or a is null"))
    reader = type(source.readers[HUB, ROWS])(settings, source.readers[HUB, ROWS].place)
    source = Source((FILE,), settings, {(HUB, ROWS): reader})
    assert documents_of(source)[0] == ["3", "4", "5"]


@pytest.mark.parametrize("batch_bytes", [1024, 10**6])
def test_templates_of_streamed_rows(tmp_path: Path, batch_bytes: int) -> None:
    """Of the columns that it names, nested ones included, and of every row again from any position."""
    rows = [{"a": f"{i}", "b": None if i % 3 == 1 else {"c": "x" * i}, "d": object()} for i in range(60)]
    source = source_of(tmp_path, rows, skip=False, batch_bytes=batch_bytes)
    settings = replace(source.settings, template=parse_template("{a}: {b.c}"))
    reader = type(source.readers[HUB, ROWS])(settings, source.readers[HUB, ROWS].place)
    source = Source((FILE,), settings, {(HUB, ROWS): reader})
    expected = [f"{i}: {'' if i % 3 == 1 else 'x' * i}" for i in range(60)]
    assert documents_of(source)[0] == expected
    for first in (1, 30, 59):
        batches = source.batches(Cursor(0, first))
        assert [text for batch in batches for one in source.chunks(batch) for text in one.documents] == expected[first:]
