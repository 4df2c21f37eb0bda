"""Bad text and bad files: text is encoded whatever it is, files are named or left out; never a traceback."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.errors import ShardError
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.promises import Tries

ATOMS: list[bytes] = [
    *(b"", b" ", b"\n", b"\0", b"\r", b"\t", b"'s", b"=", b"x", b"7", b"<|endoftext|>", b"\x1b[2J"),
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe4\xbd", b"\x80" * 7),
    *(text.encode() for text in ["你", "🙂", "e\u0301", "\u202e", "\ufeff", "\ufffd", "\u2028", "\xa0"]),
]


def malformed(chooser: random.Random) -> bytes:
    """Some bytes that no one would call a document. One in a hundred is a million repeats."""
    if chooser.random() < 0.01:
        return chooser.choice([b" ", b"\n", b"=", b"\xff", "你".encode(), b"ab", b" \n"]) * 1_000_000
    return b"".join(
        chooser.choice(ATOMS) * chooser.choice([1, 1, 1, 2, 50, 3000]) for _ in range(chooser.randint(0, 8))
    )


@pytest.mark.promise("bad text can't stop a run")
def test_malformed_texts_are_encoded_all_the_same(tmp_path: Path, tries: Tries) -> None:
    """Invalid UTF-8 as U+FFFD, half characters as tiktoken does it, nulls left out and counted, and a literal
    <|endoftext|> never as 50256: in parquet and JSON lines alike."""
    chooser = random.Random(19)
    data = [malformed(chooser) for _ in tries(120, 1000)]
    nulls = sorted(chooser.sample(range(len(data)), len(data) // 20))
    texts = [text.decode("utf-8", "replace") for i, text in enumerate(data) if i not in nulls]
    expected = reference.shard_files(reference.stream(texts), 10**9)
    column = pa.array([None if i in nulls else text for i, text in enumerate(data)], pa.binary())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", row_group_size=50)
    manifest = runs.build_inline(tmp_path / "parquet", tmp_path / "a.parquet", shard_tokens=10**9)
    assert runs.shards_in(tmp_path / "parquet") == expected
    assert manifest.totals["skipped_documents"] == len(nulls)
    assert manifest.documents == len(texts)
    with open(tmp_path / "a.jsonl", "w") as file:
        for i, text in enumerate(data):
            shown = None if i in nulls else text.decode("utf-8", "replace")
            file.write(json.dumps({"text": shown}, ensure_ascii=chooser.random() < 0.5) + "\n")
    runs.build_inline(tmp_path / "jsonl", tmp_path / "a.jsonl", shard_tokens=10**9)
    assert runs.shards_in(tmp_path / "jsonl") == expected


def damaged(chooser: random.Random, good: bytes) -> bytes:
    """A file that something has happened to."""
    kind = chooser.choice(["empty", "garbage", "cut", "flip", "head", "hole"])
    place = chooser.randrange(len(good))
    if kind == "empty":
        return b""
    if kind == "garbage":
        return chooser.randbytes(chooser.randint(1, 5000))
    if kind == "cut":
        return good[:place]
    if kind == "head":
        return good[place:]
    if kind == "hole":
        return good[:place] + bytes(len(good[place : place + 100])) + good[place + 100 :]
    return good[:place] + bytes([good[place] ^ (1 << chooser.randrange(8))]) + good[place + 1 :]


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".jsonl.gz", ".txt.gz"])
def test_damaged_files_are_named_or_left_out(tmp_path: Path, ending: str, tries: Tries) -> None:
    """Whatever has happened to one of three files: `stop` names it (or the damage made another readable file of it),
    `skip` completes, and the others are there in full."""
    documents = [text for text in make_documents(60, seed=72) if text and "<|" not in text]
    good = content(tmp_path, ending, documents)
    first, last = documents[:5], documents[-5:]
    before, bad, after = (tmp_path / f"{name}{ending}" for name in "abc")
    before.write_bytes(content(tmp_path, ending, first))
    after.write_bytes(content(tmp_path, ending, last))
    head, tail = reference.stream(first).tolist(), reference.stream(last).tolist()
    for number in tries(6, 25):
        bad.write_bytes(damaged(random.Random(f"{number}{ending}"), good))
        error = failure_of(tmp_path / f"stop{number}", before, bad, after)
        assert error is None or (bad.name in error.message and error.exit_code == 3)
        out = tmp_path / f"skip{number}"
        manifest = runs.build_inline(out, before, bad, after, on_bad_file="skip")
        assert manifest.complete
        (shard,) = runs.shards_in(out).values()
        tokens = np.frombuffer(shard[128:], "<u2").tolist()
        assert tokens[: len(head)] == head
        assert tokens[-len(tail) :] == tail


def failure_of(out: Path, *inputs: Path) -> ShardError | None:
    try:
        runs.build_inline(out, *inputs)
    except ShardError as error:
        return error
    return None


def content(folder: Path, ending: str, documents: list[str]) -> bytes:
    if ending == ".parquet":
        path = folder / "good.parquet"
        pq.write_table(pa.table({"text": documents}), path, row_group_size=20)
        return path.read_bytes()
    lines = [json.dumps({"text": text}) + "\n" for text in documents]
    if ending == ".txt.gz":
        return gzip.compress("<|endoftext|>".join(documents).encode())
    data = "".join(lines).encode()
    return gzip.compress(data) if ending.endswith(".gz") else data
