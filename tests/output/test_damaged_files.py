"""Every reader of token files, over damaged, foreign and odd ones: it answers or refuses in a sentence."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.commands import inspect
from fineweb_shards.errors import InputError, ShardError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.loader import ShardLoader
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.reading import inspection
from fineweb_shards.reading.token_file import open_token_file
from fineweb_shards.reading.verify import verify_folder
from tests.support import runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.promises import Tries

LLM_C = struct.pack("<256i", 20240520, 1, 400, *[0] * 253)
TOKENS = np.arange(400, dtype="<u2")


def npy(tokens: np.ndarray = TOKENS) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, tokens)
    return buffer.getvalue()


def with_header(text: str) -> bytes:
    """An NPY file with any header."""
    data = text.encode("latin-1")
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(data)) + data + TOKENS.tobytes()


def use_all(path: Path) -> None:
    """What a person or a trainer does with a file; only our own errors may come out of it."""
    target = inspection.open_target(path)
    found = inspection.count(target)
    "\n".join(inspect.statistics_lines(target, found))
    numbers = {match.document for match in inspection.find_text(target, "e")}
    assert max(numbers, default=-1) < found.documents
    if found.documents:
        chosen = inspection.choose_document(target, 1)
        assert 0 <= chosen < found.documents
        "".join(inspection.read_document(target, found.documents - 1))
    for seed in (None, 1):
        ShardLoader([path], batch_size=1, seq_len=4, seed=seed, framework="numpy").next_batch()


@pytest.mark.promise("nothing from data is executed or followed")
@pytest.mark.parametrize(
    "name", ["a.bin", "a.npy", "train.bin", "fineweb_train_000001.bin", "edufineweb_val_000000.npy"]
)
@pytest.mark.parametrize("start", [npy(), LLM_C + TOKENS.tobytes(), TOKENS.tobytes()], ids=["npy", "llm.c", "raw"])
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, name: str, start: bytes, tries: Tries) -> None:
    """Flips, cuts, insertions and noise, most of them in the header: no other error, and never a hang."""
    chooser = random.Random(f"{name} {len(start)}")
    path = tmp_path / name
    for _ in tries(40, 1000):
        data = bytearray(start)
        for _ in range(chooser.randint(0, 3)):
            place = chooser.randrange(min(len(data), chooser.choice([12, 130, 1100])) or 1)
            kind = chooser.randrange(4)
            if kind == 0 and data:
                data[place] ^= 1 << chooser.randrange(8)
            elif kind == 1:
                data[place:place] = chooser.randbytes(chooser.randint(1, 3))
            elif kind == 2:
                del data[place : place + chooser.randint(1, 3)]
            elif data:
                data[place] = chooser.choice(b"({[,:'\"0L-\0\xff\n")
        if chooser.random() < 0.1:
            del data[chooser.randrange(len(data) + 1) :]
        path.write_bytes(data)
        with contextlib.suppress(ShardError):
            use_all(path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<u2', 'fortran_order': False, 'shape': (-5,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1e300,), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (20, 20), }",
        "{'descr': '<u2', 'fortran_order': False, 'shape': 400, }",
        "{'descr': '>u2', 'fortran_order': False, 'shape': (400,), }",
        "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (400,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (400,), }",
        "{'shape': (400,)}",
        "[1, 2]",
        "(" * 3000,
        "-" * 3000 + "1",
        "__import__('os').abort()",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (400L,), }",
        "\0",
        "",
        "9" * 4000,
    ],
)
def test_hostile_npy_headers_are_refused(tmp_path: Path, header: str) -> None:
    """Whatever numpy, or Python, would raise over it."""
    (tmp_path / "a.npy").write_bytes(with_header(header))
    with pytest.raises(InputError, match=r"a\.npy"):
        open_token_file(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "start",
    [
        struct.pack("<256i", 20240801, 7, 400, *[0] * 253),
        struct.pack("<256i", 278895051, 2, 400, 2, *[0] * 252),
        struct.pack("<256i", 278895051, 1, 400, 3, *[0] * 252),
        struct.pack("<256i", 278895051, 1, 401, 2, *[0] * 252),
        struct.pack("<256i", 20240522, 1, 400, *[0] * 253),
        struct.pack("<256i", 20240599, 1, 400, *[0] * 253),
        b"MMIDIDX\0\0" + bytes(33),
        b"PAR1", b"PK\3\4", b"\x1f\x8b\x08\0", b"\x89HDF", b"GGUF",
        b"\x80\x04\x95\xff\xff",
        os.urandom(4000),
    ],
)  # fmt: skip
def test_an_unknown_header_is_never_read_as_tokens(tmp_path: Path, start: bytes) -> None:
    """Other magics are refused."""
    data = start + TOKENS.tobytes()
    (tmp_path / "data.bin").write_bytes(data + bytes(len(data) % 2))
    with pytest.raises(InputError, match=r"data\.bin"):
        open_token_file(tmp_path / "data.bin")


def test_bare_tokens_are_read_by_name(tmp_path: Path) -> None:
    """The names of headerless layouts with any number; no other name."""
    other = np.array([60000] * 10, "<u2").tobytes()
    for name in ("train.bin", "val_shard_0003.bin", "fineweb_train_text_document.bin"):
        (tmp_path / name).write_bytes(other)
        assert open_token_file(tmp_path / name).tokens == 10
    (tmp_path / "mine.bin").write_bytes(TOKENS.tobytes())
    with pytest.raises(InputError, match=r"mine\.bin: has neither a known header nor the name of a layout"):
        open_token_file(tmp_path / "mine.bin")


def test_a_name_that_promises_a_header_gets_no_other_reading(tmp_path: Path) -> None:
    """A shard of ours whose magic is damaged is refused, not read with its header as tokens."""
    for name, data in (("edu_fineweb_train_000001.bin", LLM_C), ("edufineweb_val_000000.npy", npy())):
        (tmp_path / name).write_bytes(b"\0" + data[1:] + TOKENS.tobytes())
        with pytest.raises(InputError, match="no header, or a damaged one"):
            open_token_file(tmp_path / name)


def test_what_is_no_file(tmp_path: Path) -> None:
    """Folders, pipes, links in a circle or to nowhere, files that are empty: a sentence, and no waiting."""
    (tmp_path / "folder.bin").mkdir()
    os.mkfifo(tmp_path / "pipe.bin")
    (tmp_path / "circle.bin").symlink_to("circle.bin")
    (tmp_path / "nowhere.npy").symlink_to("gone")
    (tmp_path / "empty.npy").write_bytes(b"")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(InputError, match=path.name):
            open_token_file(path)
    (tmp_path / "train.bin").write_bytes(b"")
    assert open_token_file(tmp_path / "train.bin").tokens == 0
    with pytest.raises(InputError, match="no shard has a batch"):
        use_all(tmp_path / "train.bin")
    (tmp_path / "real").write_bytes(npy())
    (tmp_path / "link.npy").symlink_to("real")
    use_all(tmp_path / "link.npy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", make_documents(40, seed=3))
    for layout in LAYOUTS:
        runs.build_inline(folder / layout, path, layout=layout, shard_tokens=3000)
    return folder


@pytest.mark.promise("verify finds all damage")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_verify_and_export_name_every_damaged_file(made: Path, tmp_path: Path, layout: str, tries: Tries) -> None:
    """Cut at any length, odd ones too, longer, flipped, replaced by a folder: damage, never a traceback."""
    chooser = random.Random(layout)
    names = sorted(name for name, data in runs.outputs_in(made / layout).items() if data)
    for number in tries(12, 300):
        folder = tmp_path / str(number)
        shutil.copytree(made / layout, folder)
        path = folder / chooser.choice(names)
        data = bytearray(path.read_bytes())
        kind = number % 4
        if kind == 0:
            path.write_bytes(data[: chooser.randrange(len(data))])
        elif kind == 1:
            path.write_bytes(data + chooser.randbytes(chooser.randint(1, 5)))
        elif kind == 2:
            data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
            path.write_bytes(data)
        else:
            path.unlink()
            path.mkdir()
        assert any(path.name in damage for damage in verify_folder(FolderStore(folder)).damages)
        if LAYOUTS[layout].holds_tokens(path.name):
            with pytest.raises(ShardError, match=path.name.split(".")[0]):
                runs.export(folder, tmp_path / "out" / str(number), layout="plain")
