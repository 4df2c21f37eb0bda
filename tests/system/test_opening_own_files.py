"""Files of our own: opened in one place, and only if they are that."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fineweb_shards
from fineweb_shards.errors import OutputError
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.system import own_files
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.own_files import WORK_FOLDER, ForeignFileError, claim_folder, open_own, read_file
from fineweb_shards.watching.run_files import load_heartbeat, load_history
from fineweb_shards.watching.status import read_status
from tests.support import inline
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl

PACKAGE = Path(fineweb_shards.__file__).parent
WRITES = {"write_text", "write_bytes", "touch", "truncate", "symlink_to", "hardlink_to", "memmap", "tofile"}
# Other files than those of an output, a cache or a scratch folder, and calls that open none by its name.
ELSEWHERE = {
    "system/own_files.py": {"open"},
    "system/machine.py": {"write_text"},  # /proc/self/oom_score_adj
    "system/durable.py": {"open", "truncate"},  # a folder, to sync it; the lock, which is open
    "system/shared_memory.py": {"truncate"},  # of a file that is open
    "system/standard_streams.py": {"open"},  # /dev/null
    "executors/ray/board.py": {"write_bytes"},  # in a new folder that nobody else can write to
    "storage/hub.py": {"truncate"},  # of a file that is open
    "storage/local.py": {"open"},  # a pipe of the input, to read from
    "output/folder_store.py": {"truncate"},  # of a file that is open
    "output/shard_files.py": {"truncate"},  # the same, as in the next two
    "formats/piles.py": {"truncate"},
    "writing/placement.py": {"truncate"},
    "reading/token_file.py": {"memmap"},  # to read, as in the next one
    "loader/shard_cache.py": {"memmap"},
}


def writing_calls(path: Path) -> Iterator[str]:
    """The calls in a module that may open, make or change a file by its name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = getattr(getattr(function, "value", None), "id", "")
        words = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if name in WRITES:
            yield name
        elif name in ("open", "fdopen") and (
            owner == "os" or any(set(word) & set("wax+") and len(word) < 4 for word in words)
        ):
            yield "open"


def test_nothing_else_opens_a_file_to_write() -> None:
    """A module that writes a file of ours in a way of its own would follow a link: there is one place."""
    found = {path.relative_to(PACKAGE).as_posix(): set(writing_calls(path)) for path in PACKAGE.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == ELSEWHERE


@pytest.mark.parametrize("mode", ["rb", "r+b", "a+b", "xb"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_only_plain_files_are_opened(tmp_path: Path, mode: str, kind: str) -> None:
    """In every mode something else is refused, named, left as it is and not waited for."""
    path, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_text("precious")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim if kind == "link" else tmp_path / "nothing")
    before = path.lstat()
    with pytest.raises(ForeignFileError, match=kind.removeprefix("dangling ")) as refused:
        open_own(path, mode)  # type: ignore[arg-type]
    assert refused.value.filename == str(path)
    assert refused.value.hint.startswith("It was left alone.")
    assert path.lstat() == before
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_another_hard_link_is_read_but_not_written(tmp_path: Path) -> None:
    """A new file takes its name; the other name keeps the content. The advice gives it content of its own."""
    (tmp_path / "victim").write_text("precious")
    path = tmp_path / "file"
    os.link(tmp_path / "victim", path)
    assert read_file(path) == b"precious"
    for mode in ("r+b", "a+b"):
        with pytest.raises(ForeignFileError, match=r"2 names \(hard links\)") as refused:
            open_own(path, mode)  # type: ignore[arg-type]
    assert os.system(refused.value.hint.partition(": ")[2]) == 0
    with open_own(path, "a+b") as file:
        file.write(b" and more")
    (tmp_path / "file.tmp").hardlink_to(tmp_path / "victim")
    with open_own(tmp_path / "file.tmp", "xb") as file:
        file.write(b"new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert path.read_text() == "precious and more"


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could put anything into it. Where a file system gives every file to one user, it is ours."""
    work = tmp_path / WORK_FOLDER
    work.mkdir()
    user = work.stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    claim_folder(work)  # a new file here belongs to the same user as the folder
    monkeypatch.setattr(own_files, "_owner_of_new_file", lambda folder: user)
    with pytest.raises(OutputError, match="belongs to another user") as refused, FolderLock(tmp_path):
        pass
    assert "Run the command as that user" in refused.value.hint
    assert not list(work.iterdir())


def test_links_above_the_folder_are_the_users_own(tmp_path: Path) -> None:
    """A disk, and an output folder, may be reached by a link: build, resume, export, report and readers."""
    source = write_jsonl(tmp_path / "a.jsonl", make_documents(40, seed=3))
    (tmp_path / "disk/real").mkdir(parents=True)
    (tmp_path / "data").symlink_to("disk")
    (tmp_path / "data/out").symlink_to("real")
    (tmp_path / "disk/copy").mkdir()
    (tmp_path / "data/linked-copy").symlink_to("copy")
    out, copy = tmp_path / "data/out", tmp_path / "data/linked-copy"
    flags = ("--shard-tokens", "1500", "--index")
    first = inline.run_command("build", "--input", source, "--out", out, *flags, "--max-tokens", "4000")
    assert first.returncode == 0, first.stderr
    for words in (
        ("build", "--input", source, "--out", out, *flags),
        ("export", out, "--out", copy, "--layout", "nanogpt", "--index", "--val-tokens", "100"),
        *((name, out) for name in ("report", "verify", "status", "inspect")),
    ):
        done = inline.run_command(*words)
        assert done.returncode == 0, done.stderr
    assert out.is_symlink()
    assert (tmp_path / "disk/real/manifest.json").is_file()


@pytest.mark.full(but=["../manifest.json", "history.json"])
@pytest.mark.parametrize("name", ["../manifest.json", "heartbeat.json", "history.json", "tokenizer.json", "log.txt"])
def test_a_huge_file_in_the_place_of_ours_is_not_read(tmp_path: Path, name: str) -> None:
    """30 GB of nothing take no memory: a manifest is refused in a sentence, all others count as missing."""
    source = write_jsonl(tmp_path / "a.jsonl", make_documents(40, seed=3))
    out = tmp_path / "out"
    words = ("build", "--input", source, "--out", out, "--shard-tokens", "1500")
    assert inline.run_command(*words).returncode == 0
    with open(out / WORK_FOLDER / name, "wb") as file:
        file.truncate(30 * 10**9)
    if name == "../manifest.json":
        with pytest.raises(OutputError, match=r"30,000,000,000 bytes long, .* at most 268,435,456"):
            load_manifest(out)
        for command in (words, ("status", out), ("report", out), ("verify", out)):
            refused = inline.run_command(*command)
            assert refused.returncode in (5, 7), refused.stderr
            assert "manifest.json: 30,000,000,000 bytes long" in refused.stderr + refused.stdout
    else:
        assert name != "heartbeat.json" or load_heartbeat(out) is None
        assert load_history(out) is not None
        read_status(FolderStore(out), alive=False)
        for command in (("report", out), ("verify", out), words):
            done = inline.run_command(*command)
            assert done.returncode == 0, done.stderr
