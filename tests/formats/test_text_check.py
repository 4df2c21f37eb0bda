"""Files that are no text are refused by name, or left out; a few bad bytes are not held against a text."""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from pathlib import Path

import pytest

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.text_samples import SAMPLE_BYTES, check_is_text
from fineweb_shards.storage.place import InputFile
from tests.support import reference, runs
from tests.support.inputs import write_text

RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива.\n" * 50
CHINESE = "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。\n" * 100
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n" * 60
CZECH = "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.\n" * 20
GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n" * 20
NOISE = random.Random(6).randbytes(5000)
PDF = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<< /Type /Catalog >>\nendobj\n" * 9 + zlib.compress(NOISE)

# With the first byte that is neither UTF-8 nor printable.
NO_TEXT = [
    (PDF, 10),
    (NOISE, 0),
    (b"PK\x03\x04" + NOISE, 2),
    (gzip.compress(b"text"), 0),
    (b"PAR1" + NOISE, 4),
    (b"PAR1" + b"text" * 100 + b"\0", 404),
    (b"ARROW1\0\0" + NOISE, 6),
    (b"\xff\xff\xff\xff" + b"text" * 100, 0),
    (bytes(1000), 0),
    (Path(sys.executable).resolve().read_bytes()[:SAMPLE_BYTES], 0),
    (RUSSIAN.encode("koi8-r"), 0),
    (CHINESE.encode("gbk"), 0),
    ("Some words.\n".encode("utf-16"), 0),
    ("Some words.\n".encode("utf-32"), 0),
    ("Some words.\n".encode("utf-16-le"), 1),
    (JAPANESE.encode("utf-16"), 0),
    (RUSSIAN.encode("utf-32-le"), 0),
]
TEXT = [
    GERMAN.encode("latin-1"),
    CZECH.encode("iso-8859-2"),
    CHINESE.encode(),
    JAPANESE.encode(),
    b"Caf\xe9",
    b"a line\0with a NUL\n" * 10,
    b"\x1b[31mred\x1b[0m\n" * 50,
    b"%PDF- is how a PDF begins",
    b"",
    "\ufeffmarked".encode(),
    "的".encode() * (SAMPLE_BYTES // 3 + 1),
]


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_what_is_no_text_is_refused_or_left_out(tmp_path: Path, name: str) -> None:
    """With the file's name and the next step; the others are there in full."""
    path, last = tmp_path / name, write_text(tmp_path / "z.txt", ["The next file."])
    for data, place in NO_TEXT:
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        found = f"this is not text in UTF-8: the byte at {place} is 0x{data[place]:02x}"
        with pytest.raises(BadFileError, match=rf"{name}: {found}\.") as error:
            runs.encode_inline(path, last)
        assert "iconv -f ENCODING -t UTF-8 FILE > converted.txt" in error.value.hint
        assert "--on-bad-file skip" in error.value.hint
        tokens, counts = runs.encode_inline(path, last, on_bad_file="skip", batch_bytes=1024)
        assert tokens == reference.stream(["The next file."]).tolist()
        assert counts.bad_parts == 1


@pytest.mark.parametrize("data", TEXT, ids=range(len(TEXT)))
def test_a_text_with_some_bad_bytes_is_a_text(data: bytes) -> None:
    """Also in Latin-1 or Latin-2; every other language in UTF-8; and one that is cut by the sample's end."""
    check_is_text(InputFile(0, "a.txt", "a.txt", "text", None, len(data), 0, ""), data[:SAMPLE_BYTES])


@pytest.mark.parametrize(
    "data", [b"a \0b", b"Some words, \0and a line.\n" * 3, "天 \0地".encode(), b" \0" * 10 + b"text " * 40]
)
def test_utf8_with_a_nul_is_no_utf16(data: bytes) -> None:
    """Up to a quarter of the bytes may be control characters: pairs of them are no reason to take it for UTF-16."""
    check_is_text(InputFile(0, "a.txt", "a.txt", "text", None, len(data), 0, ""), data)


@pytest.mark.promise("bad text can't stop a run")
def test_bad_bytes_of_a_text_are_replaced(tmp_path: Path) -> None:
    """In a text file as in parquet: invalid UTF-8, NULs and controls are encoded all the same."""
    text = GERMAN.encode("latin-1") + b"\0\x01 \xff\xfe\xed\xa0\x80 <|endoftext|> end"
    (tmp_path / "a.txt").write_bytes(text)
    manifest = runs.build_inline(tmp_path / "out", tmp_path / "a.txt", separator="none")
    expected = reference.stream([text.decode("utf-8", "replace")])
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(expected, 10**9)
    assert manifest.totals["replaced_characters"] == text.decode("utf-8", "replace").count("\ufffd")


@pytest.mark.parametrize(
    ("name", "data", "text_bytes"),
    [("a.txt", b"Caf\xe9\r\nx", 6), ("a.csv", b"text\nCaf\xe9\n", 4), ("a.jsonl", b'{"text": "Caf\xe9"}\n', 6)],
)
def test_text_bytes_of_replaced_characters(tmp_path: Path, name: str, data: bytes, text_bytes: int) -> None:
    """As docs/reference.md says: those of the file; in JSON lines those of U+FFFD."""
    (tmp_path / name).write_bytes(data)
    counts = runs.encode_inline(tmp_path / name, separator="none")[1]
    assert (counts.text_bytes, counts.replaced_characters) == (text_bytes, 1)
