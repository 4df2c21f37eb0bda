"""Standard input and named pipes: read once, front to back, and known again by their beginning."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import ChangedError, InputError
from tests.support import reference, runs
from tests.support.documents import make_documents

DOCUMENTS = [f"document {i} has a few words" for i in range(500)]


def feed(path: Path, text: str) -> threading.Thread:
    """Somebody who writes to a pipe."""
    if not path.exists():
        os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(text,), daemon=True)
    writer.start()
    return writer


def test_a_named_pipe_is_read_like_standard_input(tmp_path: Path) -> None:
    """And a resume wants the same stream again."""
    from fineweb_shards.storage.local import open_pipe

    path, out = tmp_path / "a.txt", tmp_path / "out"
    writer = feed(path, "\n\n".join(DOCUMENTS))
    runs.build_inline(out, path, shard_tokens=1000)
    writer.join()
    expected = reference.shard_files(reference.stream(DOCUMENTS), 1000)
    assert runs.shards_in(out) == expected
    runs.forget_after(out, 2)
    open_pipe.cache_clear()  # as in another process
    feed(path, "\n\n".join(DOCUMENTS))
    runs.build_inline(out, path, shard_tokens=1000)
    assert runs.shards_in(out) == expected
    open_pipe.cache_clear()
    feed(path, "another stream")
    with pytest.raises(ChangedError):
        runs.build_inline(out, path, shard_tokens=1000)


@pytest.mark.full
def test_a_shells_process_substitution(tmp_path: Path) -> None:
    """`--input <(…)`, and its name does not depend on the number the shell chose."""
    flags = "--workers 1 --shard-tokens 100M --out out"
    command = f"{' '.join(runs.command('build'))} {flags} --input <(printf 'one\\n\\ntwo')"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out" / "edufineweb_val_000000.npy")
    assert found.tolist() == reference.stream(["one", "two"]).tolist()
    assert '"name": "pipe"' in (tmp_path / "out" / "manifest.json").read_text()


def test_a_compressed_pipe_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """What can't be opened twice is not unpacked here."""
    os.mkfifo(tmp_path / "a.txt.gz")
    with pytest.raises(InputError, match="gzip can't be read from a pipe") as error:
        runs.job_of(tmp_path / "out", tmp_path / "a.txt.gz")
    assert "zcat" in error.value.hint


@pytest.mark.full
def test_a_closed_standard_input_is_told(tmp_path: Path) -> None:
    """And a build of a file does not mind."""
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    words = " ".join(runs.command("build"))
    for source, code in {"-": 3, "a.txt": 0}.items():
        command = f"{words} --workers 1 --shard-tokens 100M --out out{code} --input {source} <&-"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert ("standard input is closed" in done.stderr) == (code == 3)


def test_what_is_finished_is_recorded_while_the_input_is_silent(tmp_path: Path) -> None:
    """A shard is named and in the manifest as soon as it is written, although nobody knows when the next text comes: a
    kill in an outage of an hour must not cost it."""
    documents = make_documents(600, seed=77)
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in documents]
    expected = reference.shard_files(reference.stream(documents), 5000)
    # A batch ends where a window of 64 KiB shows that a line does: what comes last has to wait.
    sizes = accumulate(map(len, lines))
    cut = [text for text, end in zip(documents, sizes, strict=True) if end < sum(map(len, lines)) - 2**16]
    wanted = len(reference.stream(cut)) // 5000
    flags = ["--format", "jsonl", "--shard-tokens", "5000", "--batch-bytes", "4k", "--workers", "2"]
    words = runs.command("build", "-", "--out", tmp_path / "out", *flags)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(lines))
        process.stdin.flush()  # and then nothing, but the pipe stays open
        deadline = time.monotonic() + 60
        while len(names := recorded_shards(tmp_path / "out")) < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert len(names) >= wanted > 3
    found = runs.shards_in(tmp_path / "out")
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}


def recorded_shards(folder: Path) -> list[str]:
    """The names in a folder's manifest; none if there is no manifest yet."""
    try:
        return [record["name"] for record in json.loads((folder / "manifest.json").read_text())["shards"]]
    except FileNotFoundError:
        return []
