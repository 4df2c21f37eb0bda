"""Standard input and named pipes: read once, front to back, and known again by their beginning."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import reference
import runs

from fineweb_shards.errors import ChangedError, InputError

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
    from fineweb_shards.sources.pipes import open_pipe

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


def test_a_shells_process_substitution(tmp_path: Path) -> None:
    """`--input <(…)`, and its name does not depend on the number the shell chose."""
    command = f"{' '.join(runs.command('build'))} --workers 1 --out out --input <(printf 'one\\n\\ntwo')"
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


def test_a_closed_standard_input_is_told(tmp_path: Path) -> None:
    """And a build of a file does not mind."""
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    words = " ".join(runs.command("build"))
    for source, code in {"-": 3, "a.txt": 0}.items():
        command = f"{words} --workers 1 --out out{code} --input {source} <&-"
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert ("standard input is closed" in done.stderr) == (code == 3)
