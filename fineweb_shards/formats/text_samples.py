"""Look at samples of a text file before reading it: is it text, and what separates its documents?

A single invalid byte becomes U+FFFD and is counted. A file full of them is a PDF, a picture, or text in another
encoding, and useless for training. Which of them is not guessed.

Documents are separated by `<|endoftext|>`, if it stands between them; else by blank lines, if they occur throughout the
file. Otherwise the user is asked before anything is encoded: a file with a document on each line must not become one
document, because a model trained on that never sees an end of text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fineweb_shards.errors import BadFileError, UsageError
from fineweb_shards.formats.ranges import ByteView, StreamView
from fineweb_shards.formats.registry import TEXT
from fineweb_shards.storage.place import InputFile
from fineweb_shards.units import first_few, show_number_of

SAMPLE_BYTES = 64 * 1024
HEAD_BYTES = 2**20  # the first sample for detecting separators, and the only one of a stream

# In European text in Latin-1 up to 15 % of the bytes are invalid UTF-8, in random bytes 45 %, and in Russian in KOI8-R
# or Chinese in GBK more than 60 %.
_MOST_ILLEGIBLE = 1 / 4
_LEAST_ILLEGIBLE_BYTES = 4  # a file may consist of a name in Latin-1
# Controls other than \b \t \n \v \f \r and ESC, and what the error handler `surrogateescape` makes of invalid bytes.
_ILLEGIBLE = re.compile("[\0-\x07\x0e-\x1a\x1c-\x1f\x7f\udc80-\udcff]")
# How files begin of which a large part may be legible: UTF-16; PDF, parquet, Arrow (a file, a stream) and zip.
_NOT_TEXT = (b"\xff\xfe", b"\xfe\xff", b"%PDF-", b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff", b"PK\x03\x04")


def check_is_text(file: InputFile, head: bytes) -> None:
    """Raise BadFileError for a file that is not text in UTF-8; `head` is its first SAMPLE_BYTES, or all of it."""
    # A character cut off by the end of the sample is not invalid.
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text = decoder.decode(head, final=len(head) < SAMPLE_BYTES)
    illegible = _ILLEGIBLE.findall(text)
    allowed = 0 if head.startswith(_NOT_TEXT) else max(_LEAST_ILLEGIBLE_BYTES - 1, _MOST_ILLEGIBLE * len(head))
    if len(illegible) > allowed:
        place = len(text[: text.index(illegible[0])].encode())
        raise BadFileError(
            f"{file.path}: this is not text in UTF-8: the byte at {place:,} is 0x{head[place]:02x}.",
            "Check --input. Convert text in another encoding first: iconv -f ENCODING -t UTF-8 FILE > converted.txt; "
            "or leave the file out: --on-bad-file skip.",
        )


# What separates documents

AUTO = "auto"
END_OF_TEXT = "<|endoftext|>"
_REMOTE_SAMPLES = 4  # each may be a request
# In a folder begun by an earlier version, which looked only at the first MiB, and took blank lines by default.
_FIRST_MIB = "first MiB"
_UNKNOWN = "unknown"
# On a line of its own, or with a document directly before and after it; not in quotes or in a sentence.
_MARK = re.compile(rb"(?<![ \t`'\"(\[])<\|endoftext\|>(?![ \t`'\")\],.;:])")
_BLANK = re.compile(rb"\n\r?\n")
_BLANK_SHARE = 1 / 2  # of the pieces of a sample, on average


def sample_offsets(size_bytes: int, samples: int) -> list[int]:
    """Return where to look: at the beginning, and evenly spread over the rest, including the end."""
    last = max(0, size_bytes - SAMPLE_BYTES)
    return sorted({last * number // (samples - 1) for number in range(samples)})


def detect_separator(samples: Sequence[bytes]) -> str:
    """Return the separator of a text, from samples of which the first is its beginning."""
    if any(map(_MARK.search, samples)):
        return END_OF_TEXT
    texts = [text for sample in samples if (text := sample.strip(b"\r\n"))]
    if not any(b"\n" in text for text in texts):  # one line is one document, whatever separates documents
        return "blank"
    shares = []  # of each text's pieces with a blank line in the middle
    for text in texts:
        pieces = [text[start : start + SAMPLE_BYTES] for start in range(0, len(text), SAMPLE_BYTES)]
        shares.append(np.mean([_BLANK.search(piece) is not None for piece in pieces]))
    return "blank" if np.mean(shares) >= _BLANK_SHARE else _UNKNOWN


def find_separator(file: InputFile, view: ByteView) -> str:
    """Return the separator of a text, detected before the run or, in a remote or compressed file, now."""
    if file.separator in ("blank", END_OF_TEXT):
        return file.separator
    samples = [view.read_at(0, HEAD_BYTES)]
    if file.separator == _FIRST_MIB:
        return END_OF_TEXT if END_OF_TEXT.encode() in samples[0] else "blank"
    if not isinstance(view, StreamView) and view.size_bytes > HEAD_BYTES:
        offsets = sample_offsets(view.size_bytes, _REMOTE_SAMPLES)[1:]
        samples += [view.read_at(offset, SAMPLE_BYTES) for offset in offsets]
    found = detect_separator(samples)
    if found == _UNKNOWN and (file.compression or file.size_bytes > SAMPLE_BYTES):
        raise _ask(file)
    return "blank" if found == _UNKNOWN else found


def settle_separators(files: Sequence[InputFile]) -> tuple[tuple[InputFile, ...], str | None]:
    """Return the files, each text with its separator, and a note about texts without a detected one. If such a text is
    large, or the only one, raise UsageError, because only the user knows; a small file among others is most likely one
    document. Compressed and remote texts are examined when they are read."""
    texts = [file for file in files if file.format == TEXT and file.problem is None]
    unknown = [file for file in texts if file.separator == _UNKNOWN]
    for file in unknown:
        if len(texts) == 1 or file.size_bytes > SAMPLE_BYTES or file.is_pipe:
            raise _ask(file)
    settled = {file.index: file.separator or AUTO for file in texts} | {file.index: "blank" for file in unknown}
    found = tuple(replace(file, separator=settled.get(file.index, file.separator)) for file in files)
    if not unknown:
        return found, None
    each = "is one document" if len(unknown) == 1 else "are one document each"
    return found, (
        f"{show_number_of(len(unknown), 'text file')} without blank lines {each}: "
        f"{first_few([file.name for file in unknown])} (if every line is one: --separator line)"
    )


def given_separators(texts: Iterable[InputFile], setting: str) -> set[str]:
    names = {file.separator if setting == AUTO else setting for file in texts}
    return names - {"", AUTO, _FIRST_MIB}


def recorded_separators(files: Sequence[InputFile], recorded: Sequence[dict[str, Any]]) -> tuple[InputFile, ...]:
    """Return the files with the separators from a manifest: a resume keeps them."""
    known = [str(record.get("separator", _FIRST_MIB)) for record in recorded]
    known += [_FIRST_MIB] * (len(files) - len(known))  # more files than before: refused elsewhere
    return tuple(replace(file, separator=known[file.index]) if file.format == TEXT else file for file in files)


def _ask(file: InputFile) -> UsageError:
    return UsageError(
        f"{file.path}: no separator between documents was found: neither {END_OF_TEXT} nor blank lines "
        "throughout the file.",
        "Name it. If each line is a document: --separator line; if the whole file is one: --separator none; "
        "otherwise the string between documents: --separator TEXT",
    )
