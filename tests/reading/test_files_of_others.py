"""Files of other programs, without a manifest: the width of a token is read or asked for, never guessed."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import InputError
from fineweb_shards.loader import ShardLoader
from fineweb_shards.reading.token_file import (
    has_eot_first,
    open_files_in,
    open_folder,
    open_token_file,
    token_names,
)
from tests.support import inline, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted, files

TOKENS = np.array([5, 70_000, 3, 50256, 9, 1], "<u4")
NARROW, WIDE = np.dtype("<u2"), np.dtype("<u4")
DOCUMENTS = make_documents(60, seed=41)


def test_an_olmo_file_is_opened_only_with_a_width(tmp_path: Path) -> None:
    """It is called .npy and has no header: 64 tokens of junk, or half of each, if somebody guessed."""
    path = tmp_path / "part-0-00000.npy"
    path.write_bytes(TOKENS.tobytes())
    with pytest.raises(InputError, match="no header, and nothing says how wide") as refused:
        open_token_file(path)
    assert "--dtype uint16 or --dtype uint32" in refused.value.hint
    file = open_token_file(path, WIDE)
    assert file.map().tolist() == TOKENS.tolist()
    assert not has_eot_first(file)
    assert open_token_file(path, NARROW).tokens == 12
    path.write_bytes(TOKENS.tobytes()[:-1])
    with pytest.raises(InputError, match="is not a file of uint32 tokens"):
        open_token_file(path, WIDE)


def test_datatrove_says_it_in_its_metadata(tmp_path: Path) -> None:
    """Without, or if it says nonsense, the width has to be given."""
    path = tmp_path / "00000_shuffled.ds"
    path.write_bytes(TOKENS.tobytes())
    metadata = tmp_path / "00000_shuffled.ds.metadata"
    metadata.write_text("some/tokenizer|4\n6\n6.00 T")
    assert open_token_file(path).map().tolist() == TOKENS.tolist()
    for text in ("some/tokenizer|3\n", "", "x|\n4"):
        metadata.write_text(text)
        with pytest.raises(InputError, match="nothing says how wide"):
            open_token_file(path)
    metadata.unlink()
    with pytest.raises(InputError, match="nothing says how wide"):
        open_token_file(path)
    assert open_token_file(path, WIDE).tokens == 6


def test_torchtitan_has_four_bytes_by_its_name(tmp_path: Path) -> None:
    """And its offsets are no tokens."""
    (tmp_path / "tokens.bin").write_bytes(TOKENS.tobytes())
    np.save(tmp_path / "document_offsets.npy", np.array([0, 4, 6]))
    folder = open_folder(tmp_path)
    (file,) = open_files_in(folder, token_names(folder, "train"))
    assert file.map().tolist() == TOKENS.tolist()


@pytest.mark.parametrize("width", [2, 4])
def test_automodel_says_it_in_its_header(tmp_path: Path, width: int) -> None:
    """Under any name; a width that contradicts it is refused."""
    tokens = TOKENS.astype(f"<u{width}")
    (tmp_path / "dataset.bin").write_bytes(struct.pack("<256i", 278895051, 1, 6, width, *[0] * 252) + tokens.tobytes())
    file = open_token_file(tmp_path / "dataset.bin")
    assert (file.kind, file.map().tolist(), has_eot_first(file)) == ("automodel", tokens.tolist(), True)
    with pytest.raises(InputError, match=f"header or manifest says {tokens.dtype.name}, not"):
        open_token_file(tmp_path / "dataset.bin", NARROW if width == 4 else WIDE)


@pytest.mark.parametrize("layout", ["olmo-core", "datatrove", "torchtitan", "automodel"])
def test_the_loader_takes_a_split_of_every_layout(tmp_path: Path, layout: str) -> None:
    """Its files and no sidecar, with the manifest; without it, and with the width where that is needed."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    wanted = Wanted(layout, 2000, val_tokens=2500)
    out = tmp_path / "out"
    runs.build_inline(out, path, **{**wanted.settings(), "index": True})
    expected = files(DOCUMENTS, wanted)
    for manifest in (True, False):
        if not manifest:
            (out / "manifest.json").unlink()
        dtype = "uint16" if layout == "olmo-core" and not manifest else None
        for split in ("train", "val"):
            loader = ShardLoader(out, split, batch_size=1, seq_len=16, framework="numpy", dtype=dtype)
            names = [shard.file.name for shard in loader._shards.known]
            suffix = names[0].rsplit(".", 1)[1]
            tokens = [name for name in expected if name.endswith(suffix) and "offsets" not in name]
            assert names == sorted(name for name in tokens if ("val" in name) == (split == "val"))
            x, _ = loader.next_batch()
            data = expected[names[0]][1024 if layout == "automodel" else 0 :]
            assert x.ravel().tolist() == np.frombuffer(data, loader._shards.known[0].file.dtype)[:16].tolist()
    with pytest.raises(ValueError, match="dtype must be one of uint16, uint32"):
        ShardLoader(out, batch_size=1, seq_len=16, dtype="int8")


def test_inspect_asks_for_the_width(tmp_path: Path) -> None:
    """The command says which flag is missing, and takes it."""
    path = tmp_path / "part-0-00000.npy"
    path.write_bytes(np.array([31373, 995, 50256], "<u2").tobytes())
    refused = inline.run_command("inspect", path)
    assert refused.returncode == 3
    assert "--dtype uint16" in refused.stderr
    done = inline.run_command("inspect", path, "--dtype", "uint16", "--document", "0")
    assert done.returncode == 0, done.stderr
    assert "hello world" in done.stdout
    assert inline.run_command("inspect", path, "--dtype", "int8").returncode == 2
