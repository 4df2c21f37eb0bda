"""`inspect`: show statistics of shards, print a document, search for a text, or write the tokens' bytes.

Everything from a document is made safe for a terminal before printing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fineweb_shards.commands.arguments import as_argument
from fineweb_shards.errors import NoMatch
from fineweb_shards.layouts.llm_c import HEADERS, LlmC
from fineweb_shards.reading import inspection
from fineweb_shards.reading.inspection import Match, Target, write_token_bytes
from fineweb_shards.reading.statistics import TokenStatistics, bucket_range
from fineweb_shards.system.terminal import printable, safe_text
from fineweb_shards.tokenizers.references import decode
from fineweb_shards.units import parse_count, show_bytes, show_count, show_number_of
from fineweb_shards.vocabulary import Vocabulary

_KINDS = {"npy": "NumPy array, 1.0", "raw": "no header"}
_SHOWN_FILES = 12
_SHOWN_TOKENS = 12
_FREQUENT_TOKENS = 100  # in JSON
_BAR_WIDTH = 40


def add_inspect_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="FILE|DIR", help="on this machine, or in a bucket (s3://…)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--document", metavar="N", type=as_argument(parse_count), help="show document N, counted from 0")
    what.add_argument("--random", action="store_true", help="show a random document")
    what.add_argument("--grep", metavar="TEXT", help="list the documents that contain TEXT")
    text = "write a .npy file with the number of bytes of every token id (0 for EOT), for bits per byte"
    what.add_argument("--token-bytes", metavar="FILE", type=Path, help=text)
    text = "with --random: show the same document each time"
    parser.add_argument("--seed", metavar="N", type=as_argument(parse_count), help=text)


def run_inspect(options: argparse.Namespace) -> None:
    target = inspection.open_target(options.path)
    if options.token_bytes is not None:
        path, vocabulary = options.token_bytes, target.vocabulary
        write_token_bytes(path, vocabulary)
        if options.json:
            print(json.dumps({"file": str(path), "vocabulary": vocabulary.name, "ids": vocabulary.size}))
        else:
            name = printable(str(path))
            print(f"{name}: number of bytes of each of the {vocabulary.size:,} ids of {vocabulary.name}")
        return
    if options.grep is not None:
        found_any = False
        for match in inspection.find_text(target, options.grep):
            found_any = True
            shown = json.dumps(dataclasses.asdict(match)) if options.json else match_line(match)
            print(shown, flush=True)  # as soon as it is found
        if not found_any:
            raise NoMatch("")  # exit code 1, like grep
        return
    number = options.document
    if options.random:
        number = inspection.choose_document(target, options.seed)
    if number is None:
        found = inspection.count(target)
        if options.json:
            print(json.dumps(statistics_json(target, found), indent=1))
        else:
            print("\n".join(statistics_lines(target, found)))
        return
    pieces = inspection.read_document(target, number)
    first = next(pieces, "")
    if options.json:
        print(json.dumps({"document": number, "text": first + "".join(pieces)}))
        return
    print(f"document {number:,} of {printable(target.location)}\n")
    for piece in (first, *pieces):
        sys.stdout.write(printable(piece))
    print()


def statistics_lines(target: Target, found: TokenStatistics) -> list[str]:
    position = "before" if target.eot_first else "after"
    rows = []
    for file in target.files[:_SHOWN_FILES]:
        version = f", version {HEADERS[file.dtype.itemsize][1]}" if file.kind == LlmC.name else ""
        kind = _KINDS.get(file.kind) or f"{file.kind} header{version}"
        tokens = show_number_of(file.tokens, "token")
        rows.append(f"{'file':<10} {safe_text(file.name, 60)}: {tokens}, {kind}, {file.dtype.name}")
    if len(target.files) > _SHOWN_FILES:
        rows.append(f"{'':<10} … and {len(target.files) - _SHOWN_FILES:,} more")
    rows += [f"{'tokens':<10} {found.tokens:,}", f"{'documents':<10} {found.documents:,}, EOT {position} each"]
    if found.head_tokens:
        rows.append(f"{'begins':<10} with the last {show_number_of(found.head_tokens, 'token')} of an earlier document")
    if found.documents:
        rows += [
            f"{'length':<10} {found.mean_tokens:,.1f} tokens on average, {found.longest:,} in the longest",
            f"{'text':<10} {show_bytes(found.text_bytes)}, {found.bytes_per_token:.2f} bytes per token",
        ]
    if found.outside:
        size = found.vocabulary.size
        rows.append(f"{'damage':<10} {found.outside:,} tokens are outside the vocabulary of {size:,}")
    rows += ["", *_histogram_lines(found), "", f"{'token':>17} {'times':>12} {'share':>7}"]
    text_tokens = max(1, found.tokens - found.boundaries)
    for token, times in found.most_frequent(_SHOWN_TOKENS):
        rows.append(f"{_spell(token, found.vocabulary):>17} {times:>12,} {times / text_tokens:>7.2%}")
    return rows


def statistics_json(target: Target, found: TokenStatistics) -> dict[str, Any]:
    names = ("name", "kind", "header_bytes", "tokens")
    return {
        "files": [{**{name: getattr(file, name) for name in names}, "dtype": file.dtype.name} for file in target.files],
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
            for token, times in found.most_frequent(_FREQUENT_TOKENS)
        ],
    }


def match_line(match: Match) -> str:
    before, after = safe_text(match.before, 200)[-40:], safe_text(match.after, 40)
    # `safe_text` strips the white space around the match.
    before += " " if match.before[-1:].isspace() else ""
    after = f" {after}" if match.after[:1].isspace() else after
    # `rest`: the match is in a document that began in the shard before.
    number = "rest" if match.document < 0 else str(match.document)
    return f"{number}: {before}{safe_text(match.text, 200)}{after}"


def _histogram_lines(found: TokenStatistics) -> list[str]:
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


def _spell(token: int, vocabulary: Vocabulary) -> str:
    """Return a token as an ASCII Python literal, which shows white space and escapes what can't be printed."""
    data = decode(np.array([token], vocabulary.dtype), vocabulary)
    return ascii(data.decode("utf-8", "backslashreplace"))
