"""The examples of the documentation run as they are. Training needs torch, which is no dependency."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

ROOT = Path(__file__).parent.parent


def test_the_tiny_gpt_learns(tmp_path: Path) -> None:
    """The losses it prints fall."""
    pytest.importorskip("torch")
    path = write_jsonl(tmp_path / "a.jsonl", make_documents(400, seed=5))
    runs.build_inline(tmp_path / "out" / "demo", path, shard_tokens=20_000)
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "examples" / "tiny_gpt.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(text) for text in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 1


def test_the_loader_of_the_readme(tmp_path: Path) -> None:
    """The lines for training code give batches of the shape that their comments say."""
    path = write_jsonl(tmp_path / "a.jsonl", make_documents(100, seed=5))
    runs.build_inline(tmp_path / "out" / "demo", path, shard_tokens=5_000)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    code = f"{example}\nprint(tuple(x.shape), tuple(y.shape), x.dtype, bool((x[:, 1:] == y[:, :-1]).all()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"\(4, 32\) \(4, 32\) (torch\.)?int64 True\n", done.stdout)


def test_the_loader_needs_numpy_only() -> None:
    """Training code that imports it loads no tokenizer, no Arrow, no hub client and no torch."""
    heavy = ("tiktoken", "fastokens", "gigatoken", "pyarrow", "datasets", "huggingface_hub", "torch")
    code = f"import sys, fineweb_shards.loader; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"
