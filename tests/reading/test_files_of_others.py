"""Files of other programs, without a manifest: the width of a token is never guessed."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import InputError
from fineweb_shards.loader import ShardLoader
from fineweb_shards.reading.token_file import has_eot_first, open_files_in, open_folder, open_token_file, token_names
from tests.support import runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted, files

TOKENS = np.array([5, 70_000, 3, 50256, 9, 1], "<u4")
DOCUMENTS = make_documents(60, seed=41)


@pytest.mark.parametrize("name", ["part-train-00000.npy", "train_00000.ds"])
def test_tokens_of_any_width_need_a_manifest(tmp_path: Path, name: str) -> None:
    """OLMo-core's and datatrove's: junk, or half of each, if somebody guessed."""
    (tmp_path / name).write_bytes(TOKENS.tobytes())
    (tmp_path / f"{name}.metadata").write_text("some/tokenizer|4\n6\n6.00 T")
    with pytest.raises(InputError, match="no header, and no manifest of a build beside it gives the width"):
        open_token_file(tmp_path / name)


@pytest.mark.parametrize("name", ["part-0-00000.npy", "00000_shuffled.ds", "tokens_1.bin", "model.bin"])
def test_bare_tokens_have_the_name_of_a_layout(tmp_path: Path, name: str) -> None:
    """Nobody knows what is in another one."""
    (tmp_path / name).write_bytes(TOKENS.tobytes())
    with pytest.raises(InputError, match="has neither a known header nor the name of a layout"):
        open_token_file(tmp_path / name)


def test_torchtitan_has_four_bytes_by_its_name(tmp_path: Path) -> None:
    """And its offsets are no tokens."""
    (tmp_path / "tokens.bin").write_bytes(TOKENS.tobytes())
    np.save(tmp_path / "document_offsets.npy", np.array([0, 4, 6]))
    folder = open_folder(tmp_path)
    (file,) = open_files_in(folder, token_names(folder, "train"))
    assert file.map().tolist() == TOKENS.tolist()


@pytest.mark.parametrize("width", [2, 4])
def test_automodel_says_it_in_its_header(tmp_path: Path, width: int) -> None:
    """Under any name."""
    tokens = TOKENS.astype(f"<u{width}")
    (tmp_path / "dataset.bin").write_bytes(struct.pack("<256i", 278895051, 1, 6, width, *[0] * 252) + tokens.tobytes())
    file = open_token_file(tmp_path / "dataset.bin")
    assert (file.kind, file.map().tolist(), has_eot_first(file)) == ("automodel", tokens.tolist(), True)


@pytest.mark.parametrize("layout", ["olmo-core", "datatrove", "torchtitan", "automodel"])
def test_the_loader_takes_a_split_of_every_layout(tmp_path: Path, layout: str) -> None:
    """Its files and no sidecar, with the manifest; and without it, unless tokens can have any width."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    wanted = Wanted(layout, 2000, val_tokens=2500)
    out = tmp_path / "out"
    runs.build_inline(out, path, **{**wanted.settings(), "index": True})
    expected = files(DOCUMENTS, wanted)
    for manifest in (True, False):
        if not manifest:
            (out / "manifest.json").unlink()
            if layout in ("olmo-core", "datatrove"):
                with pytest.raises(InputError, match="no manifest of a build beside it"):
                    ShardLoader(out, batch_size=1, seq_len=16)
                return
        for split in ("train", "val"):
            loader = ShardLoader(out, split, batch_size=1, seq_len=16, framework="numpy")
            names = [shard.file.name for shard in loader._shards.known]
            suffix = names[0].rsplit(".", 1)[1]
            tokens = [name for name in expected if name.endswith(suffix) and "offsets" not in name]
            assert names == sorted(name for name in tokens if ("val" in name) == (split == "val"))
            x, _ = loader.next_batch()
            data = expected[names[0]][1024 if layout == "automodel" else 0 :]
            assert x.ravel().tolist() == np.frombuffer(data, loader._shards.known[0].file.dtype)[:16].tolist()
