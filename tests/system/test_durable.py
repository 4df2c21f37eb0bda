"""Durability and the lock."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from fineweb_shards.errors import DiskFullError, LockedError, OutputError
from fineweb_shards.system import durable
from fineweb_shards.system.durable import FolderLock, is_locked, write_file
from fineweb_shards.system.own_files import WORK_FOLDER, read_file
from tests.support.doubles import FailingCall
from tests.support.promises import Tries


def test_a_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure while writing leaves the old content."""
    path = tmp_path / "file"
    write_file(path, b"old", tmp_path)
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, FailingCall(getattr(os, name), failing=1))
            with pytest.raises(OutputError):
                write_file(path, b"new", tmp_path)
        assert path.read_bytes() == b"old"
    write_file(path, b"new", tmp_path)
    assert path.read_bytes() == b"new"


def test_data_is_synced_before_the_name_and_the_name_before_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync of the file, rename, fsync of the folder: in that order."""
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1])
    write_file(tmp_path / "file", b"data", tmp_path)
    assert calls == ["fsync", "replace", "fsync"]


def test_a_full_disk_has_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC is told as a full disk."""
    monkeypatch.setattr(os, "fsync", FailingCall(os.fsync, failing=1, code=errno.ENOSPC))
    with pytest.raises(DiskFullError, match="no space"):
        write_file(tmp_path / "file", b"data", tmp_path)


def test_one_run_per_folder(tmp_path: Path) -> None:
    """A second run is refused, with the first one's process number; afterwards the lock is free."""
    with FolderLock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(LockedError, match=f"process {os.getpid()}"), FolderLock(tmp_path):
            pass
    assert not is_locked(tmp_path)
    with FolderLock(tmp_path):
        pass


@pytest.mark.promise("one writer per folder")
def test_of_many_that_start_at_once_one_wins(tmp_path: Path, tries: Tries) -> None:
    """The others are refused, whatever the race; so it is every time."""
    code = (
        "import sys; from pathlib import Path; from fineweb_shards.system.durable import FolderLock\n"
        "from fineweb_shards.errors import LockedError\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n    lock = FolderLock(Path(sys.argv[1])).__enter__()\n"
        "except LockedError:\n    print('refused', flush=True)\n"
        "else:\n    print('won', flush=True)\n"
        "sys.stdin.readline()"
    )
    words = [sys.executable, "-c", code]
    for number in tries(1, 5):
        out = tmp_path / str(number)
        racers = [
            subprocess.Popen([*words, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            for _ in range(4)
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
        words_said = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
        assert sorted(words_said) == ["refused", "refused", "refused", "won"]
        for racer in racers:
            racer.communicate("end\n")


@pytest.mark.promise("one writer per folder")
def test_the_lock_of_a_killed_run_is_free_at_once(tmp_path: Path) -> None:
    """kill -9 leaves no lock behind."""
    code = (
        "import sys, time; from pathlib import Path; from fineweb_shards.system.durable import FolderLock\n"
        "with FolderLock(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_locked(tmp_path)
        process.kill()
    with FolderLock(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A file where the folder should be is an error with the path."""
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(OutputError, match="out"), FolderLock(tmp_path / "out"):
        pass


def test_those_who_look_do_not_see_each_other(tmp_path: Path) -> None:
    """`status` while another `status` looks: nobody is at work there."""
    with FolderLock(tmp_path):
        pass
    with open(tmp_path / WORK_FOLDER / "lock", "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_locked(tmp_path)


def test_a_run_starts_while_others_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often: those who only look are never taken for a run."""
    with FolderLock(tmp_path):
        pass
    with open(tmp_path / WORK_FOLDER / "lock", "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        waits = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 50:
                fcntl.flock(looking, fcntl.LOCK_UN)

        monkeypatch.setattr(durable.time, "sleep", wait)
        with FolderLock(tmp_path):
            assert is_locked(tmp_path)
    assert len(waits) == 50


def test_only_a_plain_file_is_read(tmp_path: Path) -> None:
    """A pipe in its place is not waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"data")
    assert read_file(tmp_path / "file") == b"data"
    for name in ("pipe", ".", "missing"):
        with pytest.raises(OSError, match=name):
            read_file(tmp_path / name)


def test_a_removed_lock_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that had opened it before it was removed makes its own, so that a third one is refused."""
    folder = tmp_path / "out"
    first = FolderLock(folder).__enter__()
    try_lock = durable._try_lock_repeatedly

    def remove_first(file: BinaryIO) -> bool:
        monkeypatch.setattr(durable, "_try_lock_repeatedly", try_lock)
        first.remove()
        first.__exit__()
        assert not folder.exists()
        return try_lock(file)

    monkeypatch.setattr(durable, "_try_lock_repeatedly", remove_first)
    with FolderLock(folder), pytest.raises(LockedError):
        FolderLock(folder).__enter__()
