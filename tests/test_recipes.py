"""CONTRIBUTING's recipes, followed literally in a copy of the package: a new file, an entry in a table."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.storage.bucket import Bucket
from tests.support import reference
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository
from tests.support.text_datasets import environment

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["one\nlittle text", "another", "", "the last one, with a tab\there"]

LAYOUT = """
import struct

from fineweb_shards.layouts.base import Layout


class Toy(Layout):
    name = "toy"
    eot_first = True
    header_bytes = 8
    pattern = r"toy_(val|train)_\\d{6,}\\.bin"

    def shard_name(self, split, index, digits=0):
        return f"toy_{split}_{index:0{max(digits, self.digits)}d}.bin"

    def header(self, tokens, dtype):
        return struct.pack("<4sI", b"TOY1", tokens)

    def loader_lines(self, folder, names, vocabulary):
        return [f"toy --data {folder}"]
"""

FORMAT = '''
import json

from fineweb_shards.formats.base import Format
from fineweb_shards.texts import Texts
from fineweb_shards.types import Batch, Cursor, TextChunk


class ToyFormat(Format):
    """A JSON array of texts: one batch."""

    def batches(self, file, position, starts_mid_document):
        if position < file.size_bytes:
            yield Batch(file.index, position, file.size_bytes, file.size_bytes)

    def chunks(self, file, batch):
        with self.place.open(file, batch.address) as source:
            texts = json.loads(source.read_at(0, file.size_bytes))
        start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
        yield TextChunk(Texts.from_strings(texts), start, end)

    def close(self):
        pass
'''

ENGINE = """
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine


class ToyEngine(Engine):
    name = "numpy"  # a package that is installed

    def __init__(self, vocabulary=None, mistaken=""):
        super().__init__(vocabulary, mistaken)
        self._inner = TiktokenEngine(vocabulary)

    def encode(self, texts):
        return self._inner.encode(texts)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, to be changed by a recipe."""
    shutil.copytree(ROOT / "fineweb_shards", tmp_path / "code" / "fineweb_shards")
    return tmp_path / "code" / "fineweb_shards"


def add(package: Path, file: str, text: str, table: str, old: str, new: str) -> None:
    """What a recipe says: a new file, and its entry in the table."""
    (package / file).write_text(text)
    entries = (package / table).read_text()
    assert entries.count(old) == 1, f"{table} has changed; is CONTRIBUTING still right?"
    (package / table).write_text(entries.replace(old, new))


def command(package: Path, *words: object, **variables: str) -> str:
    """Run the changed program; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fineweb_shards", *map(str, words)],
        cwd=package.parent,
        env={
            **os.environ,
            **variables,
            "PYTHONPATH": f"{package.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_layout(package: Path, tmp_path: Path) -> None:
    """Build, export, verify, inspect and the loader know it, and `--help` lists it."""
    entry = "from fineweb_shards.layouts.toy import Toy\n\nLAYOUTS: dict"
    add(package, "layouts/toy.py", LAYOUT, "layouts/__init__.py", "\nLAYOUTS: dict", entry)
    entries = (package / "layouts" / "__init__.py").read_text()
    (package / "layouts" / "__init__.py").write_text(entries.replace("Automodel(),", "Automodel(), Toy(),"))
    source, out, back = tmp_path / "a.jsonl", tmp_path / "out", tmp_path / "back"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    assert "toy" in command(package, "build", "--help")
    sizes = ["--shard-tokens", "10", "--val-tokens", "5"]
    command(package, "build", source, "--layout", "toy", *sizes, "--out", out, "--workers", "1")
    command(package, "verify", out)
    stream = reference.stream(DOCUMENTS)
    files = sorted(out.glob("toy_train_*.bin"))
    assert (out / "toy_val_000000.bin").read_bytes()[:8] == struct.pack("<4sI", b"TOY1", 5)
    tokens = np.concatenate([np.frombuffer(file.read_bytes()[8:], "<u2") for file in files])
    assert tokens.tolist() == stream[5:].tolist()
    assert json.loads(command(package, "inspect", out, "--json"))["tokens"] == len(stream)
    command(package, "export", out, "--layout", "plain", "--out", back)
    raw = b"".join(file.read_bytes() for file in sorted(back.glob("train_shard_*.bin")))
    assert np.frombuffer(raw, "<u2").tolist() == [*stream[1:].tolist(), reference.EOT]
    loader = f"""
from fineweb_shards.loader import ShardLoader
loader = ShardLoader({str(out)!r}, "train", batch_size=1, seq_len=4, framework="numpy")
print(loader.next_batch()[0].tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", loader], cwd=package.parent, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [stream[5:9].tolist()]


@pytest.fixture
def with_format(package: Path) -> Path:
    """The package with a new format. `datasets`, which lists the hub's files, has to know the ending."""
    entry = """"toy": FormatEntry("toy.ToyFormat", (".xml",)),
    ROWS: FormatEntry("""
    add(package, "formats/toy.py", FORMAT, "formats/registry.py", "ROWS: FormatEntry(", entry)
    return package


def check_format(package: Path, out: Path, *words: object, **variables: str) -> None:
    """A build of what the words name has the documents."""
    command(package, "build", *words, "--val-tokens", "0", "--out", out, "--workers", "1", **variables)
    found = np.load(out / "edufineweb_train_000000.npy")
    assert found.tolist() == reference.stream(DOCUMENTS).tolist()


def test_a_format_in_a_folder(with_format: Path, tmp_path: Path) -> None:
    """Found by its ending, or chosen by --format."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.xml").write_text(json.dumps(DOCUMENTS))
    (tmp_path / "b").write_text(json.dumps(DOCUMENTS))
    check_format(with_format, tmp_path / "out1", tmp_path / "in")
    check_format(with_format, tmp_path / "out2", tmp_path / "b", "--format", "toy")
    assert "toy" in command(with_format, "build", "--help")


def test_a_format_in_a_bucket(with_format: Path, tmp_path: Path, bucket_url: str) -> None:
    """Nothing but the format's own two steps is needed."""
    Bucket(bucket_url).overwrite("in/a.xml", json.dumps(DOCUMENTS).encode())
    check_format(with_format, tmp_path / "out", f"{bucket_url}/in/")


@pytest.mark.parametrize("download", [[], ["--download"]], ids=["ranges", "on-disk"])
def test_a_format_on_the_hub(with_format: Path, tmp_path: Path, download: list[str]) -> None:
    """Nothing but the format's own two steps is needed, by ranges or from the disk."""
    content = json.dumps(DOCUMENTS) + " " * 2**20  # the hub keeps it as a large file
    with StandInHub([Repository("me/toys", {"a.xml": content.encode()})]) as hub:
        variables = environment(hub, tmp_path / "home")
        check_format(with_format, tmp_path / "out", "--dataset", "me/toys", *download, **variables)


def test_an_engine(package: Path, tmp_path: Path) -> None:
    """Chosen by --engine, with the self-test and the check of a sample."""
    entry = "from fineweb_shards.tokenizers.toy_engine import ToyEngine\n\n# `auto` takes the first"
    add(package, "tokenizers/toy_engine.py", ENGINE, "tokenizers/__init__.py", "\n# `auto` takes the first", entry)
    entries = (package / "tokenizers" / "__init__.py").read_text()
    changed = entries.replace("(GigatokenEngine, FastokensEngine)", "(GigatokenEngine, FastokensEngine, ToyEngine)")
    (package / "tokenizers" / "__init__.py").write_text(changed)
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    words = ["--engine", "numpy", "--val-tokens", "0", "--workers", "1", "--out", tmp_path / "out"]
    command(package, "build", source, *words)
    found = np.load(tmp_path / "out" / "edufineweb_train_000000.npy")
    assert found.tolist() == reference.stream(DOCUMENTS).tolist()
    assert "numpy" in json.loads((tmp_path / "out" / "manifest.json").read_text())["versions"]
