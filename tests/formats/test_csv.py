"""CSV and TSV: every record has a text in one of its fields."""

from __future__ import annotations

import csv
import io
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats import csv as delimited
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.sources.source import Source, open_source
from fineweb_shards.storage.place import InputFile
from fineweb_shards.types import Cursor, find_origin
from fineweb_shards.vocabulary import GPT2
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_csv, write_gzip, write_zstd

DOCUMENTS = make_documents(150, seed=5)
EXPECTED = reference.shard_files(reference.stream(DOCUMENTS), 4000)
ATOMS = [b",", b'"', b'""', b'"a', b'a"', b"\n", b"\r\n", b"\r", b"ab", b" ", "é".encode(), b"\xff", b"\x0b"]


def source_of(path: Path, batch_bytes: int, *, skip_bad: bool = False, form: str = "csv") -> Source:
    """One file as a source, with batches smaller than the command line allows."""
    settings = ReadSettings("text", "auto", batch_bytes, skip_bad, GPT2)
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    file = InputFile(0, str(path), path.name, form, compression, path.stat().st_size, 0, "")
    return open_source((file,), settings)


def read_all(source: Source, start: Cursor = runs.START[0]) -> tuple[list[str], list[str], list[int]]:
    """The documents, the problems, and the positions where reading can begin again."""
    documents: list[str] = []
    problems: list[str] = []
    positions: list[int] = []
    with closing(source), closing(source.batches(start)) as batches:
        for batch in batches:
            for chunk in source.chunks(batch):
                documents += list(chunk.documents)
                problems += chunk.problems
                positions.append(batch.end)
    return documents, problems, positions


def parse_plainly(data: bytes, columns: int, text: int) -> tuple[list[str], list[int]]:
    """What must be found in the records behind the header, byte by byte: the documents, and the offsets of bad
    records."""
    documents: list[str] = []
    bad: list[int] = []
    start = place = 0
    fields, state, has_lone_return = [b""], "begin", False
    while place < len(data) or start < place:
        byte, following = data[place : place + 1] or b"\n", data[place + 1 : place + 2] or b"\n"
        is_stray = False
        if state == "quoted":
            if place == len(data):
                is_stray = True
            elif byte == b'"':
                state = "closed"
            else:
                fields[-1] += byte
        elif byte == b'"':
            if state == "closed":
                fields[-1] += byte
            is_stray, state = state == "plain", "quoted"
        elif byte == b",":
            fields.append(b"")
            state = "begin"
        elif byte == b"\r":
            has_lone_return |= following != b"\n"
            state = "plain"
        elif byte != b"\n":
            is_stray, state = state == "closed", "plain"
            fields[-1] += byte
        if is_stray:
            place = data.find(b"\n", place) if b"\n" in data[place:] else len(data)
        if is_stray or (byte == b"\n" and state != "quoted"):
            if is_stray or has_lone_return or (len(fields) != columns and data[start:place].strip(b"\r")):
                bad.append(start)
            elif len(fields) == columns:
                documents.append(fields[text].decode("utf-8", "replace"))
            fields, state, has_lone_return = [b""], "begin", False
            start = place + 1
        place += 1
    return documents, bad


@pytest.mark.parametrize("batch_bytes", [1024, 7777, 10**7])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "crlf.csv"])
def test_documents_and_batches_of_any_size(tmp_path: Path, name: str, batch_bytes: int) -> None:
    """The same documents whatever the batch, the delimiter and the line end."""
    line_end = "\r\n" if "crlf" in name else "\n"
    path = write_csv(tmp_path / name, DOCUMENTS, "\t" if name.endswith("tsv") else ",", line_end)
    runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes, shard_tokens=4000)
    assert runs.shards_in(tmp_path / "out") == EXPECTED


@pytest.mark.full(but=["a.csv.zst"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst"])
def test_a_resume_from_every_shard(tmp_path: Path, name: str) -> None:
    """Gives the same shards, with another batch size, also from a compressed file."""
    data = write_csv(tmp_path / "plain", DOCUMENTS).read_bytes()
    path = tmp_path / name
    {".gz": write_gzip, ".zst": write_zstd}.get(path.suffix, Path.write_bytes)(path, data)
    manifest = runs.build_inline(tmp_path / "out", path, shard_tokens=4000, batch_bytes=1024)
    for record in manifest.shards[1:]:
        (tmp_path / "out" / record.name).unlink()
        runs.build_inline(tmp_path / "out", path, shard_tokens=4000, batch_bytes=5000)
        assert runs.shards_in(tmp_path / "out") == EXPECTED


def test_what_csv_allows(tmp_path: Path) -> None:
    """A byte order mark, empty lines, CRLF and LF, doubled quotes, empty fields, NUL, invalid UTF-8, no line end at the
    end; and `NA` is a text."""
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'\xef\xbb\xbf\r\n"id",text\r\n1,one\n\n2,"t""wo"""\r\n\r\n3,"a\r\nb,c\rd"\n4,\n5,""\n6,NA\n'
        b'7,a\0b\n8,bad \xff byte\n"\xff",\xef\xbb\xbfmark\n9,a\rb\r\n10,"last"'
    )
    manifest = runs.build_inline(tmp_path / "out", path)
    texts = ["one", 't"wo"', "a\r\nb,c\rd", "", "", "NA", "a\0b", "bad \ufffd byte", "\ufeffmark", "a\rb", "last"]
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(texts), 10**9)
    assert manifest.totals["replaced_characters"] == 1


@pytest.mark.parametrize("data", [b"", b"\n\r\n", b"\xef\xbb\xbf", b"id,text", b"id,text\n", b"text\n\n\n"])
def test_no_records(tmp_path: Path, data: bytes) -> None:
    """An empty file, or one with a header only, has no documents."""
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    assert read_all(source_of(path, 100)) == ([], [], []) or data == b"text\n\n\n"
    assert read_all(source_of(path, 100))[:2] == ([], [])


def test_one_column(tmp_path: Path) -> None:
    """Every line is a document, except an empty one: an empty text is written as two quotes."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'text\none\n\n""\n  \n"two"\n')
    assert read_all(source_of(path, 100))[0] == ["one", "", "  ", "two"]


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (b"5", "has 1 field, the header 2"),
        (b"5,a,b", "has 3 fields, the header 2"),
        (b'5,a "word" in quotes', "neither around a field nor doubled"),
        (b'5,"a" b', "neither around a field nor doubled"),
        (b'5, "a"', "neither around a field nor doubled"),
        (b'5,"a\\"b"', "neither around a field nor doubled"),
    ],
)
def test_bad_records_are_named_or_skipped(tmp_path: Path, record: bytes, sentence: str) -> None:
    """With the file and the byte where the record begins; the records around it are read."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n0,"one\n"\n' + record + b'\n6,"two"\n')
    with pytest.raises(BadFileError, match=rf"a\.csv: .*the record at byte 17.* {sentence}"):
        runs.build_inline(tmp_path / "out", path)
    manifest = runs.build_inline(tmp_path / "out", path, on_bad_file="skip")
    expected = reference.stream(["one\n", "two"])
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(expected, 10**9)
    assert manifest.totals["bad_parts"] == 1


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"id,body\n1,x\n", "there is no column 'text'; the columns are: id, body"),
        (b"text,id,text\na,1,b\n", "2 columns are called 'text'"),
        (b"id\ttext\n1\tx\n", "there is no column 'text'"),
        (b"id;text\n1;x\n", "there is no column 'text'; the columns are: id;text"),
        (b'id,"text\n1,x\n', "hold no line with the names of the columns"),
        (b"x" * 70_000, "hold no line with the names of the columns"),
        (b"\n" * 70_000 + b"text\n", "hold no line with the names of the columns"),
        (b"PK\x03\x04\0\0\0\xff,text\n", "this is not text in UTF-8"),
    ],
)
def test_files_without_the_column_are_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    """With the names that there are, or left out whole."""
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    with pytest.raises(BadFileError, match=sentence) as error:
        read_all(source_of(path, 100))
    assert ("--format tsv" in error.value.hint) == data.startswith((b"id\t", b"id;"))
    documents, problems, _ = read_all(source_of(path, 100, skip_bad=True))
    assert (documents, len(problems)) == ([], 1)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("delimited")


@given(
    st.lists(st.sampled_from(ATOMS), max_size=40).map(b"".join),
    st.integers(1, 60),
    st.integers(1, 20),
    st.sampled_from(["", ".gz"]),
)
@example(b'a,"b\n', 5, 1, "")
def test_any_bytes(scratch: Path, data: bytes, batch_bytes: int, block_bytes: int, packing: str) -> None:
    """Whatever stands in the records, and however they are cut: the documents and the bad records that a loop over
    single bytes finds, and the same from every position that was given out."""
    header = b"id,text\n"
    path = scratch / f"any.csv{packing}"
    (write_gzip if packing else Path.write_bytes)(path, header + data)
    documents, bad = parse_plainly(data, columns=2, text=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK_BYTES", block_bytes)
        patch.setattr(delimited, "check_is_text", lambda file, head: None)  # it has a test of its own
        found, problems, positions = read_all(source_of(path, batch_bytes, skip_bad=True))
        assert found == documents
        assert [offset_in(problem) - len(header) for problem in problems] == bad
        for position in set(positions[:-1]):
            rest, _, _ = read_all(source_of(path, 7, skip_bad=True), Cursor(0, position))
            assert rest == parse_plainly(data[position - len(header) :], 2, 1)[0]
            assert rest == documents[len(documents) - len(rest) :]
    if not bad:
        text = io.StringIO(data.decode("latin-1"), newline="")
        judged = [row[1].encode("latin-1") for row in csv.reader(text, strict=True) if row]
        assert [cell.decode("utf-8", "replace") for cell in judged] == documents


def offset_in(problem: str) -> int:
    return int(problem.partition("the record at byte ")[2].split()[0].replace(",", ""))


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=20),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 200),
)
def test_what_pythons_writer_writes(
    scratch: Path, rows: list[tuple[str, str]], quoting: Any, line_end: str, batch_bytes: int
) -> None:
    """Comes back as it was."""
    texts = [[cell.encode("utf-8", "replace").decode() for cell in row] for row in rows]
    if quoting == csv.QUOTE_MINIMAL:  # Python before 3.13 writes a lone CR without quotes
        texts = [[cell.replace("\r", "") for cell in row] for row in texts]
    path = scratch / "written.tsv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator=line_end, quoting=quoting)
        writer.writerows([["id", "text"], *texts])
    assert read_all(source_of(path, batch_bytes, form="tsv"))[0] == [row[1] for row in texts]


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("batch_bytes", [100, 5000, 10**7])
def test_a_record_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str, closed: bool, batch_bytes: int
) -> None:
    """Is named by the byte where it begins, and left out with `skip`: to its end, or to the end of the file if its
    quote is never closed."""
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    monkeypatch.setattr(delimited, "MAX_RECORD_BYTES", 3000)
    data = b'id,text\n1,one\n2,"' + b"line\n" * 2000 + b'",\n'[: 3 * closed] + b"3,two\n4,three"
    path = tmp_path / f"a.csv{packing}"
    (write_gzip if packing else Path.write_bytes)(path, data)
    with pytest.raises(BadFileError, match="the record at byte 14 is longer than 3,000 bytes"):
        read_all(source_of(path, batch_bytes))
    documents, problems, _ = read_all(source_of(path, batch_bytes, skip_bad=True))
    assert documents == (["one", "two", "three"] if closed else ["one"])
    assert [offset_in(problem) for problem in problems] == [14]


@pytest.mark.parametrize("keep", [13, 14, 19, 22, 30, 31])
def test_a_stream_that_is_cut_off(tmp_path: Path, keep: int) -> None:
    """Leaves the records that end before the damage, and no half of one."""
    data = b'id,text\n1,one\n2,"t\nwo"\n3,three\n'
    path = tmp_path / "a.csv.gz"
    whole = parse_plainly(data[8:keep][: data[8:keep].rfind(b"\n") + 1], 2, 1)[0]
    path.write_bytes(stored_gzip(data[:keep]))
    with pytest.raises(BadFileError, match=r"a\.csv\.gz: broken after"):
        read_all(source_of(path, 10))
    for batch_bytes in (3, 10, 1000):
        documents, problems, _ = read_all(source_of(path, batch_bytes, skip_bad=True))
        assert documents == [text for text in whole if text != '"t']
        assert len(problems) == 1


def stored_gzip(text: bytes) -> bytes:
    """A gzip file that ends behind this text, without its end."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH)


def test_ids_for_messages(tmp_path: Path) -> None:
    """A column `id` names a document."""
    path = write_csv(tmp_path / "a.csv", ["zero", "one"])
    source = source_of(path, 10**6)
    with closing(source):
        (chunk,) = (chunk for batch in source.batches(runs.START[0]) for chunk in source.chunks(batch))
    assert [find_origin(chunk, document)[1] for document in range(2)] == ["0", "1"]


@pytest.mark.parametrize(("name", "delimiter"), [("semi.csv", ";"), ("tabs.csv", "\t"), ("commas.tsv", ",")])
def test_columns_that_something_else_separates_are_told(tmp_path: Path, name: str, delimiter: str) -> None:
    """With what may separate them."""
    path = tmp_path / name
    path.write_text(delimiter.join(["id", "text", "x"]) + "\n" + delimiter.join(["1", "some words", "2"]))
    with pytest.raises(BadFileError, match="there is no column 'text'") as error:
        runs.encode_inline(path)
    assert error.value.hint.startswith("Columns are separated by commas (--format csv) or tabs (--format tsv)")
