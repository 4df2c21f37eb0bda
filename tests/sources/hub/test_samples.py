"""The samples of other datasets than FineWeb-Edu: small repositories of the same layout, built by the sample's name."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import forked, reference, runs
from tests.support.documents import make_documents
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

SHARD_TOKENS = 3000
CARD = b"---\nlicense: other\n---\n"
PARTS = [[f"Part {part}. {text}" for text in make_documents(60, seed=part)] for part in range(4)]


def as_parquet(texts: Sequence[str]) -> bytes:
    """Row groups as in nanochat's files, but of 16 rows instead of 1,024."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=16, compression="zstd")
    return sink.getvalue()


def as_zstd(texts: Sequence[str]) -> bytes:
    lines = "".join(json.dumps({"url": "https://example.org", "text": text}) + "\n" for text in texts)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(lines.encode())
    return bytes(sink.getvalue())


def as_ids(texts: Sequence[str]) -> bytes:
    lists = (reference.encode(text) for text in texts)
    return "".join(json.dumps({"tokens": [int(one) for one in ids]}) + "\n" for ids in lists).encode()


def build(sample: str, repo: str, files: dict[str, bytes], home: Path, out: Path) -> dict[str, bytes]:
    """The shards of a sample, whose dataset has these files."""
    with StandInHub([Repository(repo, {"README.md": CARD, **files})]) as hub:
        done = forked.run_command(
            "build", sample, "--out", out, "--shard-tokens", SHARD_TOKENS, "--workers", "2",
            HF_ENDPOINT=hub.endpoint, HF_HOME=str(home), NO_PROXY="127.0.0.1,localhost",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return runs.shards_in(out)


def test_climbmix(home: Path, tmp_path: Path) -> None:
    """The last file is for validation, all others are for training, in the order of their names."""
    numbers = (0, 1, 2, 6542)
    files = {f"shard_{number:05d}.parquet": as_parquet(texts) for number, texts in zip(numbers, PARTS, strict=True)}
    found = build("climbmix", "karpathy/climbmix-400b-shuffle", files, home, tmp_path / "out")
    for split, parts in (("val", PARTS[3:]), ("train", PARTS[:3])):
        made = b"".join(found[name][128:] for name in sorted(found) if split in name)  # without NumPy's headers
        assert made == reference.stream([text for part in parts for text in part]).tobytes()


@pytest.mark.parametrize(
    ("sample", "repo", "write", "names"),
    [
        ("nemotron-climbmix", "nvidia/Nemotron-ClimbMix", as_ids, [f"part_{number}.jsonl" for number in range(4)]),
        (
            "dclm-baseline",
            "mlfoundations/dclm-baseline-1.0",
            as_zstd,
            [
                f"global-shard_0{outer}_of_10/local-shard_{inner}_of_10/shard_0000000{inner}_processed.jsonl.zst"
                for outer in (1, 2)
                for inner in (0, 1)
            ],
        ),
    ],
    ids=["nemotron-climbmix", "dclm-baseline"],
)
def test_samples_with_the_default_validation(
    home: Path, tmp_path: Path, sample: str, repo: str, write: object, names: list[str]
) -> None:
    """All files in the order of their names; the first shard is for validation."""
    assert callable(write)
    texts = [text for part in PARTS for text in part]
    files = {name: write(part) for name, part in zip(names, PARTS, strict=True)}
    found = build(sample, repo, files, home, tmp_path / "out")
    assert found == reference.shard_files(np.asarray(reference.stream(texts), np.uint16), SHARD_TOKENS)
