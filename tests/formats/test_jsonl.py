"""JSON lines: every line an object with a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.formats.jsonl import JsonLinesFormat
from fineweb_shards.storage.place import InputFile
from fineweb_shards.types import Cursor
from fineweb_shards.vocabulary import GPT2
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

DOCUMENTS = make_documents(150, seed=5)


@pytest.mark.parametrize("batch_bytes", [1024, 7777, 10**7])
def test_documents_and_batches_of_any_size(tmp_path: Path, batch_bytes: int) -> None:
    """The same documents whatever the batch."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes, shard_tokens=4000)
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(DOCUMENTS), 4000)


@pytest.mark.parametrize(("name", "before"), [("a.jsonl", 1), ("a.csv", 1), ("a.txt", 0)])
def test_batches_end_behind_multiples_of_their_size(tmp_path: Path, name: str, before: int) -> None:
    """Wherever reading begins: so the places to look for ends are known beforehand."""
    path = tmp_path / name
    path.write_text("text\n" + "".join(f"{i} {'x' * (i % 90)}\n" for i in range(900)))
    source = runs.job_of(tmp_path / "out", path, batch_bytes=1024, separator="line").source
    ends = [batch.end for batch in source.batches(runs.START)]
    assert len(ends) > 40
    lines = path.read_bytes()
    assert ends[:-1] == [lines.index(b"\n", 1024 * i - before) + 1 for i in range(1, len(ends))]
    for number in range(0, len(ends), 7):
        assert [batch.end for batch in source.batches((Cursor(0, ends[number]),))] == ends[number + 1 :]
        begun = [batch.end for batch in source.batches((Cursor(0, lines.index(b"\n", ends[number] + 99) + 1),))]
        assert begun == ends[number + 1 :]


def test_what_json_allows(tmp_path: Path) -> None:
    """CRLF, a byte order mark, empty lines, escapes, a lone surrogate, null, no line end at the end."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "one"}\r\n\r\n{"text": "t\\u0077o\\r\\n", "n": 1}\n  \n'
        b'{"text": null}\n{"text": "half \\ud83d"}\n{"text": ""}\n{"text": "bad \xff byte"}'
    )
    manifest = runs.build_inline(tmp_path / "out", path)
    expected = reference.stream(["one", "two\r\n", "half \ud83d", "", "bad \ufffd byte"])
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(expected, 10**9)
    assert manifest.totals["skipped_documents"] == 1
    assert manifest.totals["replaced_characters"] == 1


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{broken", "is not JSON"),
        (b"[1]", "is a JSON list"),
        (b'{"body": "x"}', "has no key 'text'; its keys are: body"),
        (b'{"text": 5}', "'text' is not a text but a number"),
        (b'{"text": ' + b"[" * 100_000 + b"}", "nested too deeply|is not JSON"),
    ],
)
def test_bad_lines_are_named_or_skipped(tmp_path: Path, line: bytes, sentence: str) -> None:
    """With the file and the byte where the line begins."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "two"}\n')
    with pytest.raises(BadFileError, match=rf"a\.jsonl: the line at byte 16.*({sentence})"):
        runs.build_inline(tmp_path / "out", path)
    manifest = runs.build_inline(tmp_path / "out", path, on_bad_file="skip")
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(["one", "two"]), 10**9)
    assert manifest.totals["bad_parts"] == 1


ATOMS = ["{", "}", "[", "]", ":", ",", '"', "\\", "\\u00e9", "\\ud83d", "\\ude00", "\\/", '"text"', '"id"', '"a"']
ATOMS += ['"text"', '"id"', "null", "true", "NaN", "-Infinity", "1e999", "-0", "01", "9" * 30]
ATOMS += [" ", "\t", "\0", "\x7f", "\ufeff", "\u2028", "é"]
VALUES = ["null", "7", "1.5", "NaN", "[]", '{"text": "x"}', "9" * 30]
VALUES += ['"one"', '"half \\ud83d"', '"\\ud83d\\ude00"', '"\\x"', '"é"']


def parse(format_: JsonLinesFormat, line: bytes, *, slowly: bool) -> object:
    """What becomes of a line: its text, id and replaced characters, or the error's message and hint."""
    file = InputFile(0, "a.jsonl", "a.jsonl", "jsonl", None, 0, 0, "")
    try:
        return (format_._parse_slowly if slowly else format_._parse_line)(file, line, 0)
    except BadFileError as error:
        return error.message, error.hint


@given(
    st.lists(st.tuples(st.sampled_from(["text", "id", "n", ""]), st.sampled_from(VALUES)), max_size=4),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(ATOMS)), max_size=3),
    st.sampled_from([b"", b"\xff", b"\xed\xa0\x80", b"\r"]),
)
def test_the_quick_parser_and_pythons_agree(
    pairs: list[tuple[str, str]], changes: list[tuple[int, str]], junk: bytes
) -> None:
    """On any line, good or spoilt: the same text, id, count of replaced characters, or message."""
    line = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
    for place, atom in changes:
        line = line[:place] + atom + line[place:]
    data = line.encode() + junk
    format_ = JsonLinesFormat(ReadSettings("text", "auto", 1024, False, GPT2))
    assert parse(format_, data, slowly=False) == parse(format_, data, slowly=True)


def test_odd_but_valid_beginnings_and_numbers(tmp_path: Path) -> None:
    """A byte order mark before an empty line, and a number longer than Python likes."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n{"n": ' + b"9" * 5000 + b', "text": "one"}\n')
    runs.build_inline(tmp_path / "out", path)
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(["one"]), 10**9)


def test_a_json_array_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """People have .json files with one array in them."""
    path = tmp_path / "a.json"
    path.write_text('[{"text": "one"}]')
    with pytest.raises(BadFileError, match="JSON array") as error:
        runs.build_inline(tmp_path / "out", path)
    assert "jq" in error.value.hint


def test_another_key(tmp_path: Path) -> None:
    """--text-column names it."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"content": "one"}\n')
    runs.build_inline(tmp_path / "out", path, text_column="content")
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(["one"]), 10**9)
