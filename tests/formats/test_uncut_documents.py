"""Long documents under other rules than GPT-2's: cut behind words, or encoded whole, or refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats import ranges
from fineweb_shards.types import Batch
from fineweb_shards.vocabulary import CutRule
from tests.support import cut_rules, reference, runs
from tests.support.inputs import write_csv, write_gzip, write_jsonl, write_parquet, write_text

LIMIT = 2000  # bytes that are encoded whole
RULES: list[CutRule | None] = ["words", None]
BATCHES = [1024, 1500, 10**6]
DASHES = "-" * LIMIT
PROSE = "some words and others, " * 70
# Each can be encoded under both rules.
DOCUMENTS = ["one", DASHES, PROSE, "的一是，" * 150, f"{'=' * 900} a b {'=' * 900}", "x" * 1999, "", "last one"]
LONG_PROSE = f"{PROSE * 9}end"
WRITERS = {
    "text": lambda path, documents: write_text(path / "a.txt", documents),
    "gzip": lambda path, documents: write_gzip(path / "a.txt.gz", "<|endoftext|>".join(documents).encode()),
    "jsonl": lambda path, documents: write_jsonl(path / "a.jsonl", documents),
    "csv": lambda path, documents: write_csv(path / "a.csv", documents),
    "parquet": lambda path, documents: write_parquet(path / "a.parquet", documents, 3),
}


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CutRule | None:
    cut_rules.use_rule(monkeypatch, request.param)
    cut_rules.use_limits(monkeypatch, LIMIT)
    chosen: CutRule | None = request.param
    return chosen


def stream_of(documents: list[str], kind: str) -> list[int]:
    """In text an empty document is none."""
    kept = [text for text in documents if text or kind not in ("text", "gzip")]
    return reference.stream(kept).tolist()


@pytest.mark.full(but=["words-*-1024", "None-*-1500"])
@pytest.mark.parametrize("batch_bytes", BATCHES)
@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_has_the_tokens_of_a_plain_loop(
    tmp_path: Path, rule: CutRule | None, kind: str, batch_bytes: int
) -> None:
    """Up to the limit; and beyond it, where there are places to cut."""
    documents = (
        DOCUMENTS + ([LONG_PROSE, f"{DASHES[:1900]}a {PROSE}{DASHES[:1900]}"] if rule == "words" else []) + ["z"]
    )
    path = WRITERS[kind](tmp_path, documents)
    found, counts = runs.encode_inline(path, batch_bytes=batch_bytes)
    assert found == stream_of(documents, kind)
    assert counts.quarantined_documents == counts.bad_parts == 0


@pytest.mark.full(but=["words-*-1024", "None-*-1500"])
@pytest.mark.parametrize("batch_bytes", BATCHES)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_document_that_is_too_long_is_quarantined(
    tmp_path: Path, rule: CutRule | None, kind: str, batch_bytes: int
) -> None:
    """It leaves nothing, is counted and named, and all others are there, whatever the batch size."""
    too_long = [f"{DASHES}!", "q" * 3 * LIMIT]
    documents = [*DOCUMENTS, too_long[0], "between", too_long[1], "behind"]
    path = WRITERS[kind](tmp_path, documents)
    manifest = runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes, layout="plain")
    kept = [text for text in documents if text not in too_long and (text or kind not in ("text", "gzip"))]
    expected = [token for text in kept for token in (*reference.encode(text), reference.EOT)]
    assert np.fromfile(tmp_path / "out" / manifest.shards[0].name, "<u2").tolist() == expected
    assert manifest.totals["quarantined_documents"] == 2
    assert [one.text_bytes for one in manifest.quarantined] == [len(text) for text in too_long]
    assert [one.begins for one in manifest.quarantined] == [text[:200] for text in too_long]
    assert [one.row for one in manifest.quarantined] == ([8, 10] if kind == "parquet" else [None, None])
    assert "it has 6,000 bytes without a place where gpt2 allows a cut" in manifest.quarantined[1].cause


def test_a_cell_is_left_out_whole(tmp_path: Path, rule: CutRule | None) -> None:
    """Also where only its end can't be cut, many chunks behind its beginning."""
    documents = ["one", f"{LONG_PROSE}{DASHES}{DASHES}", "two"]
    found, counts = runs.encode_inline(write_parquet(tmp_path / "a.parquet", documents))
    assert found == stream_of(["one", "two"], "parquet")
    assert counts.quarantined_documents == 1


def endless(rule: CutRule | None) -> tuple[str, str, list[str]]:
    """Documents, one of which is too long to look for its end; what of it is kept; and all that is kept."""
    begins = PROSE * 3 if rule == "words" else ""
    found = re.match(r".*[a-z](?= )", begins)
    kept = found[0] if found else ""
    documents = ["one", f"{begins}{'-' * 5 * LIMIT} a b {'-' * 200}", *DOCUMENTS[:4], "last"]
    return "<|endoftext|>".join(documents), kept, [text for text in ["one", kept, *documents[2:]] if text]


@pytest.mark.parametrize("kind", ["text", "gzip"])
@pytest.mark.parametrize("batch_bytes", BATCHES)
def test_a_text_without_an_end_stops_the_run_or_is_left_out(
    tmp_path: Path, rule: CutRule | None, batch_bytes: int, kind: str
) -> None:
    """The message names the file and the byte, and what is before is done. With `skip` the rest of that document is
    left out, from the last place to cut on, whatever the batch size; what is kept has its EOT."""
    text, kept, expected = endless(rule)
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    if kind == "gzip":
        path = write_gzip(tmp_path / "a.txt.gz", text.encode())
    settings = {"batch_bytes": batch_bytes, "separator": "<|endoftext|>"}
    place = len("one<|endoftext|>") + len(kept)
    with pytest.raises(
        BadFileError, match=rf"from byte {place:,}, a document continues for over 8,000 bytes without a place"
    ) as error:
        runs.build_inline(tmp_path / "out", path, **settings)
    assert "--separator" in error.value.hint
    for layout in ("build-nanogpt", "plain"):
        out = tmp_path / layout
        manifest = runs.build_inline(out, path, layout=layout, on_bad_file="skip", **settings)
        assert manifest.totals["bad_parts"] == 1
        shard = out / manifest.shards[0].name
        found = (np.load(shard) if layout == "build-nanogpt" else np.fromfile(shard, "<u2")).tolist()
        if layout == "plain":
            found = [reference.EOT, *found[:-1]]
        assert found == reference.stream(expected).tolist()


@pytest.mark.parametrize("layout", ["build-nanogpt", "plain"])
def test_a_run_over_such_a_text_is_resumed_anywhere(tmp_path: Path, rule: CutRule | None, layout: str) -> None:
    """From every shard, with another batch size: the same files."""
    path = tmp_path / "a.txt"
    path.write_bytes(endless(rule)[0].encode())
    settings = {"shard_tokens": 170, "layout": layout, "separator": "<|endoftext|>", "on_bad_file": "skip"}
    manifest = runs.build_inline(tmp_path / "out", path, batch_bytes=1024, **settings)
    whole = runs.outputs_in(tmp_path / "out")
    assert len(whole) > 3
    for record in manifest.shards:
        (tmp_path / "out" / record.name).unlink()
        runs.build_inline(tmp_path / "out", path, batch_bytes=1500, **settings)
        assert runs.outputs_in(tmp_path / "out") == whole


class BytesView(ranges.ByteView):
    """A file that is in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def read_at(self, offset: int, size: int) -> bytes:
        assert offset >= 0
        return self._data[offset : offset + size]

    def close(self) -> None:
        pass


def ranges_of(text: str, separator: str, batch_bytes: int = 1024) -> list[Batch]:
    finder = ranges.RangeFinder(0, separator, batch_bytes, "words", str)
    return list(finder.find_ranges(BytesView(text.encode()), 0, False))


def test_no_separator_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it looks like the end of a word, wherever it stands behind where a range should end."""
    cut_rules.use_limits(monkeypatch, LIMIT)
    for before in range(2800, 4300):
        text = "-" * before + "one two" + "=" * 3000
        assert [(part.position, part.end) for part in ranges_of(text, "one two")] == [
            (0, before + 7),
            (before + 7, before + 3007),
        ]


def test_every_place_to_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands behind where a range should end: what is between two of them is short enough."""
    cut_rules.use_limits(monkeypatch, LIMIT)
    for before in range(2800, 4300):
        text = "-" * before + "a b" + "=" * 7500
        found = ranges_of(text, "blank")
        assert [(part.end, part.ends_mid_document) for part in found] == [(before + 1, True), (len(text), False)]
        assert not any(part.problem for part in found)


@pytest.mark.parametrize("shift", range(8))
def test_a_range_may_begin_or_end_at_any_byte_of_a_cut(
    tmp_path: Path, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what is left out begins does not depend on where a range should end."""
    cut_rules.use_rule(monkeypatch, "words")
    cut_rules.use_limits(monkeypatch, LIMIT)
    path = tmp_path / "a.txt"
    path.write_bytes(f"{'-' * (1020 + shift)}的，{'-' * 9000}\n\nz".encode())
    settings = {"separator": "blank", "on_bad_file": "skip"}
    found = [runs.encode_inline(path, batch_bytes=size, **settings)[0] for size in (1024, 1025, 1026, 1027, 4000)]
    assert found == [reference.stream(["-" * (1020 + shift) + "的", "z"]).tolist()] * 5


def test_what_is_skipped_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a document of any length in a stream is found with a window of bytes."""
    cut_rules.use_rule(monkeypatch, None)
    cut_rules.use_limits(monkeypatch, LIMIT)
    path = write_gzip(tmp_path / "a.txt.gz", b"-" * 10**6 + b"\n\nlast")
    kept: list[int] = []
    forget = ranges.StreamView.forget

    def watch(view: Any, offset: int) -> None:
        forget(view, offset)
        kept.append(offset)

    monkeypatch.setattr(ranges.StreamView, "forget", watch)
    settings = {"on_bad_file": "skip", "separator": "blank"}
    assert runs.encode_inline(path, **settings)[0] == reference.stream(["last"]).tolist()
    assert max(np.diff(kept)) < 10**4
