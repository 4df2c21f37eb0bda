"""A vocabulary of more than 65,536 ids with Llama 3's pattern, from text to what each reader reads."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from tests.support import inline, runs, vocabularies
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

DOCUMENTS = make_documents(50, seed=98)
EOT = 66_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input, and the tokenizer's file."""
    made = tmp_path_factory.mktemp("wide")
    write_jsonl(made / "a.jsonl", DOCUMENTS)
    vocabularies.write_ranks(made / "ranks.tiktoken", vocabularies.large_ranks())
    return made


@pytest.fixture(scope="module")
def encoded() -> list[list[int]]:
    ranks = vocabularies.large_ranks()
    judge = tiktoken.Encoding("t", pat_str=vocabularies.LLAMA3, mergeable_ranks=ranks, special_tokens={})
    return [judge.encode_ordinary(text) for text in DOCUMENTS]


def build(folder: Path, out: Path, layout: str) -> int:
    flags = ["--tokenizer", str(folder / "ranks.tiktoken"), "--pattern", vocabularies.LLAMA3, "--eot", str(EOT)]
    sizes = ["--shard-tokens", "4000", "--index"]
    return inline.run_command("build", folder / "a.jsonl", *flags, "--layout", layout, *sizes, "--out", out).returncode


@pytest.mark.full(but=["datatrove-None"])
@pytest.mark.parametrize(
    ("layout", "header"), [("llm.c", (20240801, 7)), ("automodel", (278895051, 1)), ("datatrove", None)]
)
def test_every_reader_gets_four_bytes(
    folder: Path, encoded: list[list[int]], tmp_path: Path, layout: str, header: tuple[int, int] | None
) -> None:
    """Its header, if it has one, and uint32; some ids need them. Indices name every document's start."""
    out = tmp_path / "out"
    assert build(folder, out, layout) == 0
    tokens: list[int] = []
    names = [name for name in runs.outputs_in(out) if "/" not in name]
    starts = 0
    for split in ("val", "train"):
        for name in names:
            if not name.endswith((".bin", ".ds")) or ("val" in name) != (split == "val"):
                continue
            data = (out / name).read_bytes()
            if header:
                magic, version, count, width = struct.unpack("<4i", data[:16])
                assert (magic, version) == header
                assert width == (4 if layout == "automodel" else 0)
                data = data[1024:]
                assert len(data) == 4 * count
            tokens += np.frombuffer(data, "<u4").tolist()
            starts += len(np.load(out / "index" / f"{Path(name).stem}.npy"))
    assert tokens == [token for one in encoded for token in ([EOT, *one] if header else [*one, EOT])]
    assert max(token for one in encoded for token in one) > 2**15
    assert starts == len(DOCUMENTS)
    if layout == "datatrove":
        assert (out / "train_00000.ds.metadata").read_text().split("\n")[0].endswith("|4")


def test_a_reader_of_two_bytes_is_refused_before_the_start(folder: Path, tmp_path: Path) -> None:
    """With exit code 2, and nothing written."""
    assert build(folder, tmp_path / "out", "nanogpt") == 2
    assert not (tmp_path / "out").exists()
