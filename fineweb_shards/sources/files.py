"""From `--input` to a list of files: folders, globs, formats by name, and fingerprints."""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fineweb_shards.errors import ChangedError, InputError
from fineweb_shards.sources.base import STANDARD_INPUT, InputFile
from fineweb_shards.sources.stream import standard_input
from fineweb_shards.units import show_number_of

_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
_SAMPLE_BYTES = 64 * 1024
_SAMPLES = 8


def find_files(
    inputs: tuple[str, ...], format_name: str, is_output: Callable[[Path], bool] = lambda path: False
) -> tuple[InputFile, ...]:
    """All files that the inputs name, in the order they will be read.

    Our own output is never input: somebody may have put it into the input's folder.
    """
    if not inputs:
        raise InputError("There is no input.", "Name a file, a folder or a glob with --input, or a config.")
    pairs = [pair for text in inputs for pair in _expand(text, format_name)]
    found = [(path, name) for path, name in pairs if not is_output(Path(path))]
    if not found:
        raise InputError(f"--input {inputs[0]}: holds only our own output.", "Check --input and --out.")
    return tuple(_describe(index, path, name, format_name) for index, (path, name) in enumerate(found))


def _expand(text: str, format_name: str) -> list[tuple[str, str]]:
    """Pairs (path, name). Sorted, so that two machines agree about the order."""
    if text == STANDARD_INPUT:
        return [(STANDARD_INPUT, STANDARD_INPUT)]
    text = text.replace("{stdlib}", sysconfig.get_path("stdlib"))
    path = Path(text).expanduser()
    if path.is_file():
        return [(str(path), path.name)]
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and not _is_hidden(file, path)]
        if format_name == "auto":
            files = [file for file in files if _split_suffixes(file.name)[0] is not None]
        names = sorted(file.relative_to(path).as_posix() for file in files)
        if not names:
            raise InputError(
                f"--input {text}: the folder holds no {', '.join(_FORMATS)} file "
                "(with .gz or .zst, or without).",
                "Name the files with a glob, or say what they are with --format.",
            )
        return [(str(path / name), name) for name in names]
    if glob.has_magic(text):
        pattern = os.path.expanduser(text)
        matches = sorted(m for m in glob.glob(pattern, recursive=True) if os.path.isfile(m))
        if not matches:
            raise InputError(f"--input {text}: no file matches.", "Check the pattern (and quote it).")
        root = _glob_root(pattern)
        return [(match, Path(match).relative_to(root).as_posix()) for match in matches]
    raise InputError(f"--input {text}: no such file or folder.", "Check the path.")


def _glob_root(pattern: str) -> Path:
    parts = Path(pattern).parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:fixed])


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _split_suffixes(name: str) -> tuple[str | None, str | None]:
    """Format and compression by file name; the format is None where the name tells nothing."""
    stem, last = os.path.splitext(name.lower())
    compression = _COMPRESSIONS.get(last)
    suffix = os.path.splitext(stem)[1] if compression else last
    return _FORMATS.get(suffix), compression


def _describe(index: int, path: str, name: str, format_name: str) -> InputFile:
    known, compression = _split_suffixes(name)
    kind = (known or "text") if format_name == "auto" else format_name
    if path == STANDARD_INPUT:
        if kind == "parquet":
            raise InputError(
                "--input -: parquet can't be read from standard input.", "Name the file instead."
            )
        head = hashlib.sha256(standard_input().head).hexdigest()
        return InputFile(index, path, name, kind, None, 0, 0, head)
    if kind == "parquet" and compression:
        raise InputError(
            f"{path}: compressed parquet can't be read.", "Parquet compresses by itself: unpack it."
        )
    try:
        status = os.stat(path)
        sample = _sample(path, status.st_size)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", "Check the file and its permissions.") from error
    return InputFile(index, path, name, kind, compression, status.st_size, status.st_mtime_ns, sample)


def _sample(path: str, size: int) -> str:
    """SHA-256 of a few stretches of the file, its beginning and end among them."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        last = max(0, size - _SAMPLE_BYTES)
        for offset in sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)}):
            file.seek(offset)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def files_to_json(files: tuple[InputFile, ...]) -> list[dict[str, Any]]:
    """For the manifest. Without paths: the same files may lie elsewhere on another machine. Without
    formats: those follow from names and settings, and a file of the hub may be streamed or downloaded."""
    return [
        {key: value for key, value in asdict(file).items() if key not in ("index", "path", "format")}
        for file in files
    ]


def check_same_files(
    files: tuple[InputFile, ...], recorded: list[dict[str, Any]], *, trust_times: bool
) -> None:
    """Refuse to go on with files that are not the ones the manifest was begun with.

    Size and samples can't see every change, so a different modification time is refused as well,
    unless the user says that it is a copy (`--same-source`).
    """
    now = files_to_json(files)
    if len(now) != len(recorded):
        raise ChangedError(f"The input has {show_number_of(len(now), 'file')} now; it had {len(recorded):,}.")
    for file, new, old in zip(files, now, recorded, strict=True):
        for field, value in new.items():
            if value == old.get(field) or (field == "mtime_ns" and trust_times):
                continue
            if field == "mtime_ns":
                raise ChangedError(
                    f"{file.path}: mtime_ns was {old.get(field)} and is {value}: the file was "
                    "written to since the run began.",
                    "If it is the same file (a copy), go on with --same-source; else use --fresh.",
                )
            raise ChangedError(f"{file.path}: {field} was {old.get(field)!r} and is {value!r}.")
