"""The lines that a build prints for its trainer can be pasted, and load what was built."""

from __future__ import annotations

import ast
import dataclasses
import glob
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.run.output_text import training_lines
from fineweb_shards.vocabulary import GPT2, Vocabulary
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

DOCUMENTS = [text for text in make_documents(30, seed=11) if text]
ENCODED = [[*reference.encode(text), GPT2.eot] for text in DOCUMENTS]
STREAM = [token for document in ENCODED for token in document]
HOSTILE = """it's "my" $HOME [1] data"""


def lines_of(out: Path | str, tmp_path: Path, layout: str) -> list[str]:
    """What is printed after a build without validation into `out`."""
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    manifest = runs.build_inline(out, source, layout=layout, shard_tokens=2000, val_tokens=0)
    lines = training_lines(runs.job_of(out, source, layout=layout).output, manifest)
    return [line.removeprefix("    ") for line in lines[3:]]


def execute(lines: list[str], **names: Any) -> dict[str, Any]:
    """The names that the lines define; what a user has to fill in is a number."""
    exec("\n".join(lines).replace("…", "64"), names)
    return names


def files_in(layout: str, lines: list[str]) -> list[str]:
    """The files that the layout's reader opens, given these lines."""
    text = "\n".join(lines)
    if layout in ("build-nanogpt", "nanogpt", "plain"):
        loaded = execute(lines)["tokens"]
        assert len(loaded)
        return [str(loaded.filename)]
    if layout == "llm.c":
        return glob.glob(shlex.split(text)[2])
    if layout == "modded-nanogpt":
        return glob.glob(execute(lines)["train_files"])
    if layout == "megatron":
        return glob.glob(glob.escape(shlex.split(text)[1]) + ".bin")
    if layout == "automodel":
        return glob.glob(json.loads(text.partition("file_pattern: ")[2]))
    source = SimpleNamespace(Config=lambda **paths: paths)  # torchtitan
    path = execute([f"paths = {text}"], PretokenizedMemmapSource=source)["paths"]["tokens_path"]
    return glob.glob(glob.escape(path))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("olmo-core", "datatrove")])
def test_names_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Of a folder with quotes, blanks, a variable and a wildcard in its name; for Python, YAML and shells."""
    monkeypatch.chdir(tmp_path)
    found = files_in(layout, lines_of(HOSTILE, tmp_path, layout))
    assert found
    assert {Path(path).resolve().parent for path in found} == {(tmp_path / HOSTILE).resolve()}


def test_cat_joins_plain_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line for one file, pasted into a shell."""
    monkeypatch.chdir(tmp_path)
    line = lines_of(HOSTILE, tmp_path, "plain")[-1]
    subprocess.run(line.partition(": ")[2], shell=True, check=True)
    assert np.fromfile("train.bin", np.uint16).tolist() == STREAM


@pytest.mark.parametrize("out", ["data/fineweb", "data/fineweb/", "elsewhere/my shards", "2024"])
def test_nanogpt_finds_its_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    """train.py: `data_dir = os.path.join('data', dataset)`; configurator.py splits at "=", takes what Python reads as a
    literal for one, and wants a string here."""
    monkeypatch.chdir(tmp_path)
    line = lines_of(out, tmp_path, "nanogpt")[-1]
    place, argument = re.fullmatch(r"# .* as (data/.+?) in its own: python train\.py (.+)", line).groups()  # type: ignore[union-attr]
    key, value = shlex.split(argument)[0].split("=")
    with pytest.raises((SyntaxError, ValueError)):
        ast.literal_eval(value)
    assert key == "--dataset"
    if not out.startswith("data/"):
        os.makedirs("data", exist_ok=True)
        os.rename(out, place)
    data_dir = os.path.join("data", value)
    tokens = np.memmap(os.path.join(data_dir, "train.bin"), dtype=np.uint16, mode="r")
    assert tokens.tolist() == STREAM


@dataclasses.dataclass
class TokenizerConfig:
    """olmo_core.data.TokenizerConfig, as in OLMo-core 3.0."""

    vocab_size: int
    eos_token_id: int
    pad_token_id: int
    bos_token_id: int | None = None
    identifier: str | None = None

    @classmethod
    def gpt2(cls) -> TokenizerConfig:
        return cls(vocab_size=50257, eos_token_id=50256, bos_token_id=50256, pad_token_id=50256)


def olmo_documents(tokens: Any, tokenizer: TokenizerConfig) -> list[list[int]]:
    """Those that iter_document_indices finds (olmo_core/data/utils.py): an EOS ends one; if there is a BOS, only an EOS
    before a BOS does, or at the end of the file."""
    is_end = tokens == tokenizer.eos_token_id
    if tokenizer.bos_token_id is not None:
        is_end = is_end & [*(tokens[1:] == tokenizer.bos_token_id), True]
    parts: list[Any] = np.split(tokens, np.flatnonzero(is_end) + 1)
    return [part.tolist() for part in parts if len(part)]


def run_olmo_lines(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of the dataset that the lines make."""
    module = ModuleType("olmo_core.data")
    settings: dict[str, Any] = {}
    dtypes = SimpleNamespace(uint16=np.uint16, uint32=np.uint32)
    vars(module).update(
        NumpyDatasetDType=dtypes, NumpyFSLDatasetConfig=settings.update, TokenizerConfig=TokenizerConfig
    )
    monkeypatch.setitem(sys.modules, "olmo_core", ModuleType("olmo_core"))
    monkeypatch.setitem(sys.modules, "olmo_core.data", module)
    execute(lines)
    return settings


def test_olmo_core_finds_every_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the printed tokenizer; with OLMo-core's own one for GPT-2, whose BOS is its EOS, it finds only the ends of
    files. VSL refuses any BOS."""
    monkeypatch.chdir(tmp_path)
    settings = run_olmo_lines(lines_of(HOSTILE, tmp_path, "olmo-core"), monkeypatch)
    files = [np.fromfile(path, settings["dtype"]) for path in sorted(glob.glob(settings["paths"][0]))]
    assert settings["expand_glob"]
    assert settings["tokenizer"] == dataclasses.replace(TokenizerConfig.gpt2(), bos_token_id=None)
    assert olmo_documents(np.concatenate(files), settings["tokenizer"]) == ENCODED
    assert len(olmo_documents(np.concatenate(files), TokenizerConfig.gpt2())) == 1


def test_olmo_core_is_told_other_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number of ids, EOS and width; no BOS either."""
    vocabulary = Vocabulary("other", "0" * 64, 128_256, 128_001)
    lines = LAYOUTS["olmo-core"].loader_lines("out", ["part-train-00000.npy"], vocabulary)
    settings = run_olmo_lines(lines, monkeypatch)
    assert settings["tokenizer"] == TokenizerConfig(128_256, 128_001, 128_001)
    assert settings["dtype"] is np.uint32


def test_datatrove_is_told_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is: only the names in it are a pattern."""
    monkeypatch.chdir(tmp_path)
    lines = lines_of(HOSTILE, tmp_path, "datatrove")
    module = ModuleType("datatrove.utils.dataset")
    opened: list[str] = []
    vars(module)["DatatroveFolderDataset"] = lambda folder, **_: opened.append(folder)
    for name in ("datatrove", "datatrove.utils", "datatrove.utils.dataset"):
        monkeypatch.setitem(sys.modules, name, module)
    execute(lines)
    assert opened == [HOSTILE]
