"""`inspect`: what a plain loop over the documents finds, shown safely, like other Unix tools."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.reading import inspection
from fineweb_shards.reading import token_file as tokenfile
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

DOCUMENTS = [*make_documents(60, seed=88), "needle in a haystack", "x" * 3000 + "needle", "", "last needle, needle"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same documents in every layout, in one stream."""
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", DOCUMENTS)
    for layout in LAYOUTS:
        runs.build_inline(folder / layout, path, **Wanted(layout, 5000, val_tokens=0).settings())
    return {layout: folder / layout for layout in LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bare", [False, True])
def test_figures_are_those_of_the_documents(made: dict[str, Path], tmp_path: Path, layout: str, bare: bool) -> None:
    """Tokens, documents, bytes, the longest, by a loop; with a manifest or without."""
    folder = made[layout]
    if bare:
        folder = tmp_path
        for name, data in runs.outputs_in(made[layout]).items():
            (folder / name).write_bytes(data)
    if bare and layout in ("olmo-core", "datatrove"):  # nothing but the manifest tells how wide their tokens are
        with pytest.raises(InputError, match="no manifest of a build beside it"):
            inspection.open_target(folder)
        return
    found = inspection.count(inspection.open_target(folder))
    lengths = [len(reference.encode(text)) for text in DOCUMENTS]
    assert found.tokens == sum(lengths) + len(lengths)
    assert found.documents == len(DOCUMENTS)
    assert found.longest == max(lengths)
    assert found.text_bytes == sum(len(text.encode()) for text in DOCUMENTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_has_the_documents_that_its_index_names(tmp_path: Path, layout: str) -> None:
    """One that began in the file before, be it in the other split, is counted there and not here."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    out = tmp_path / "out"
    runs.build_inline(out, path, **Wanted(layout, 5000, val_tokens=1500, index=True).settings())
    names = [path.name for path in out.iterdir() if LAYOUTS[layout].holds_tokens(path.name)]
    assert len(names) > 1
    for name in names:
        found = inspection.count(inspection.open_target(out / name))
        assert found.documents == len(np.load(out / "index" / f"{Path(name).stem}.npy"))


@pytest.mark.parametrize("layout", ["build-nanogpt", "llm.c", "nanogpt", "plain"])
def test_every_document_is_found_by_its_number(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Also those that run over blocks and shards, and the empty ones."""
    monkeypatch.setattr(tokenfile, "BLOCK_TOKENS", 501)
    target = inspection.open_target(made[layout])
    for number, text in enumerate(DOCUMENTS):
        assert "".join(inspection.read_document(target, number)) == text
    with pytest.raises(UsageError, match=f"--document {len(DOCUMENTS)}"):
        list(inspection.read_document(target, len(DOCUMENTS)))


@pytest.mark.parametrize("block_tokens", [3, 64, 10**6])
@pytest.mark.parametrize("layout", ["build-nanogpt", "plain"])
def test_grep_finds_the_documents_that_contain_the_text(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch, layout: str, block_tokens: int
) -> None:
    """Each once, with its number, wherever blocks end; never across two documents."""
    monkeypatch.setattr(tokenfile, "BLOCK_TOKENS", block_tokens)
    target = inspection.open_target(made[layout])
    for wanted in ("needle", "a", "你好", "haystackx", "needle, needle", "的一是不了人我在有他的"):
        expected = [number for number, text in enumerate(DOCUMENTS) if wanted in text]
        found = list(inspection.find_text(target, wanted))
        assert [match.document for match in found] == expected
        assert all(match.before + match.text + match.after in DOCUMENTS[match.document] for match in found)


def test_a_shard_that_begins_inside_a_document(tmp_path: Path) -> None:
    """The rest of the document before has no number; the first that begins here is 0."""
    tokens = [*reference.encode("the rest"), reference.EOT, *reference.encode("whole")]
    np.save(tmp_path / "edufineweb_train_000007.npy", np.array(tokens, np.uint16))
    target = inspection.open_target(tmp_path / "edufineweb_train_000007.npy")
    assert "".join(inspection.read_document(target, 0)) == "whole"
    assert [match.document for match in inspection.find_text(target, "rest")] == [-1]
    shown = inline.run_command("inspect", target.location, "--grep", "rest")
    assert shown.stdout == "rest: the rest\n"


def test_a_document_that_began_before_is_not_counted(tmp_path: Path) -> None:
    """Figures, --document and --grep agree, and the view says that the file begins inside a document."""
    rest, whole = reference.encode("the rest of it"), reference.encode("whole")
    tokens = np.array([*rest, reference.EOT, *whole, reference.EOT], np.uint16)
    np.save(tmp_path / "edufineweb_train_000007.npy", tokens)
    target = inspection.open_target(tmp_path / "edufineweb_train_000007.npy")
    found = inspection.count(target)
    assert (found.documents, found.longest, found.head_tokens) == (2, len(whole), len(rest))
    assert ["".join(inspection.read_document(target, number)) for number in (0, 1)] == ["whole", ""]
    with pytest.raises(UsageError):
        list(inspection.read_document(target, 2))
    assert [match.document for match in inspection.find_text(target, "e")] == [-1, 0]
    shown = inline.run_command("inspect", target.location).stdout
    assert f"with the last {len(rest)} tokens of an earlier document" in shown
    assert re.search(r"documents +2, EOT before each\n", shown)
    assert re.search(rf"length +{len(whole) / 2:.1f} tokens on average", shown)


@pytest.mark.parametrize(
    ("before", "name"),
    [("train_shard_0000.bin", "train_shard_0001.bin"), ("val_shard_0000.bin", "train_shard_0001.bin"),
     ("val.bin", "train.bin"), ("train_shard_0099.bin", "train_shard_0100.bin")],
)  # fmt: skip
@pytest.mark.parametrize("inside", [False, True])
def test_with_eot_behind_the_shard_before_tells_where_a_document_begins(
    tmp_path: Path, before: str, name: str, inside: bool
) -> None:
    """If it ends without an EOT, what comes first here is a rest, in all three views."""
    documents = [reference.encode(text) for text in ("first", "second one", "third")]
    tokens = np.array([token for document in documents for token in [*document, reference.EOT]], np.uint16)
    (tmp_path / name).write_bytes(tokens.tobytes())
    ending = np.array([5, 6] if inside else [5, reference.EOT], np.uint16)
    (tmp_path / before).write_bytes(ending.tobytes())
    target = inspection.open_target(tmp_path / name)
    assert inspection.count(target).documents == 3 - inside
    assert {inspection.choose_document(target, seed) for seed in range(30)} == set(range(3 - inside))
    texts = ["first", "second one", "third"][inside:]
    assert ["".join(inspection.read_document(target, n)) for n in range(3 - inside)] == texts
    (match,) = inspection.find_text(target, "first")
    assert match.document == (-1 if inside else 0)


def test_bytes_that_are_no_text_are_refused(made: dict[str, Path]) -> None:
    """`--grep $'\\xff'` once never ended: that byte stood for the boundary of two documents."""
    target = inspection.open_target(made["plain"])
    for text in ("\udcff", "a\udce4", ""):
        with pytest.raises(UsageError, match="--grep"):
            next(inspection.find_text(target, text))
    done = subprocess.run(
        [*map(os.fsencode, runs.command("inspect", made["plain"], "--grep")), b"\xff"],
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    assert b"not valid UTF-8" in done.stderr


def test_only_eot_is_a_boundary(tmp_path: Path) -> None:
    """Not a number outside the vocabulary, nor the token of the byte 0xff: the three views count alike."""
    (odd,) = (token for token in range(256) if reference.encoding().decode_bytes([token]) == b"\xff")
    tokens = [reference.EOT, 65535, odd, *reference.encode("needle"), reference.EOT, odd, 60000]
    tokens += [reference.EOT, *reference.encode("needle")]
    np.save(tmp_path / "edufineweb_train_000000.npy", np.array(tokens, np.uint16))
    target = inspection.open_target(tmp_path)
    assert inspection.count(target).documents == 3
    assert [match.document for match in inspection.find_text(target, "needle")] == [0, 2]
    assert "".join(inspection.read_document(target, 0)) == "\ufffd\ufffdneedle"
    assert "".join(inspection.read_document(target, 2)) == "needle"


def test_random_is_seeded(made: dict[str, Path]) -> None:
    """The same seed shows the same document; many seeds show many."""
    target = inspection.open_target(made["plain"])
    chosen = [inspection.choose_document(target, seed) for seed in range(40)]
    assert chosen == [inspection.choose_document(target, seed) for seed in range(40)]
    assert len(set(chosen)) > 15
    assert set(chosen) <= set(range(len(DOCUMENTS)))


def test_the_command(made: dict[str, Path], tmp_path: Path) -> None:
    """Figures, JSON, a document, exit codes; a file that is none is told."""
    shown = inline.run_command("inspect", made["llm.c"])
    assert shown.returncode == 0, shown.stderr
    assert "llm.c header, version 1, uint16" in shown.stdout
    assert re.search(rf"documents +{len(DOCUMENTS)}, EOT before each", shown.stdout)
    data = json.loads(inline.run_command("inspect", made["nanogpt"], "--json").stdout)
    assert data["documents"] == sum(row["documents"] for row in data["document_lengths"]) == len(DOCUMENTS)
    number = len(DOCUMENTS) - 4
    shown = inline.run_command("inspect", made["plain"], "--document", str(number))
    assert shown.stdout.endswith("\n\nneedle in a haystack\n")
    shown = inline.run_command("inspect", made["plain"], "--document", str(number), "--json")
    assert json.loads(shown.stdout) == {"document": number, "text": DOCUMENTS[number]}
    nothing = inline.run_command("inspect", made["plain"], "--grep", "no such text")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, "", "")
    for words in (["--document", "x"], ["--grep", ""], ["--grep", "a", "--random"], ["--document", "9999"]):
        assert inline.run_command("inspect", made["plain"], *words).returncode == 2
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "missing"):
        refused = inline.run_command("inspect", path)
        assert refused.returncode == 3
        assert "Traceback" not in refused.stderr


def test_a_pipe_that_is_closed_early(made: dict[str, Path]) -> None:
    """`| head` ends it without a word."""
    process = subprocess.Popen(
        runs.command("inspect", made["plain"], "--grep", "e"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() in (0, 141)


def test_nothing_from_a_document_reaches_the_terminal_raw(tmp_path: Path) -> None:
    """Escapes, bidi marks and control characters in documents and names become a dot."""
    payloads = ["\x1b[31mred\x1b[0m needle", "needle \u202egnirts", "a\x07\x08\r needle\x9b2J", "\x1b]0;t\x07 needle"]
    path = write_jsonl(tmp_path / "a.jsonl", payloads)
    runs.build_inline(tmp_path / "out", path, layout="nanogpt", val_tokens=0)
    outputs = [inline.run_command("inspect", tmp_path / "out", "--document", str(i)).stdout for i in range(4)]
    outputs.append(inline.run_command("inspect", tmp_path / "out", "--grep", "needle").stdout)
    outputs.append(inline.run_command("inspect", tmp_path / "out").stdout)
    outputs.append(inline.run_command("inspect", tmp_path / "out", "--grep", "needle", "--json").stdout)
    assert outputs[4].count("needle") == 4
    for output in outputs:
        assert all(char.isprintable() or char == "\n" for char in output)


def test_splits_side_by_side(tmp_path: Path) -> None:
    """Both files of a split by documents are counted, in the order of their names in the manifest."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    wanted = Wanted("nanogpt", 5000, val_ratio=Fraction(1, 5))
    runs.build_inline(tmp_path / "out", path, **wanted.settings())
    target = inspection.open_target(tmp_path / "out")
    assert inspection.count(target).documents == len(DOCUMENTS)
    texts = sorted("".join(inspection.read_document(target, n)) for n in range(len(DOCUMENTS)))
    assert texts == sorted(DOCUMENTS)


def test_files_of_several_layouts_are_told_apart(tmp_path: Path) -> None:
    """A folder that holds both sides of EOT can't be read as one stream."""
    (tmp_path / "train.bin").write_bytes(b"\0\0")
    np.save(tmp_path / "edufineweb_val_000000.npy", np.array([random.Random(1).randrange(9)], np.uint16))
    with pytest.raises(InputError, match="several layouts"):
        inspection.open_target(tmp_path)


def test_token_bytes_are_those_of_tiktoken(made: dict[str, Path], tmp_path: Path) -> None:
    """One int32 for every id, 0 for EOT: with them the bytes of a text are those of its tokens."""
    path = tmp_path / "token_bytes.npy"
    for words in ([], ["--json"]):  # again: the same content is no reason to refuse
        done = inline.run_command("inspect", made["build-nanogpt"], "--token-bytes", path, *words)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"file": str(path), "vocabulary": "gpt2", "ids": 50257}
    found = np.load(path)
    encoding = reference.encoding()
    assert found.dtype == np.int32
    assert found.tolist() == [len(encoding.decode_single_token_bytes(i)) for i in range(50256)] + [0]


def test_token_bytes_never_replace_another_file(made: dict[str, Path], tmp_path: Path) -> None:
    """Neither a shard nor a folder."""
    shard = next(made["build-nanogpt"].glob("*.npy"))
    before = shard.read_bytes()
    for path in (shard, tmp_path):
        done = inline.run_command("inspect", made["build-nanogpt"], "--token-bytes", path)
        assert (done.returncode, f"--token-bytes {path}: something else" in done.stderr) == (2, True)
    assert shard.read_bytes() == before
    done = inline.run_command("inspect", made["build-nanogpt"], "--token-bytes", tmp_path / "no" / "folder.npy")
    assert (done.returncode, "folder.npy" in done.stderr) == (5, True)
