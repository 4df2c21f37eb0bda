"""Find the odd file in a folder of another kind, such as a dataset's metadata (.json) among parquet files."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence

from fineweb_shards.errors import InputError
from fineweb_shards.sources.base import InputFile

_SAMPLE_BYTES = 64 * 1024
_NEARLY_ALL = 3 / 4


def check_odd_files(
    found: Sequence[tuple[str, str, InputFile]], column: str, *, skip_bad: bool, note: Callable[[str], None]
) -> None:
    """Note files of another kind than nearly all that the same --input stands for, and refuse a `.json` among
    others that holds no JSON lines. `found` has for each file the flag and value it was found by, and a glob
    for all of these. `column` holds the documents."""
    groups: dict[tuple[str, str], list[InputFile]] = {}
    for given, every, file in found:
        if given and file.problem is None:
            groups.setdefault((given, every), []).append(file)
    for (given, every), files in groups.items():
        kinds = Counter(file.kind for file in files)
        usual, count = kinds.most_common(1)[0]
        odd = [file for file in files if file.kind != usual]
        if not odd:
            continue
        ending = Counter(os.path.splitext(file.name)[1] for file in files if file.kind == usual)
        leave_out = f"{given.partition(' ')[0]} {shlex.quote(every + ending.most_common(1)[0][0])}"
        for file in odd:
            if not skip_bad and _holds_no_documents(file, column):
                raise InputError(
                    f"{given}: {file.name} holds no JSON lines with the key {column!r}, and {count:,} of "
                    f"{len(files):,} files there are {usual}.",
                    f"If it is no input, leave it out: {leave_out}",
                )
        if count >= _NEARLY_ALL * len(files):
            names = ", ".join(file.name for file in odd[:3]) + (", …" if len(odd) > 3 else "")
            others = " and ".join(sorted({file.kind for file in odd}))
            note(
                f"{given}: {count:,} of {len(files):,} files are {usual}; also read ({others}): {names}. "
                f"To read {usual} only: {leave_out}"
            )


def _holds_no_documents(file: InputFile, column: str) -> bool:
    """Tell whether a `.json` file on this machine is no JSON lines, by its first line: such files are often a
    dataset's metadata. One that can't be judged may be."""
    if not file.path.lower().endswith(".json") or file.is_remote or file.is_pipe:
        return False
    try:
        with open(file.path, "rb") as content:
            head = content.read(_SAMPLE_BYTES)
    except OSError:
        return False  # reported when it is read
    first, line_end, _ = head.lstrip().partition(b"\n")
    if len(head) == _SAMPLE_BYTES and not line_end:
        return False
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return not isinstance(row, dict) or column not in row
