"""Text files: documents as people expect them, in batches of any size, resumable anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.ranges import BlankLine, Line, Literal
from tests.support import reference, runs
from tests.support.inputs import write_text

SEPARATORS = ["blank", "line", "none", "<|endoftext|>", "--", "aXa", "\n\n", "\r", "\r\r"]


def split_plainly(text: str, separator: str) -> list[str]:
    """What the docstring of formats/text.py promises, in the most obvious way."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if separator == "none":
        pieces = [text]
    elif separator == "line":
        pieces = text.split("\n")
    elif separator == "blank":
        pieces = re.split(r"\n\n+", text.lstrip("\n"))
    else:
        pieces = text.split(separator.replace("\r\n", "\n"))
    return [piece for piece in pieces if piece]


def tokens_of(path: Path, out: Path, **settings: object) -> np.ndarray:
    """The stream of a build, read back from its shards."""
    runs.build_inline(out, path, **settings)
    shards = sorted(out.glob("*.npy"), key=lambda shard: shard.name[-10:])
    return np.concatenate([np.load(shard) for shard in shards]) if shards else np.array([], np.uint16)


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("batch_bytes", [1024, 3000])
def test_documents_are_what_stands_between_separators(tmp_path: Path, separator: str, batch_bytes: int) -> None:
    """Over thousands of bytes of adjoining, overlapping and missing separators."""
    pieces = ["one two", "", "three\nfour", "--", "-----", "aXaXa", "\n", "\n\n\n", "x" * 3000, "<|endoftext|>"]
    pieces += ["word " * 700, "\r\n\r\n", "five\r\nsix", "的一是不了" * 500, " "]
    text = "".join(f"{piece}{pieces[i * 7 % len(pieces)]}{i}" for i, piece in enumerate(pieces * 4))
    path = tmp_path / "input.txt"
    path.write_bytes(text.encode())
    found = tokens_of(path, tmp_path / "out", separator=separator, batch_bytes=batch_bytes)
    assert found.tolist() == reference.stream(split_plainly(text, separator)).tolist()


@given(st.text(alphabet="ab\n\r -X", max_size=300), st.sampled_from(SEPARATORS))
def test_splitting_does_not_depend_on_where_a_range_ends(text: str, separator: str) -> None:
    """A range that ends at a boundary found from the middle of the text splits like the whole text."""
    data = text.encode()
    if separator not in ("\r", "\r\r"):
        data = data.replace(b"\r\n", b"\n")
    kind = {"blank": BlankLine, "line": Line}.get(separator)
    if separator == "none":
        return
    splitter = kind() if kind else Literal(separator)
    expected = [piece.encode() for piece in split_plainly(data.decode(), separator)]
    for target in range(splitter.lookback, len(data)):
        boundary = splitter.find_boundary(data[target - splitter.lookback :])
        if boundary is None:
            continue
        place = target - splitter.lookback + boundary
        pieces = [
            part[start:end]
            for part in (data[:place], data[place:])
            for start, end in zip(*splitter.split(part, False), strict=True)
        ]
        assert [piece.replace(b"\r\n", b"\n") for piece in pieces if piece] == expected


def test_auto_finds_the_separator(tmp_path: Path) -> None:
    """<|endoftext|> where it stands between documents, also late in the file, else a blank line."""
    documents = ["one\n\ntwo", "three", "four"]
    marked = write_text(tmp_path / "marked.txt", documents)
    plain = write_text(tmp_path / "plain.txt", documents, "\n\n")
    late = tmp_path / "late.txt"
    late.write_bytes(b"a\n\n" + b"b " * 2**19 + b"\n\nc<|endoftext|>d")
    assert tokens_of(marked, tmp_path / "1").tolist() == reference.stream(documents).tolist()
    assert tokens_of(plain, tmp_path / "2").tolist() == reference.stream(["one", "two", "three", "four"]).tolist()
    expected = reference.stream(["a\n\n" + "b " * 2**19 + "\n\nc", "d"])
    assert tokens_of(late, tmp_path / "3").tolist() == expected.tolist()


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    """A Windows file gives the tokens of the same file with Unix line ends; a lone CR stays."""
    unix = tmp_path / "unix.txt"
    windows = tmp_path / "windows.txt"
    text = "first line\nsecond\rline\n\nnext document\n"
    unix.write_bytes(text.encode())
    windows.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    for separator in ("auto", "line", "none"):
        one = tokens_of(unix, tmp_path / f"u{separator}", separator=separator)
        other = tokens_of(windows, tmp_path / f"w{separator}", separator=separator)
        assert one.tolist() == other.tolist()
        assert one.tolist() == reference.stream(split_plainly(text, separator.replace("auto", "blank"))).tolist()


def test_utf16_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Instead of a file full of replacement characters."""
    path = tmp_path / "wide.txt"
    path.write_bytes("text".encode("utf-16"))
    with pytest.raises(BadFileError, match="not text in UTF-8: the byte at 0 is 0xff") as error:
        runs.build_inline(tmp_path / "out", path)
    assert "iconv" in error.value.hint


def test_invalid_utf8_is_replaced_and_counted(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 become U+FFFD; a real U+FFFD is not counted."""
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good \xff bad \xe5\xa5 \xef\xbf\xbd real\n\n\x80\x80 more")
    manifest = runs.build_inline(tmp_path / "out", path)
    assert manifest.totals["replaced_characters"] == 4
    expected = reference.stream(["good \ufffd bad \ufffd \ufffd real", "\ufffd\ufffd more"])
    assert np.load(tmp_path / "out" / "edufineweb_val_000000.npy").tolist() == expected.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "word and word " * 2000,
        "的一是不了人我在有他这为之" * 1200,
        "a" * 30_000,
        "ab" * 15_000,
        " " * 20_000 + "end",
        "\n" * 20_000,
        "'s" * 10_000,
        "=-" * 9_000,
        "é" * 9_000,
    ],
)
def test_one_document_longer_than_many_batches_and_shards(tmp_path: Path, text: str) -> None:
    """Cut at safe places and at seams, over shards shorter than the document; and resumed from every shard, with
    another batch size, the rest is the same."""
    path = tmp_path / "long.txt"
    path.write_bytes(text.encode())
    whole = reference.stream([text])
    settings = {"separator": "none", "shard_tokens": max(100, len(whole) // 4)}
    manifest = runs.build_inline(tmp_path / "out", path, batch_bytes=1024, **settings)
    expected = reference.shard_files(whole, settings["shard_tokens"])
    assert runs.shards_in(tmp_path / "out") == expected
    for record in manifest.shards[1:]:
        (tmp_path / "out" / record.name).unlink()
        runs.build_inline(tmp_path / "out", path, batch_bytes=1500, **settings)
        assert runs.shards_in(tmp_path / "out") == expected


def test_an_empty_file_is_no_document(tmp_path: Path) -> None:
    """And an input of nothing makes a complete run without a shard."""
    path = tmp_path / "empty.txt"
    path.write_bytes(b"")
    manifest = runs.build_inline(tmp_path / "out", path)
    assert manifest.complete
    assert manifest.shards == ()


@pytest.mark.parametrize("data", [b"abc\r", b"\r" * 5000, b"a\r\nb\r\n\rc\r"])
def test_lone_carriage_returns_stay_in_lines(tmp_path: Path, data: bytes) -> None:
    """Only the CR of a CRLF belongs to the line end, also where a long line is cut."""
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    found = tokens_of(path, tmp_path / "out", separator="line", batch_bytes=1024)
    assert found.tolist() == reference.stream(split_plainly(data.decode(), "line")).tolist()


@pytest.mark.full
@pytest.mark.parametrize("separator", ["\r", "\r\r", "x\r"])
def test_a_carriage_return_in_a_separator_is_a_lone_one(tmp_path: Path, separator: str) -> None:
    """CRLF is read as LF, wherever a window ends; so that a CR of one separates nothing."""
    path = tmp_path / "a.txt"
    line = "ab\r\ncx\r\r\nd\rex\rf\r\rg\r\n"
    for shift in range(3):
        text = "x" * shift + line * 9000  # over two windows of 64 KiB
        path.write_bytes(text.encode())
        expected = reference.stream(split_plainly(text, separator)).tolist()
        for batch_bytes in (1024, 10**6):
            found = runs.encode_inline(path, separator=separator, batch_bytes=batch_bytes)[0]
            assert found == expected


@pytest.mark.parametrize("before", range(14))
def test_a_separator_is_never_torn(tmp_path: Path, before: int) -> None:
    """However it lies to the place where a long document would be cut."""
    separator = b"<|endoftext|>"
    path = tmp_path / "a.txt"
    path.write_bytes(b"x " * (65536 - before // 2) + b"x" * (before % 2) + separator + b"y " * 70_000)
    found = tokens_of(path, tmp_path / "out", separator=separator.decode(), batch_bytes=65536)
    documents = path.read_text().split(separator.decode())
    assert found.tolist() == reference.stream(documents).tolist()


@pytest.mark.parametrize("separator", ["--", "---", "-|-", "aa", "\n\n"])
@pytest.mark.parametrize("length", [20_000, 20_001])
def test_long_runs_of_overlapping_separators(tmp_path: Path, separator: str, length: int) -> None:
    """Where one begins to count decides; we count as str.split does."""
    text = "first" + (separator[0] if separator != "-|-" else "-|") * length + " last"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    found = tokens_of(path, tmp_path / "out", separator=separator, batch_bytes=1024)
    assert found.tolist() == reference.stream(split_plainly(text, separator)).tolist()


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    """Instead of a shorter result that looks complete."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"some words\n\n" * 1000)
    source = runs.job_of(tmp_path / "out", path, batch_bytes=1024).source
    batches = list(source.batches(runs.START))
    path.write_bytes(b"short")
    with pytest.raises(BadFileError, match="has become shorter"):
        list(source.chunks(batches[-1]))
    source.close()
