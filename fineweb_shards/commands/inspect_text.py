"""What `inspect` found, for people and for programs. Everything from a document is made safe to show."""

from __future__ import annotations

from typing import Any

import numpy as np

from fineweb_shards.layouts.llm_c import HEADERS
from fineweb_shards.reading.inspection import Match, Target
from fineweb_shards.reading.token_file import TokenFile
from fineweb_shards.reading.token_statistics import TokenStatistics, bucket_range
from fineweb_shards.system.terminal import safe_text
from fineweb_shards.tokenizers.decoder import decode
from fineweb_shards.units import show_bytes, show_count, show_number_of
from fineweb_shards.vocabulary import Vocabulary

_KINDS = {
    "npy": "NumPy array, 1.0",
    "raw": "no header",
}
_SHOWN_FILES = 12
_SHOWN_TOKENS = 12
_BAR_WIDTH = 40


def statistics_lines(target: Target, found: TokenStatistics) -> list[str]:
    """The whole view."""
    position = "before" if target.eot_first else "after"
    rows = [_file_row(file) for file in target.files[:_SHOWN_FILES]]
    if len(target.files) > _SHOWN_FILES:
        rows.append(f"{'':<10} … and {len(target.files) - _SHOWN_FILES:,} more")
    rows += [
        f"{'tokens':<10} {found.tokens:,}",
        f"{'documents':<10} {found.documents:,}, EOT {position} each",
    ]
    if found.head_tokens:
        rest = f"{show_number_of(found.head_tokens, 'token')} of one that began before"
        rows.append(f"{'begins':<10} in the middle of a document, with {rest}")
    if found.documents:
        mean = (found.tokens - found.borders - found.head_tokens) / found.documents
        rows.append(f"{'length':<10} {mean:,.1f} tokens on average, the longest {found.longest:,}")
        rows.append(
            f"{'text':<10} {show_bytes(found.text_bytes)}, {found.bytes_per_token:.2f} bytes per token"
        )
    if found.outside:
        rows.append(
            f"{'damage':<10} {found.outside:,} tokens are outside the vocabulary of {found.vocabulary.size:,}"
        )
    return [*rows, "", *_histogram_lines(found), "", *_frequency_lines(found)]


def statistics_json(target: Target, found: TokenStatistics, frequent: int = 100) -> dict[str, Any]:
    """The same for programs."""
    return {
        "files": [
            {
                "name": file.path.name,
                "kind": file.kind,
                "header_bytes": file.header_bytes,
                "dtype": file.dtype.name,
                "tokens": file.tokens,
            }
            for file in target.files
        ],
        "eot_first": target.eot_first,
        "tokens": found.tokens,
        "documents": found.documents,
        "rest_tokens": found.head_tokens,
        "longest_document_tokens": found.longest,
        "text_bytes": found.text_bytes,
        "bytes_per_token": found.bytes_per_token,
        "tokens_outside_vocabulary": found.outside,
        "document_lengths": [
            {"from": bucket_range(bucket)[0], "to": bucket_range(bucket)[1], "documents": int(documents)}
            for bucket, documents in enumerate(found.lengths)
            if documents
        ],
        "frequent_tokens": [
            {"token": token, "count": times, "text": _spell(token, found.vocabulary)}
            for token, times in found.most_frequent(frequent)
        ],
    }


def match_line(match: Match) -> str:
    """One line for a document that holds the text."""
    before = safe_text(match.before, 200)[-40:]
    number = "rest" if match.document < 0 else str(match.document)  # of a document in the shard before
    return f"{number}: {before}{_gap(match.before[-1:])}{safe_text(match.text, 200)}" + (
        f"{_gap(match.after[:1])}{safe_text(match.after, 40)}"
    )


def _gap(char: str) -> str:
    """The white space that `safe_text` takes off an end."""
    return " " if char.isspace() else ""


def _file_row(file: TokenFile) -> str:
    version = HEADERS[file.dtype.itemsize][1]
    kind = _KINDS.get(file.kind) or f"llm.c header, version {version}"
    tokens = show_number_of(file.tokens, "token")
    return f"{'file':<10} {safe_text(file.path.name, 60)}: {tokens}, {kind}, {file.dtype.name}"


def _histogram_lines(found: TokenStatistics) -> list[str]:
    """Document lengths in powers of two, as bars."""
    used = [bucket for bucket, documents in enumerate(found.lengths) if documents]
    if not used:
        return ["no documents"]
    most = int(found.lengths.max())
    lines = [f"{'length':>17} {'documents':>12}"]
    for bucket in range(used[0], used[-1] + 1):
        first, last = bucket_range(bucket)
        name = f"{first:,}" if first == last else f"{show_count(first)} to {show_count(last)}"
        documents = int(found.lengths[bucket])
        bar = "#" * -(-documents * _BAR_WIDTH // most)
        lines.append(f"{name:>17} {documents:>12,} {bar}".rstrip())
    return lines


def _frequency_lines(found: TokenStatistics) -> list[str]:
    text_tokens = max(1, found.tokens - found.borders)
    lines = [f"{'token':>17} {'times':>12} {'share':>7}"]
    for token, times in found.most_frequent(_SHOWN_TOKENS):
        lines.append(f"{_spell(token, found.vocabulary):>17} {times:>12,} {times / text_tokens:>7.2%}")
    return lines


def _spell(token: int, vocabulary: Vocabulary) -> str:
    """A token as a Python string shows it: white space is seen, nothing reaches the terminal raw; half a
    character is shown as its bytes."""
    data = decode(np.array([token], vocabulary.dtype), vocabulary)
    return ascii(data.decode("utf-8", "backslashreplace"))
