"""Check from the beginning of a file that it is text, before it is read as text.

A single invalid byte becomes U+FFFD and is counted; a file that is full of such bytes is a PDF, a picture, or
text in another encoding, and what is left of it is useless for training.
"""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from fineweb_shards.errors import BadFileError
from fineweb_shards.formats.base import decode_text
from fineweb_shards.storage.place import STANDARD_INPUT, InputFile
from fineweb_shards.texts import Texts

SAMPLE_BYTES = 64 * 1024
# European text in Latin-1 has up to 15 % of bytes that are no UTF-8, random bytes have 45 %, and
# Russian in KOI8-R or Chinese in GBK have more than 60.
_MOST_ILLEGIBLE = 1 / 4
_LEAST_ILLEGIBLE_BYTES = 4  # a file may hold nothing but a name in Latin-1
_FEW_CONTROLS = 1 / 100  # text in any 8-bit encoding has fewer control characters
_CONTINUATIONS = bytes(
    range(0x80, 0xC0)
)  # of a character, after its first byte: a sample may begin with them
_CONTROLS_OF_LATIN_1 = {*range(0x80, 0xA0)}  # letters and quotes in Windows' encodings
_ASCII = bytes(range(128))
_CONTROLS = bytes({*range(32), 127} - {*b"\b\t\n\v\f\r\x1b"})

_WIDE_MARKS = {  # the longer first: the mark of UTF-32LE begins with that of UTF-16LE
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_WIDE = {"utf-32-le": "UTF-32LE", "utf-32-be": "UTF-32BE", "utf-16-le": "UTF-16LE", "utf-16-be": "UTF-16BE"}
# Every text has some of these: space, line end, and the Chinese space, comma and full stop. Bytes that are
# not UTF-16 or UTF-32 hardly ever decode to them.
_COMMON = " \n\u3000\u3001\u3002"
_COMMON_SHARE = 1 / 100

_KINDS = {
    b"%PDF-": ("a PDF", "Extract its text first, with pdftotext for example"),
    b"PAR1": ("a parquet file", "Name it .parquet, or say --format parquet"),
    b"ARROW1\0\0": ("an Arrow file", "Write its table as parquet first, with pyarrow for example"),
    b"\xff\xff\xff\xff": ("an Arrow stream", "Write it as parquet first: Dataset.to_parquet of `datasets`"),
    b"FEA1": ("a Feather file", "Write its table as parquet first, with pyarrow for example"),
    b"PK\x03\x04": ("a zip file", "Unpack it first"),
    b"\x1f\x8b": ("a gzip file", "Its name must end in .gz"),
    b"\x28\xb5\x2f\xfd": ("a zstd file", "Its name must end in .zst"),
    b"BZh": ("a bzip2 file", "Unpack it first"),
    b"\xfd7zXZ\0": ("an xz file", "Unpack it first"),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip file", "Unpack it first"),
    b"\x7fELF": ("a program", "Check --input"),
    b"\x89PNG": ("a picture", "Check --input"),
    b"\xff\xd8\xff": ("a picture", "Check --input"),
    b"\x93NUMPY": ("an array of NumPy", "Check --input"),
}


def check_is_text(file: InputFile, head: bytes) -> None:
    """Raise BadFileError for a file that is no text; `head` is its first SAMPLE_BYTES, or all of it."""
    controls = len(head) - len(head.translate(None, _CONTROLS))
    invalid = _count_invalid(head)
    illegible = controls + invalid
    # Nearly any two bytes are a character of UTF-16: UTF-8 with a few NULs must not be taken for it.
    is_utf8 = not invalid and illegible <= _MOST_ILLEGIBLE * len(head)
    if (encoding := _find_wide_encoding(head, marked_only=is_utf8)) is not None:
        raise _refuse(file, f"this text is {encoding}", convert_hint(file, encoding))
    kind, next_step = next((_KINDS[magic] for magic in _KINDS if head.startswith(magic)), (None, ""))
    if kind is not None and illegible:
        raise _refuse(file, f"this is {kind}, no text", next_step)
    if illegible < _LEAST_ILLEGIBLE_BYTES or illegible <= _MOST_ILLEGIBLE * len(head):
        return
    share = f"{illegible / len(head):.0%} of its first {len(head):,} bytes".replace("%", " %")
    if controls <= _FEW_CONTROLS * len(head):
        raise _refuse(
            file, f"this text is in another encoding: {share} are no UTF-8", convert_hint(file, "ENCODING")
        )
    raise _refuse(file, f"this is no text: {share} are neither UTF-8 nor printable", "Check --input")


def _refuse(file: InputFile, sentence: str, next_step: str) -> BadFileError:
    return BadFileError(f"{file.path}: {sentence}.", f"{next_step}; or leave it out: --on-bad-file skip.")


def _count_invalid(head: bytes) -> int:
    """Count invalid UTF-8 sequences, except a character that is cut by the end of the sample."""
    if head.isascii():
        return 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(head, final=len(head) < SAMPLE_BYTES)
    return text.count("\ufffd") - head.count("\ufffd".encode())


def guess_encoding(samples: Sequence[bytes]) -> str | None:
    """Return the 8-bit encoding that a text seems to have, by samples; None if it is UTF-8, also with a few
    bad bytes, which no conversion would mend."""
    invalid = valid = 0
    for sample in samples:
        if not sample.isascii():
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(sample.lstrip(_CONTINUATIONS))
            invalid += (replaced := text.count("\ufffd"))
            valid += len(text.encode().translate(None, _ASCII).decode()) - replaced
    if not invalid or valid >= invalid:
        return None
    return "WINDOWS-1252" if any(set(sample) & _CONTROLS_OF_LATIN_1 for sample in samples) else "ISO-8859-1"


def _find_wide_encoding(head: bytes, *, marked_only: bool) -> str | None:
    """Recognise UTF-16 and UTF-32 by their marks or, unless `marked_only`, by common characters; None if the
    text is neither."""
    for mark, name in _WIDE_MARKS.items():
        if head.startswith(mark):
            return name
    if marked_only:
        return None
    for codec, name in _WIDE.items():
        try:
            text = codecs.getincrementaldecoder(codec)("strict").decode(head)
        except UnicodeDecodeError:
            continue
        if text and sum(map(text.count, _COMMON)) > _COMMON_SHARE * len(text):
            return name
    return None


def convert_hint(file: InputFile, encoding: str) -> str:
    """Say how to convert a file from another encoding, in a line that can be pasted."""
    convert = f"iconv -f {encoding} -t UTF-8"
    if file.path == STANDARD_INPUT:
        return f"Convert it first: … | {convert} | fineweb-shards …"
    path = shlex.quote(file.path)
    unpack = {"gzip": "zcat", "zstd": "zstdcat"}.get(file.compression or "")
    words = f"{unpack} {path} | {convert}" if unpack else f"{convert} {path}"
    return f"Convert it first: {words} > converted.txt"


# Check that bytes are UTF-8, and replace those that are not.


def decode_texts(pieces: Iterable[bytes]) -> tuple[Texts, int]:
    """Hold pieces of bytes as texts; return them, and the number of characters that replace invalid bytes."""
    decoded = [decode_text(piece) for piece in pieces]
    return Texts.from_strings(text for text, _ in decoded), sum(replaced for _, replaced in decoded)


def is_utf8(data: bytes | memoryview) -> bool:
    """Tell whether bytes are valid UTF-8. Makes no copy of them, unlike `decode`."""
    boundaries = np.array([0, len(data)], np.int64)
    text = pa.LargeStringArray.from_buffers(1, pa.py_buffer(boundaries), pa.py_buffer(data))
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
