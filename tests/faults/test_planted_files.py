"""Something else in the place of every file that a command opens: a link, a pipe, a folder, a hard link.

Which files those are is not written down here: a first run of each command is listened to (audit events), so that a
file with a new name is in the test by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from fineweb_shards.errors import InputError
from fineweb_shards.loader import ShardLoader
from fineweb_shards.storage.bucket import Bucket
from tests.support import inline, runs, vocabularies
from tests.support.bucket_folders import upload_folder
from tests.support.documents import make_documents
from tests.support.fourteen_files import build as build_from_hub
from tests.support.fourteen_files import expected_shards, sample_repository
from tests.support.inputs import write_jsonl
from tests.support.standin_hub import StandInHub

KINDS = ("link", "dangling link", "pipe", "folder", "hard link")
READERS = ("verify", "status", "inspect")
ANSWERS = (0, 20, 21)  # exit codes that are none of a refusal: 20 and 21 are of `status`
PLACES = {"open": (0,), "os.mkdir": (0,), "os.rename": (0, 1), "os.truncate": (0,)}  # paths among arguments
HANG_SECONDS = 60


class Listener:
    """Hears of every path that this process is about to open or change."""

    def __init__(self) -> None:
        self.hear: Callable[[str], None] | None = None
        self._answering = threading.local()

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.hear is None or event not in PLACES or getattr(self._answering, "now", False):
            return
        self._answering.now = True
        try:
            for place in PLACES[event]:
                if isinstance(path := arguments[place], str | bytes | os.PathLike):
                    self.hear(os.path.abspath(os.fsdecode(path)))
        finally:
            self._answering.now = False

    @contextlib.contextmanager
    def telling(self, hear: Callable[[str], None]) -> Iterator[None]:
        self.hear = hear
        try:
            yield
        finally:
            self.hear = None


listener = Listener()
sys.addaudithook(listener)  # for good: there is no way to remove one


@dataclass(frozen=True)
class Scene:
    """A command, the folder that it works in, and what is there before."""

    words: tuple[str, ...]  # {root} is the copy of the template
    template: Path
    folder: str = "out"  # in the root; what is opened in it is what is planted

    def run(self, root: Path) -> subprocess.CompletedProcess[str]:
        return inline.run_command(*(word.format(root=root) for word in self.words))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    """Every command that opens files of ours, with a folder in which it has something to do."""
    base = tmp_path_factory.mktemp("scenes")
    new = base / "new"
    new.mkdir()
    write_jsonl(new / "a.jsonl", make_documents(60, seed=61))
    tokenizer = vocabularies.llama3(new)
    flags = tuple(flag.replace(str(new), "{root}") for flag in tokenizer.flags)
    build = ("build", "--input", "{root}/a.jsonl", "--out", "{root}/out", "--index", *flags)
    build += ("--engine", "tokenizers", "--shard-tokens", "2000", "--val-tokens", "1500")
    finished = copy(new, base / "finished")
    assert Scene(build, new).run(finished).returncode == 0
    one_file = (*build, "--layout", "nanogpt")
    resumed, grown = copy(finished, base / "resumed"), copy(new, base / "grown")
    runs.forget_after(resumed / "out", 1)
    for path in sorted((resumed / "out").glob("*_train_*")):
        path.unlink()
    assert Scene(one_file, new).run(grown).returncode == 0
    half = copy(grown, base / "half")
    runs.forget_after(half / "out", 2)
    (half / "out/train.bin").rename(half / "out/.fineweb-shards/t.bin.tmp")
    runs.forget_after(grown / "out", 2)
    export = ("export", "{root}/out", "--out", "{root}/copy", "--layout", "nanogpt", "--index")
    return {
        "build": Scene(build, new),
        "resume": Scene(build, resumed),
        "resume of one file": Scene(one_file, half),
        "resume of a named file": Scene(one_file, grown),
        "export": Scene(export, finished, "copy"),
        "report": Scene(("report", "{root}/out"), finished),
        **{name: Scene((name, "{root}/out"), finished) for name in READERS},
    }


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target


def opened_by(scene: Scene, root: Path) -> list[str]:
    """The names of all files and folders below its folder that a command opens, makes or renames: one for each event,
    in their order."""
    found: list[str] = []

    def note(path: str) -> None:
        if (name := name_in(root / scene.folder, path)) is not None:
            found.append(name)

    with listener.telling(note):
        done = scene.run(root)
    assert done.returncode in ANSWERS, done.stderr
    return found


def name_in(folder: Path, path: str) -> str | None:
    """The name of what is below a folder."""
    inside = Path(path).is_relative_to(folder) and Path(path) != folder
    return Path(path).relative_to(folder).as_posix() if inside else None


def kind_of(name: str) -> str:
    """A name without the numbers of shards, processes and attempts: one of a kind is enough."""
    return re.sub(r"(?<=new-)[0-9a-f]{16}|\d+", "#", name)


def one_of_each(names: list[str]) -> list[str]:
    return list({kind_of(name): name for name in names}.values())


def plant(path: Path, kind: str, elsewhere: Path) -> bool:
    """Put something else in a file's place; what was there is elsewhere. Return whether it makes sense."""
    is_folder = path.is_dir() or path.name in (".fineweb-shards", "index")
    if is_folder and kind in ("folder", "hard link"):
        return False
    elsewhere.mkdir()
    (elsewhere / "foreign.tmp").write_text("precious")
    victim = elsewhere / "victim"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(victim)
    elif path.exists():
        shutil.copy(path, victim)
        path.unlink()
    elif is_folder:
        shutil.copytree(elsewhere, victim)
    else:
        victim.write_text("precious")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling link":
        path.symlink_to(elsewhere / "nothing")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        os.link(victim, path)
    return True


def everything_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every name below a folder, its kind, and its content."""
    contents = {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
    return {str(path.relative_to(folder)): (path.lstat().st_mode, data) for path, data in contents.items()}


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """A command that waits for a pipe is ended."""

    def end(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome_of(scene: Scene, root: Path, name: str, elsewhere: Path) -> str:
    """Run a command where something was planted, and check what must hold; return what became of it."""
    path = root / scene.folder / name
    before = everything_in(elsewhere)
    links = links_in(root / scene.folder)
    with no_hang():
        done = scene.run(root)
    assert everything_in(elsewhere) == before, "something elsewhere was changed"
    assert links_in(root / scene.folder) <= links, "a file ended as a link"
    assert "Traceback" not in done.stderr
    if done.returncode not in ANSWERS:
        said = done.stderr.splitlines()
        assert any(path.name in line for line in said), f"the file is not named: {done.stderr}"
        assert said[-1].startswith("  "), f"there is no next step: {done.stderr}"
        return f"refused ({done.returncode})"
    if path.is_symlink() or not path.is_file():
        return "read" if path.is_symlink() and path.parent.name != ".fineweb-shards" else "ignored"
    return "replaced" if path.stat().st_nlink == 1 else "read"


def links_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_symlink()}


# What may become of a link to a file of the right content; everywhere else it is refused. A shard of an earlier run,
# and whatever is only read, may be a link: the hub's cache is made of links.
READ = {"resume": {"edufineweb_val_#.npy"}, "resume of one file": {"val.bin"}, "resume of a named file": {"val.bin"}}


@pytest.mark.full(but=["dangling link"])
@pytest.mark.promise("nothing from data is executed or followed")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_through_what_was_planted(
    scenes: dict[str, Scene], tmp_path: Path, kind: str, soak: bool
) -> None:
    """Whatever has the name of a file that a command opens: what it leads to stays as it is, nothing appears elsewhere,
    nobody waits for a pipe, no shard ends as a link, and a refusal names the file and a step."""
    for command, scene in scenes.items():
        names = one_of_each(opened_by(scene, copy(scene.template, tmp_path / command)))
        assert len(names) >= 3, "nothing was heard of what the command opens"
        # Every day a part of the resumes, which refuse where a build does.
        step = len(KINDS) if command.startswith("resume") and not soak else 1
        for number, name in list(enumerate(names))[KINDS.index(kind) % step :: step]:
            root, elsewhere = tmp_path / f"{command} {number}", tmp_path / f"{command} {number} elsewhere"
            copy(scene.template, root)
            if plant(root / scene.folder / name, kind, elsewhere):
                try:
                    outcome = outcome_of(scene, root, name, elsewhere)
                except AssertionError as error:
                    raise AssertionError(f"{command}, {name}: {error}") from error
                print(f"{command}\t{kind_of(name)}\t{kind}\t{outcome}")
                if kind == "link" and command in ("build", "export", *READ):
                    may_be_read = kind_of(name) in READ.get(command, ())
                    assert outcome in (("read",) if may_be_read else ("refused (5)", "replaced")), name
            shutil.rmtree(root)


@pytest.mark.full
@pytest.mark.promise("nothing from data is executed or followed")
@pytest.mark.parametrize("command", ["build", "export"])
def test_nothing_is_written_through_what_appears_meanwhile(
    scenes: dict[str, Scene], tmp_path: Path, command: str, soak: bool
) -> None:
    """A link that takes a file's place in the moment before it is opened, whatever its name is, is not followed:
    somebody who can write to the folder needs no luck for that."""
    scene = scenes[command]
    events = opened_by(scene, copy(scene.template, tmp_path / "listened to"))
    for target in one_of_each(events):
        times = sum(kind_of(name) == kind_of(target) for name in events)
        for turn in range(times) if soak else {0, times // 2, times - 1}:
            root, elsewhere = tmp_path / f"{turn}", tmp_path / f"{turn} elsewhere"
            copy(scene.template, root)
            heard, before = 0, {}
            finished: set[str] = set()  # shards that somebody has replaced after they were named

            def swap(path: str) -> None:
                nonlocal heard, before
                name = name_in(root / scene.folder, path)  # noqa: B023 - called in this turn only
                if name is None or kind_of(name) != kind_of(target):  # noqa: B023
                    return
                heard += 1
                if heard == turn + 1:  # noqa: B023
                    finished.update([path] if os.path.exists(path) else [])  # noqa: B023
                    plant(Path(path), "link", elsewhere)  # noqa: B023
                    before = everything_in(elsewhere)  # noqa: B023

            with no_hang(), listener.telling(swap):
                done = scene.run(root)
            why = f"{target}, time {turn + 1}: {done.stderr}"
            assert heard, f"{target} was not opened"
            assert "Traceback" not in done.stderr
            assert not before or everything_in(elsewhere) == before, why
            shards = [path for path in (root / scene.folder).iterdir() if path.suffix in (".npy", ".bin")]
            assert not any(path.is_symlink() for path in shards if str(path) not in finished), why
            shutil.rmtree(root)
            shutil.rmtree(elsewhere, ignore_errors=True)


@pytest.mark.full
@pytest.mark.promise("nothing from data is executed or followed")
def test_the_scratch_folder_of_a_bucket(bucket_url: str, tmp_path: Path, soak: bool) -> None:
    """What is made for a bucket, and the small files that are copied into it: the same rules, and nothing that a link
    leads to is uploaded."""
    out = f"{bucket_url}/out"
    template = tmp_path / "template"
    (template / "scratch").mkdir(parents=True)
    write_jsonl(template / "a.jsonl", make_documents(60, seed=61))
    words = ("build", "--input", "{root}/a.jsonl", "--out", out, "--scratch", "{root}/scratch", "--index")
    scene = Scene((*words, "--shard-tokens", "4000"), template, "scratch")
    names = one_of_each(opened_by(scene, copy(template, tmp_path / "listened to")))
    assert {".fineweb-shards", "lock", "lock.id"} <= {Path(name).name for name in names}
    bucket = Bucket(out)
    for number, name in enumerate(names):
        for kind in KINDS if soak else KINDS[number % len(KINDS) :][:1]:
            bucket.delete([info.name for info in bucket.list()])
            root, elsewhere = tmp_path / f"{number} {kind}", tmp_path / f"{number} {kind} elsewhere"
            copy(template, root)
            if plant(root / "scratch" / name, kind, elsewhere):
                print(f"bucket\t{kind_of(name)}\t{kind}\t{outcome_of(scene, root, name, elsewhere)}")
                sent = [bucket.read_range(one.name, 0, one.size_bytes) for one in bucket.list() if one.size_bytes]
                assert b"precious" not in sent, name
            shutil.rmtree(root)


@pytest.mark.full(but=["link", "hard link"])
@pytest.mark.promise("nothing from data is executed or followed")
@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_of_a_loader(bucket_url: str, scenes: dict[str, Scene], tmp_path: Path, kind: str) -> None:
    """A piece that is no plain file is fetched again, into a file of its own; another lock is refused."""
    finished = scenes["verify"].template / "out"
    upload_folder(finished, f"{bucket_url}/out")

    def read(folder: Path) -> list[list[list[int]]]:
        loader = ShardLoader(f"{bucket_url}/out", batch_size=2, seq_len=64, framework="numpy", cache_dir=folder)
        return [x.tolist() for x, _ in loader.epoch_batches(0)]

    opened: set[str] = set()
    with listener.telling(lambda path: opened.add(path)):
        expected = read(tmp_path / "cache")
    names = {name for path in opened if (name := name_in(tmp_path / "cache", path)) is not None}
    for name in sorted(name for name in names if not name.endswith(".part")):
        folder, elsewhere = tmp_path / f"cache {name}", tmp_path / f"elsewhere {name}"
        copy(tmp_path / "cache", folder)
        for piece in folder.glob("*.tokens"):  # so that every lock is needed
            if piece.name != name:
                piece.unlink()
        assert plant(folder / name, kind, elsewhere)
        before = everything_in(elsewhere)
        found, why = None, ""
        with no_hang():
            try:
                found = read(folder)
            except InputError as refused:
                why = refused.message
        assert found == expected or (name in why and (name.startswith("lock-") or kind == "folder"))
        assert everything_in(elsewhere) == before


@pytest.mark.full
@pytest.mark.promise("nothing from data is executed or followed")
def test_downloads_from_the_hub(tmp_path: Path, soak: bool) -> None:
    """A file of the hub that is read from the disk, a part of one, their folders and the quota's file."""
    template = tmp_path / "template"
    template.mkdir()
    expected = expected_shards(1)
    with StandInHub([sample_repository(files=1)], cdn=True) as hub:

        def build(root: Path) -> subprocess.CompletedProcess[str]:
            return build_from_hub(hub, tmp_path / "home", root / "out", "--download", "--keep-downloads")

        assert build(template).returncode == 0
        work = template / "out/.fineweb-shards"
        kept = list((work / "downloads").rglob("*"))
        assert [path for path in kept if path.is_file()], "nothing was kept"
        names = [str(path.relative_to(work)) for path in (work / "downloads", *kept)]
        names += ["hub-quota.json", *(f"{name}.part" for name in names if name.endswith(".parquet"))]
        tried = [(name, kind) for name in names for kind in KINDS]
        for number, (name, kind) in list(enumerate(tried))[:: 1 if soak else len(KINDS) - 1]:
            root, elsewhere = tmp_path / f"{number}", tmp_path / f"{number} elsewhere"
            for folder in (work / name).relative_to(template).parents[:-1]:
                (root / folder).mkdir(parents=True, exist_ok=True)
            path = root / "out/.fineweb-shards" / name
            if (work / name).is_dir():
                path.mkdir()
            elif (work / name).is_file():
                shutil.copy(work / name, path)
            if not plant(path, kind, elsewhere):
                continue
            before = everything_in(elsewhere)
            done = build(root)
            assert everything_in(elsewhere) == before, f"{name}: {done.stderr}"
            print(f"hub\t{kind_of(name)}\t{kind}\t{done.returncode}")
            if done.returncode:
                assert done.returncode == 5, done.stderr
                assert path.name in done.stderr
            else:
                assert runs.shards_in(root / "out") == expected
