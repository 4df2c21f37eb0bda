"""--fresh deletes what a manifest of ours names and our work folder, says so, asks, and nothing else ever."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from fineweb_shards.errors import DamageError, OutputError, UsageError
from fineweb_shards.layouts import LAYOUTS, get_layout
from fineweb_shards.output.cleanup import plan_deletion, start_over
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.run.build import build
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.watching.screen import Screen
from tests.support import inline, reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_parquet, write_text

NANO = get_layout("build-nanogpt")
FOREIGN = {
    "a web application": json.dumps({"name": "Shop", "short_name": "Shop", "icons": [], "start_url": "/"}),
    "an image's layers": json.dumps({"schemaVersion": 2, "config": {}, "layers": [], "files": []}),
    "no JSON": "chapter 1\n",
    "nothing": "",
    "a list": "[]",
}


def everything_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name != "lock"}


def make_folder(tmp_path: Path, **settings: object) -> Path:
    path = write_parquet(tmp_path / "a.parquet", make_documents(60, seed=51))
    runs.build_inline(tmp_path / "out", path, shard_tokens=3000, **settings)
    return tmp_path / "out"


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_another_program_is_left_alone(tmp_path: Path, kind: str, fresh: bool) -> None:
    """Whatever its manifest.json is: exit code 5, another --out is recommended, every byte stays."""
    path = write_text(tmp_path / "a.txt", ["one", "two"])
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text(FOREIGN[kind])
    (out / "edufineweb_train_000001.npy").write_bytes(b"precious")
    (out / "train.bin").write_bytes(b"precious")
    before = everything_in(out)
    with pytest.raises(OutputError, match="another program") as refused:
        build(runs.job_of(out, path).config, fresh=fresh, yes=True, screen=Screen(), command="")
    assert refused.value.exit_code == 5
    assert "choose another --out" in refused.value.hint
    assert everything_in(out) == before
    assert not (out / WORK_FOLDER).exists()


@pytest.mark.parametrize("damage", ["empty", "flipped", "cut", "edited", "zeros"])
def test_a_damaged_manifest_deletes_nothing(tmp_path: Path, damage: str) -> None:
    """Nobody can say then which files are ours."""
    out = make_folder(tmp_path)
    path = out / "manifest.json"
    good = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "flipped": good.replace(b"_train_000001", b"_train_000777"),
            "cut": good[: len(good) // 2],
            "edited": good.replace(b'"documents"', b'"document"', 1),
            "zeros": bytes(len(good)),
        }[damage]
    )
    before = everything_in(out)
    with pytest.raises(DamageError, match="the manifest is damaged") as refused:
        start_over(FolderStore(out), NANO, print, yes=True)
    assert everything_in(out) == before
    assert "choose another --out" in refused.value.hint


@pytest.mark.parametrize("old", sorted(LAYOUTS))
@pytest.mark.parametrize("new", ["build-nanogpt", "megatron"])
def test_what_the_manifest_lists_goes_whatever_its_layout(tmp_path: Path, old: str, new: str) -> None:
    """Sidecars and their folder included; foreign files of all kinds of names stay."""
    out = make_folder(tmp_path, layout=old, index=True)
    listed = [path for path in [*out.iterdir(), *(out / "index").iterdir()] if path.is_file()]
    foreign = ["notes.txt", "train_gpt2.py", "manifest.json.bak", "my.idx", "part-0-00000.npy", "mine.ds.index"]
    foreign += ["edu_fineweb_train_000099.bin", "train_shard_9999.bin"] if old != "llm.c" else []
    for name in foreign:
        (out / name).write_text("precious")
    said: list[str] = []
    start_over(FolderStore(out), get_layout(new), said.append, yes=True)
    assert sorted(path.name for path in out.iterdir()) == sorted([*foreign, WORK_FOLDER])
    assert [path.name for path in (out / WORK_FOLDER).iterdir()] == ["lock"]
    assert len(said) == 1
    assert said[0].startswith(f"--fresh: deleting {len(listed)} files in ")


def test_other_files_in_the_folder_of_the_index_stay(tmp_path: Path) -> None:
    """And the folder with them; one that is called like an index of a shard is named, and all stays."""
    out = make_folder(tmp_path, index=True)
    (out / "index" / "edufineweb_train_000777.npy").write_text("precious")
    before = everything_in(out)
    with pytest.raises(OutputError, match=r"index/edufineweb_train_000777\.npy is here, but no"):
        start_over(FolderStore(out), NANO, print, yes=True)
    assert everything_in(out) == before
    (out / "index" / "edufineweb_train_000777.npy").rename(out / "index" / "mine.npy")
    start_over(FolderStore(out), NANO, print, yes=True)
    assert [path.name for path in (out / "index").iterdir()] == ["mine.npy"]


@pytest.mark.parametrize("finished", [True, False])
def test_shards_that_no_manifest_lists_stay(tmp_path: Path, finished: bool) -> None:
    """They are named, and nothing else is deleted before they are moved away; --fresh is not recommended."""
    out = make_folder(tmp_path)
    if not finished:
        runs.forget_after(out, 2)
        for name in sorted(runs.shards_in(out))[2:-1]:
            (out / name).unlink()
    (out / "edufineweb_train_000777.npy").write_bytes(b"precious")
    before = everything_in(out)
    with pytest.raises(OutputError, match=r"edufineweb_train_000777\.npy is here, but no") as refused:
        start_over(FolderStore(out), NANO, print, yes=True)
    assert everything_in(out) == before
    assert refused.value.hint == "Choose another --out, or move them away."


def test_a_shard_that_was_getting_its_name_goes_too(tmp_path: Path) -> None:
    """The one a killed run had just finished; a foreign file under its name is no shard, and stays."""
    out = make_folder(tmp_path)
    runs.forget_after(out, 2)
    names = sorted(runs.shards_in(out))
    third = out / "edufineweb_train_000002.npy"
    for name in names:
        if name not in ("edufineweb_val_000000.npy", "edufineweb_train_000001.npy", third.name):
            (out / name).unlink()
    whole = third.read_bytes()
    third.write_bytes(b"precious")
    with pytest.raises(OutputError, match=third.name):
        plan_deletion(FolderStore(out), NANO)
    third.write_bytes(whole)
    start_over(FolderStore(out), NANO, print, yes=True)
    assert sorted(path.name for path in out.iterdir()) == [WORK_FOLDER]


def test_all_shards_that_were_getting_their_names_go_too(tmp_path: Path) -> None:
    """A run names any number of small ones before it records them. If one of them is foreign, all stay."""
    out = make_folder(tmp_path)
    runs.forget_after(out, 2)
    assert len(runs.shards_in(out)) > 4
    third = out / "edufineweb_train_000002.npy"
    whole = third.read_bytes()
    third.write_bytes(b"precious")
    before = everything_in(out)
    with pytest.raises(OutputError, match=f"{third.name} is here"):
        start_over(FolderStore(out), NANO, print, yes=True)
    assert everything_in(out) == before
    third.write_bytes(whole)
    start_over(FolderStore(out), NANO, print, yes=True)
    assert sorted(path.name for path in out.iterdir()) == [WORK_FOLDER]


def test_outside_a_terminal_it_must_be_told_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --yes nothing is deleted, and the sentence says what would have been."""
    out = make_folder(tmp_path)
    before = everything_in(out)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match=r"--fresh would delete \d+ files? in .*out.* kB") as refused:
        start_over(FolderStore(out), NANO, print, yes=False)
    assert "--yes" in refused.value.hint
    assert everything_in(out) == before


def test_in_a_notebook_it_must_be_told_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in a cell has a terminal, into which nobody can type an answer."""
    out = make_folder(tmp_path)
    stream = io.StringIO("y\n")
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stream)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("JPY_PARENT_PID", "4711")
    with pytest.raises(UsageError, match="--fresh would delete"):
        start_over(FolderStore(out), NANO, print, yes=False)


def test_an_empty_folder_needs_no_question(tmp_path: Path) -> None:
    """There is nothing to delete, so nothing is said."""
    said: list[str] = []
    start_over(FolderStore(tmp_path), NANO, said.append, yes=False)
    assert said == []


@pytest.mark.full(but=["y*"])
@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 2), (b"\n", 2), (b"\x04", 2)])
def test_in_a_terminal_it_asks(tmp_path: Path, answer: bytes, code: int) -> None:
    """Only a yes deletes."""
    path = write_text(tmp_path / "a.txt", ["one", "two"])
    out = tmp_path / "out"
    runs.build_inline(out, path)
    before = everything_in(out)
    ours, theirs = pty.openpty()
    words = ["export", out, "--out", tmp_path / "copy", "--layout", "plain", "--fresh"]
    assert inline.run_command(*words).returncode == 0  # nothing to delete yet
    copied = everything_in(tmp_path / "copy")
    with subprocess.Popen(runs.command(*words), stdin=theirs, stderr=theirs, stdout=subprocess.PIPE) as process:
        os.close(theirs)
        seen = b""
        while b"[y/N]" not in seen:
            seen += os.read(ours, 1000)
        os.write(ours, answer)
        process.communicate(timeout=600)
    os.close(ours)
    assert process.returncode == code
    assert b"--fresh deletes 2 files" in seen
    assert everything_in(out) == before
    if code:
        assert everything_in(tmp_path / "copy") == copied


def test_a_link_in_place_of_the_work_folder_is_not_followed(tmp_path: Path) -> None:
    """What it leads to is not ours; a link inside the work folder goes, and what it leads to stays."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    out = make_folder(tmp_path)
    (out / WORK_FOLDER / "link").symlink_to(elsewhere)
    start_over(FolderStore(out), NANO, print, yes=True)
    (out / WORK_FOLDER / "lock").unlink()
    (out / WORK_FOLDER).rmdir()
    (out / WORK_FOLDER).symlink_to(elsewhere)
    with pytest.raises(OutputError, match="link to another folder"):
        start_over(FolderStore(out), NANO, print, yes=True)
    assert (elsewhere / "file").read_text() == "precious"


def test_an_interrupted_repair_leaves_no_stranger(tmp_path: Path) -> None:
    """Files that a repair makes again are gone before it begins: else a kill would turn them into somebody else's."""
    documents = make_documents(60, seed=51)
    out = make_folder(tmp_path)
    (out / "edufineweb_train_000001.npy").unlink()
    from fineweb_shards.output.resume_rules import trim_to_whole_files
    from fineweb_shards.writing.placement import begin_output

    manifest = load_manifest(out)
    assert manifest is not None
    begin_output(FolderStore(out), trim_to_whole_files(manifest, FolderStore(out)))  # and here it is killed
    assert sorted(runs.shards_in(out)) == ["edufineweb_val_000000.npy"]
    plan_deletion(FolderStore(out), NANO)
    runs.build_inline(out, tmp_path / "a.parquet", shard_tokens=3000)
    assert runs.shards_in(out) == reference.shard_files(reference.stream(documents), 3000)
