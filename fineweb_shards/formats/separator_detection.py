"""Find what separates the documents of a text file, in samples from several places of it.

`<|endoftext|>` where it stands between documents; else blank lines, if they are throughout the file; else
nothing, and then the user is asked before anything is encoded: a file with a document on each line must not
become one document, because a model trained on that never sees an end of text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fineweb_shards.errors import UsageError
from fineweb_shards.formats.registry import TEXT
from fineweb_shards.formats.views import ByteView, StreamView
from fineweb_shards.storage.place import InputFile
from fineweb_shards.units import show_number_of

AUTO = "auto"
END_OF_TEXT = "<|endoftext|>"
HEAD_BYTES = 2**20  # the first sample, and the only one of a stream
SAMPLE_BYTES = 64 * 1024  # every other one
_REMOTE_SAMPLES = 4  # each may be a request
# In a folder begun by an earlier version, which looked at the first MiB only and else took blank lines.
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
    """Return what separates documents in a text, by samples of which the first is its beginning."""
    if any(map(_MARK.search, samples)):
        return END_OF_TEXT
    shares = [_share_with_blank_lines(sample) for sample in samples if sample.strip(b"\r\n")]
    if not shares or sum(shares) >= _BLANK_SHARE * len(shares):
        return "blank"
    # A text on one line is one document, whatever separates documents.
    return _UNKNOWN if any(b"\n" in sample.strip(b"\r\n") for sample in samples) else "blank"


def _share_with_blank_lines(sample: bytes) -> float:
    """Return how many of a sample's pieces have a blank line in the middle of text, from 0 to 1."""
    text = sample.strip(b"\r\n")
    pieces = [text[start : start + SAMPLE_BYTES] for start in range(0, len(text), SAMPLE_BYTES)]
    return sum(_BLANK.search(piece) is not None for piece in pieces) / len(pieces)


def find_separator(file: InputFile, view: ByteView) -> str:
    """Return what separates the documents of a text: what was found before the run, or what is found now in
    a file that was not on this machine."""
    if file.separator in ("blank", END_OF_TEXT):
        return file.separator
    samples = [view.read_at(0, HEAD_BYTES)]
    if file.separator == _FIRST_MIB:
        return END_OF_TEXT if END_OF_TEXT.encode() in samples[0] else "blank"
    if not isinstance(view, StreamView) and view.size_bytes > HEAD_BYTES:
        offsets = sample_offsets(view.size_bytes, _REMOTE_SAMPLES)[1:]
        samples += [view.read_at(offset, SAMPLE_BYTES) for offset in offsets]
    found = detect_separator(samples)
    if found == _UNKNOWN and file.size_bytes > SAMPLE_BYTES:
        raise _ask(file)
    return "blank" if found == _UNKNOWN else found


def settle_separators(files: Sequence[InputFile]) -> tuple[tuple[InputFile, ...], str | None]:
    """Return the files, each text with its separator, and a note about those in which none was found. If such
    a one is large, or alone, raise UsageError: only the user knows. A small file among others is most likely
    a document. Texts that are not on this machine are looked at when they are read."""
    texts = [file for file in files if file.format == TEXT and file.problem is None]
    unknown = [file for file in texts if file.separator == _UNKNOWN]
    for file in unknown:
        if len(texts) == 1 or file.size_bytes > SAMPLE_BYTES or file.compression or file.is_pipe:
            raise _ask(file)
    settled = {file.index: file.separator or AUTO for file in texts} | dict.fromkeys(
        (file.index for file in unknown), "blank"
    )
    note = None
    if unknown:
        few = ", ".join(file.name for file in unknown[:3]) + (", …" if len(unknown) > 3 else "")
        each = "is one document" if len(unknown) == 1 else "are one document each"
        note = (
            f"{show_number_of(len(unknown), 'text file')} without blank lines {each}: {few} "
            "(every line one: --separator line)"
        )
    return tuple(
        file
        if file.separator == settled.get(file.index, "")
        else replace(file, separator=settled[file.index])
        for file in files
    ), note


def given_separators(texts: Iterable[InputFile], setting: str) -> set[str]:
    """Return the separators of texts, as far as they are known before the texts are read."""
    names = {file.separator if setting == AUTO else setting for file in texts}
    return names - {"", AUTO, _FIRST_MIB}


def recorded_separators(
    files: Sequence[InputFile], recorded: Sequence[dict[str, Any]]
) -> tuple[InputFile, ...]:
    """Return the files with the separators that a manifest records: a resume keeps them."""
    known = [str(record.get("separator", _FIRST_MIB)) for record in recorded]
    known += [_FIRST_MIB] * (len(files) - len(known))  # more files than before: refused elsewhere
    return tuple(
        replace(file, separator=known[file.index]) if file.format == TEXT else file for file in files
    )


def _ask(file: InputFile) -> UsageError:
    return UsageError(
        f"{file.path}: nothing was found that separates documents: neither {END_OF_TEXT} nor blank lines "
        "throughout the file.",
        "Say what does. Each line a document: --separator line; the whole file one: --separator none; or any "
        "string between documents: --separator TEXT",
    )
