"""A dataset on the stand-in hub with the same documents in every form of text, one config each, and a build of a
config."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support import forked, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_csv, write_gzip, write_jsonl, write_text, write_zstd
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Content, Repository

REPO = "me/texts"
SEPARATOR = "@@@@"
SHARD_TOKENS = 40_000
DATASET = ("--dataset", REPO, "--shard-tokens", str(SHARD_TOKENS), "--separator", SEPARATOR)
# In one file more than a MiB, so that the stand-in keeps it as a large one even without an ending for that.
DOCUMENTS = [text for text in make_documents(2700, seed=131) if text]


def write_form(folder: Path, ending: str, documents: Sequence[str]) -> bytes:
    """The bytes of a file with these documents, by its ending."""
    form, _, packing = ending.partition(".")
    path = folder / "plain"
    match form:
        case "jsonl" | "json":
            write_jsonl(path, documents)
        case "csv" | "tsv":
            write_csv(path, documents, "\t" if form == "tsv" else ",")
        case _:
            write_text(path, documents, SEPARATOR)
    plain = path.read_bytes()
    match packing:
        case "gz":
            return write_gzip(folder / "packed", plain).read_bytes()
        case "zst" | "zstd":
            return write_zstd(folder / "packed", plain).read_bytes()
    return plain


def divide(documents: Sequence[str], files: int) -> list[Sequence[str]]:
    """The documents as runs of nearly the same length."""
    size = -(-len(documents) // files)
    return [documents[first : first + size] for first in range(0, len(documents), size)]


def write_files(folder: Path, endings: Iterable[str]) -> dict[str, bytes]:
    """The documents in files with these endings, in order."""
    endings = list(endings)
    parts = divide(DOCUMENTS, len(endings))
    return {
        f"{number:03d}.{ending}": write_form(folder, ending, part)
        for number, (ending, part) in enumerate(zip(endings, parts, strict=True))
    }


def card(configs: Mapping[str, str]) -> bytes:
    """A README.md with these configs; each has a pattern of files and what else is in its entry."""
    entries = [f"- config_name: {name}\n  data_files: {rest}\n" for name, rest in configs.items()]
    return f"---\nconfigs:\n{''.join(entries)}---\n".encode()


def text_repository(configs: Mapping[str, Mapping[str, Content]]) -> Repository:
    """A dataset with a config for each group of files, in a folder of its own."""
    files = {f"{config}/{name}": data for config, some in configs.items() for name, data in some.items()}
    return Repository(REPO, {"README.md": card({name: f"{name}/*" for name in configs}), **files})


@cache
def expected_shards() -> dict[str, bytes]:
    """By the reference."""
    return reference.shard_files(reference.stream(DOCUMENTS), SHARD_TOKENS)


def environment(hub: StandInHub, home: Path, **more: str) -> dict[str, Any]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", **more}


def words_for(config: str, out: Path) -> list[str]:
    return ["build", *DATASET, "--name", config, "--out", str(out), "--batch-bytes", "30k", "--workers", "2"]


def build(
    hub: StandInHub, home: Path, out: Path, config: str, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """A build in one process."""
    return forked.run_command(*words_for(config, out), *words, **environment(hub, home, **more))


def build_with_workers(
    hub: StandInHub, home: Path, out: Path, config: str, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """The real command, where what its processes do together is the point."""
    return runs.run_command(*words_for(config, out), *words, **environment(hub, home, **more))


def fetched_ranges(hub: StandInHub, name: str) -> list[tuple[int, int]]:
    """First and last byte of every range of a file that was asked for."""
    found = [record.range for record in hub.requests if record.is_content and f"/{name}" in record.path]
    ranges = [text.removeprefix("bytes=").split("-") for text in found if text]
    return [(int(first), int(last)) for first, last in ranges]


def left_in_downloads(out: Path) -> list[Path]:
    folder = out / ".fineweb-shards" / "downloads"
    return [path for path in folder.rglob("*") if path.is_file()]
