"""Bytes out of a bucket cost money: how many a build asks for, by a door that counts them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from fineweb_shards.storage.bucket import Bucket
from tests.support import runs
from tests.support.bucket_server import Door, Read
from tests.support.inputs import write_jsonl, write_parquet, write_text

pytestmark = pytest.mark.full

_MIB = 2**20


def make_texts(size_bytes: int) -> list[str]:
    """Documents of about 2 kB with little to compress in them, so that parquet has their size."""
    chooser = random.Random(7)
    return [f"{chooser.getrandbits(8000):x}" for _ in range(size_bytes // 2000)]


def upload(folder: Path, url: str, kind: str, texts: list[str]) -> int:
    """Put a file of a kind into the bucket, and return its size."""
    path = folder / f"0.{kind}"
    match kind:
        case "parquet":
            write_parquet(path, texts, 100, use_dictionary=False)
        case "jsonl":
            write_jsonl(path, texts)
        case _:
            write_text(path, texts, "\n\n")
    Bucket(url).upload(path, f"a/{path.name}")
    return path.stat().st_size


def build(url: str, out: Path, door: Door, *words: str) -> list[Read]:
    """Build with a worker, and return what was read of objects; the run says how much that was."""
    door.reads.clear()
    flags = ["--workers", "1", "--shard-tokens", "500k"]
    done = runs.run_command("build", f"{url}/a", "--out", out, *flags, *words)
    assert done.returncode == 0, done.stderr
    fetched = sum(read.sent_bytes for read in door.reads)
    told = json.loads((out / ".fineweb-shards/history.json").read_text())["runs"][-1]["fetched_bytes"]
    # A run that ends by --max-tokens may not wait until its worker has told of the last batch.
    assert (0 if "--max-tokens" in words else 0.9 * fetched) <= told <= fetched
    return door.reads


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_small_files_are_fetched_once(tmp_path: Path, bucket_url: str, door: Door, kind: str) -> None:
    """Each with one request; only the first a second time, for the plan."""
    texts = make_texts(40_000)
    for number in range(12):
        write = write_jsonl if kind == "jsonl" else write_text
        path = write(tmp_path / f"{number:02}.{kind}", texts)
        Bucket(bucket_url).upload(path, f"a/{path.name}")
    reads = build(bucket_url, tmp_path / "out", door)
    names = sorted(read.path.rpartition("/")[2] for read in reads)
    assert names == sorted([f"{number:02}.{kind}" for number in range(12)] + [f"00.{kind}"])


@pytest.mark.parametrize(("kind", "most"), [("parquet", 1.15), ("jsonl", 1.15), ("txt", 1.35)])
def test_a_file_is_fetched_little_more_than_once(
    tmp_path: Path, bucket_url: str, door: Door, kind: str, most: float
) -> None:
    """In addition only a sample for the plan, and three footers, or the ends of batches; of a text in which a separator
    is looked for the first MiB, by plan and listing."""
    size = upload(tmp_path, bucket_url, kind, make_texts(10 * _MIB))
    reads = build(bucket_url, tmp_path / "out", door)
    assert sum(read.sent_bytes for read in reads) <= most * size


@pytest.mark.parametrize(("kind", "looks"), [("parquet", 2 * _MIB), ("jsonl", 2 * _MIB), ("txt", 4 * _MIB)])
def test_with_max_tokens_little_is_fetched_ahead(
    tmp_path: Path, bucket_url: str, door: Door, kind: str, looks: int
) -> None:
    """If the first batch has all the tokens, the second one is not fetched; what is looked at for plan and listing does
    not grow with the file."""
    upload(tmp_path, bucket_url, kind, make_texts(24 * _MIB))
    reads = build(bucket_url, tmp_path / "out", door, "--max-tokens", "100k", "--batch-bytes", "1MiB")
    batch = (2 if kind == "parquet" else 1) * _MIB
    assert sum(read.sent_bytes for read in reads) <= 1.2 * batch + looks
