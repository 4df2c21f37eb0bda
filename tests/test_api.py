"""The library: the same bytes as the command, and a caller whose process stays as it was."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import os
import pydoc
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
import psutil
import pytest

import fineweb_shards as fs
from fineweb_shards import api
from fineweb_shards.api import values
from fineweb_shards.api.process import in_python
from fineweb_shards.commands.folders import EXPORT_SETTINGS
from fineweb_shards.errors import ChangedError, DamageError, InputError, OutputError, UsageError
from fineweb_shards.events import Event
from fineweb_shards.run.config import PART_KEYS, Config
from fineweb_shards.watching.run_files import Snapshot
from tests.support import reference
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.promises import Tries

DOCUMENTS = make_documents(120, seed=77)
PROMISE = "a build from Python leaves the process as it was"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}


def expected(shard_tokens: int = 10_000) -> dict[str, bytes]:
    return reference.shard_files(reference.stream(DOCUMENTS), shard_tokens)


def process_state() -> dict[str, object]:
    """What a build must leave as it was."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    return {
        "handlers": [signal.getsignal(number) for number in numbers],
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "threads": threading.active_count(),
        "descriptors": psutil.Process().num_fds(),
        "children": len(psutil.Process().children()),
    }


def test_settings_are_those_of_files_and_flags() -> None:
    """Every setting is a keyword argument with a type, for `build`, `plan` and `export` alike."""
    fields = {field.name for field in dataclasses.fields(Config)}
    for function in (api.build, api.plan):
        assert {"input", "out"} <= inspect.signature(function).parameters.keys()
    assert {*get_type_hints(values.Settings), "input", "out"} == fields
    assert {*get_type_hints(values.OutputSettings), "out"} == {*EXPORT_SETTINGS}
    assert {*get_type_hints(values.Part)} == {*PART_KEYS}


@pytest.mark.promise(PROMISE)
def test_the_bytes_of_the_command_and_an_unchanged_process(tmp_path: Path, source: Path, tries: Tries) -> None:
    """A build, also a failed one, with a progress bar or without, leaves handlers, priority, streams, folder,
    environment, threads and descriptors as they were, however often it is called; and memory does not grow."""
    before, sizes = process_state(), []
    for number in tries(2, 50):
        out = tmp_path / f"out{number}"
        result = fs.build(input=source, out=out, shard_tokens=10_000, workers=1, quiet=number % 2 == 0)
        assert files_of(out) == expected()
        assert result.tokens == len(reference.stream(DOCUMENTS))
        assert (result.documents, result.shards) == (len(DOCUMENTS), len(expected()))
        assert result.folder == str(out)
        with pytest.raises(InputError):
            fs.build(input=tmp_path / "nothing.jsonl", out=out, quiet=True)
        assert process_state() == before
        sizes.append(psutil.Process().memory_full_info().uss)
    assert sizes[-1] - sizes[len(sizes) // 5] < 4 * 2**20


def test_every_function(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """plan, status, verify, inspect and export return what the folder holds."""
    out, tokens = tmp_path / "out", len(reference.stream(DOCUMENTS))
    planned = fs.plan(input=source, out=out, shard_tokens="10k")
    assert planned.tokens is not None
    assert abs(planned.tokens - tokens) < tokens / 2
    assert not out.exists()
    assert "tokens" in str(planned)
    fs.build(input=[source], out=out, shard_tokens="10k", workers=1, quiet=True)
    status = fs.status(out)
    assert (status.state, status.tokens, status.documents) == ("complete", tokens, len(DOCUMENTS))
    assert status.snapshot is not None
    assert status.snapshot.tokens == tokens
    events: list[Snapshot | Event] = []
    verified = fs.verify(out, on_event=events.append)
    assert [event for event in events if isinstance(event, Snapshot)][-1].tokens == tokens
    assert (verified.tokens, verified.complete, verified.unfinished) == (tokens, True, ())
    assert fs.inspect(out).documents == len(DOCUMENTS)
    assert fs.inspect(out, document=3).text == DOCUMENTS[3]
    assert fs.inspect(out, grep="no text has this in it") == ()
    exported = fs.export(out, tmp_path / "plain", layout="plain", val_tokens=0)
    assert exported.tokens == tokens
    shown = capfd.readouterr().err
    assert "100%" in shown
    assert "complete" in shown
    fs.export(out, tmp_path / "plain", layout="plain", val_tokens=0)
    assert "Nothing to do: the export exists already." in capfd.readouterr().err
    fs.verify(out, quiet=True)
    assert capfd.readouterr() == ("", "")
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "plain").glob("*.bin")))
    eot_first = reference.stream(DOCUMENTS)
    assert data == np.append(eot_first[1:], eot_first[:1]).tobytes()  # in this layout EOT comes after
    shard = out / "edufineweb_train_000001.npy"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    with pytest.raises(DamageError) as caught:
        fs.verify(out)
    assert shard.name in "".join(caught.value.__notes__)


def test_documents_from_python(tmp_path: Path) -> None:
    """An iterable of texts or mappings is read once, in this thread; the bytes are the reference's. Scalars and arrays
    of NumPy are those of Python."""
    threads = set()

    def texts() -> Iterator[str | dict[str, object]]:
        for number, text in enumerate(DOCUMENTS):
            threads.add(threading.get_ident())
            yield text if number % 2 else {"text": text, "number": number}

    fs.build(input=texts(), out=tmp_path / "out", shard_tokens=10_000, workers=1, text_column=None, quiet=True)
    assert files_of(tmp_path / "out") == expected()
    assert threads == {threading.get_ident()}
    where = fs.build(
        input=({"body": text, "n": np.int64(n), "ids": np.arange(n)} for n, text in enumerate(DOCUMENTS)),
        out=tmp_path / "some", shard_tokens=10_000, text_column="body", where="n < 10", quiet=True,
    )  # fmt: skip
    assert (where.documents, where.filtered_documents) == (10, len(DOCUMENTS) - 10)


def test_documents_are_never_resumed(tmp_path: Path) -> None:
    """A folder that holds a build, finished or not, refuses documents of an iterable, and stays as it is: nobody knows
    whether they are the same. `fresh` starts over; `status` has no command to resume with."""
    out = tmp_path / "out"

    def broken() -> Iterator[str]:
        while not (out / "edufineweb_train_000001.npy").exists():
            yield from DOCUMENTS
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fs.build(input=broken(), out=out, shard_tokens=10_000, workers=1, quiet=True)
    status = fs.status(out)
    assert (status.state, status.resume) == ("stopped", None)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(ChangedError, match="already has a build") as caught:
        fs.build(input=iter(DOCUMENTS[::-1]), out=out, shard_tokens=10_000, workers=1, quiet=True)
    assert "fresh=True" in caught.value.hint
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    fs.build(input=iter(DOCUMENTS), out=out, shard_tokens=10_000, workers=1, fresh=True, quiet=True)
    with pytest.raises(ChangedError, match="already has a build"):
        fs.build(input=iter(DOCUMENTS[::-1]), out=out, shard_tokens=10_000, workers=1, quiet=True)
    assert files_of(out) == expected()


def test_documents_that_are_none(tmp_path: Path) -> None:
    """A document of a wrong type, or an exception of the iterator, ends the build and is raised."""
    before = psutil.Process().children()
    with pytest.raises(InputError, match="Document 2 of input"):
        fs.build(input=iter(["a", "b", 3]), out=tmp_path / "a", quiet=True)

    def broken() -> Iterator[str]:
        yield "a"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fs.build(input=broken(), out=tmp_path / "b", quiet=True)
    with pytest.raises(UsageError, match="format"):
        fs.build(input=iter(["a"]), out=tmp_path / "c", format="text")
    assert psutil.Process().children() == before


def test_a_slow_iterator_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake is raised while the documents still come, however few they are."""
    monkeypatch.setattr("fineweb_shards.api._MOST_SECONDS", 0.05)
    given = 0

    def slow() -> Iterator[str]:
        nonlocal given
        for number in range(400):
            given = number
            time.sleep(0.05)
            yield "a text"

    with pytest.raises(UsageError, match="nanogtp"):
        fs.build(input=slow(), out=tmp_path / "out", layout="nanogtp", quiet=True)
    assert given < 399


class Frame:
    """Iterates over its columns, like those of pandas and Polars."""

    columns = ("text",)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ({"text": ["a", "b"]}, "dict, neither paths nor documents", "iterable of texts or mappings"),
        (Frame(), "Frame, neither paths nor documents", "to_dict"),
        (b"a text", "bytes, neither paths", "a path"),
        (7, "int, neither paths nor documents: 7", "a path"),
        ("-", "standard input belongs to your program", "iter\\(sys.stdin\\)"),
        ([], "empty list", "Name files"),
        (["A text.", "Another one."], "A text", "input=iter\\(texts\\)"),
        (["A text\0"], "null", "input=iter\\(texts\\)"),
        (["A text. " * 40_000], "too long", "input=iter\\(texts\\)"),
        (iter([Path("a.jsonl")]), "Document 0 of input is PosixPath", "input=list\\(paths\\)"),
        (
            [{"text": "a"}, {"text": "b", "when": dt.date(2026, 1, 2)}],
            "Document 1 of input has a value that JSON .*2026, 1, 2",
            "str\\(\\)",
        ),
        ([{"text": "a", "raw": b"a"}], "JSON can't hold \\(b'a', a bytes\\)", "str\\(\\)"),
    ],
)
def test_input_that_is_none(tmp_path: Path, given: Any, said: str, hint: str) -> None:
    """What is neither paths nor documents is refused, with what to pass in its place."""
    with pytest.raises((UsageError, InputError), match=said) as caught:
        fs.build(input=given, out=tmp_path / "out", quiet=True)
    assert re.search(hint, caught.value.hint), caught.value.hint


def test_documents_with_settings_of_a_file(tmp_path: Path) -> None:
    """The key of texts is that of the TOML file, if keywords name none; None is no setting."""
    toml = tmp_path / "a.toml"
    toml.write_text('text-column = "body"\nshard_tokens = "10k"\n')
    rows = [text if number % 2 else {"body": text} for number, text in enumerate(DOCUMENTS)]
    fs.build(toml, input=iter(rows), out=tmp_path / "out", text_column=None, format=None, workers=1, quiet=True)
    assert files_of(tmp_path / "out") == expected()
    toml.write_text('template = "{title}"\n')
    with pytest.raises(InputError, match="Document 0 of input is 'a' "):
        fs.build(toml, input=iter(["a"]), out=tmp_path / "other", quiet=True)


def test_mistakes_in_mappings(tmp_path: Path) -> None:
    """Parts and folders to mix that are no mappings, or lack a key, are refused by their name."""
    with pytest.raises(UsageError, match=r"parts is \{'dataset': 'a/b'\}: it must be a list of mappings"):
        fs.build(parts={"dataset": "a/b"}, out=tmp_path / "out", quiet=True)
    with pytest.raises(UsageError, match="mix: part 1 has folder"):
        fs.export(mix=cast(Any, [{"folder": "a"}, {"folder": "b", "weight": 1}]), out=tmp_path / "out", quiet=True)


def test_a_path_in_sys_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python ignores in sys.path is no error here either."""
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    with pytest.raises(OutputError):
        fs.status(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Use the old value, another --out, or --fresh to start over.", "another out, or fresh=True to"),
        ("--shard-tokens was 10,000", "shard_tokens was 10,000"),
        ("with --val-tokens 1,000: it", "with val_tokens=1_000: it"),
        ("--val-ratio 0.05.", "val_ratio=0.05."),
        ("(--no-verify)", "(verify=False)"),
        ("See `fineweb-shards build --help`.", "See `help(fineweb_shards.build)`."),
        ("Send it: `fineweb-shards build --input -`.", "Send it: `fineweb-shards build --input -`."),
        ("/data/a--out/--fresh: no", "/data/a--out/--fresh: no"),
    ],
)
def test_flags_become_keywords(text: str, shown: str) -> None:
    """What the command says of flags is said of keyword arguments; paths and commands to paste stay."""
    assert shown in in_python(text)


def test_errors_are_exceptions(tmp_path: Path, source: Path) -> None:
    """Each mistake is its own class, with the exit code and the hint of the command."""
    with pytest.raises(UsageError) as usage:
        fs.build(input=source, out=tmp_path / "out", layout="nanogtp", quiet=True)
    assert usage.value.exit_code == 2
    assert "nanogpt" in usage.value.hint
    fs.build(input=source, out=tmp_path / "out", shard_tokens=10_000, workers=1, quiet=True)
    with pytest.raises(ChangedError, match="shard_tokens") as changed:
        fs.build(input=source, out=tmp_path / "out", shard_tokens=20_000, quiet=True)
    assert changed.value.exit_code == 4
    assert not getattr(changed.value, "__notes__", [])
    with pytest.raises(InputError, match="no document"):
        fs.build(input=iter(()), out=tmp_path / "empty", quiet=True)
    assert fs.build(input=source, out=tmp_path / "out", shard_tokens=20_000, workers=1, fresh=True, quiet=True)
    assert files_of(tmp_path / "out") == expected(20_000)


def test_events(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With `on_event` nothing is printed; an exception of the callback stops the build and is raised."""
    events: list[Snapshot | Event] = []
    before = psutil.Process().children()
    fs.build(input=source, out=tmp_path / "out", shard_tokens=10_000, workers=1, on_event=events.append)
    assert any(isinstance(event, Event) and event.kind == "plan" for event in events)
    assert capfd.readouterr() == ("", "")
    last = [event for event in events if isinstance(event, Snapshot)][-1]
    tokens = len(reference.stream(DOCUMENTS))
    assert (last.state, last.tokens, last.expected_tokens, last.share) == ("complete", tokens, tokens, 1.0)
    assert (last.finished_shards, last.verified_shards) == (len(expected()), len(expected()))

    def refuse(event: Snapshot | Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fs.build(input=source, out=tmp_path / "other", shard_tokens=10_000, on_event=refuse)
    assert psutil.Process().children() == before


def test_what_is_shown_by_default(tmp_path: Path, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The bar reaches the end, warnings are shown, and a build that has nothing to do says so."""
    out = tmp_path / "out"
    result = fs.build(input=source, out=out, shard_tokens=10_000, val_documents=0, layout="nanogpt", workers=1)
    shown = capfd.readouterr().err
    assert "100%" in shown
    assert "complete" in shown
    assert len(result.warnings) == 1
    assert result.warnings[0] in shown
    assert "val_tokens=" in result.warnings[0]
    fs.build(input=source, out=out, shard_tokens=10_000, val_documents=0, layout="nanogpt", workers=1)
    shown = capfd.readouterr().err
    assert "Nothing to do: all shards exist already." in shown
    assert result.warnings[0] in shown


@pytest.mark.full
def test_builds_in_threads(tmp_path: Path, source: Path) -> None:
    """Two builds at once, neither in the main thread."""

    def make(number: int) -> None:
        fs.build(input=source, out=tmp_path / str(number), shard_tokens=10_000, workers=1, quiet=True)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files_of(tmp_path / "0") == files_of(tmp_path / "1") == expected()


SCRIPT = """
import fineweb_shards as fs
print(fs.build(input={source!r}, out={out!r}, shard_tokens=10_000, workers=1, quiet=True).shards)
"""


@pytest.mark.full(but=["script"])
@pytest.mark.parametrize("way", ["-c", "stdin", "script"])
def test_every_way_to_start_python(tmp_path: Path, source: Path, way: str) -> None:
    """`python -c`, `python - <<EOF` and a script without a guard: the build runs once."""
    code = SCRIPT.format(source=str(source), out=str(tmp_path / "out"))
    (tmp_path / "script.py").write_text(code)
    words = {"-c": ["-c", code], "stdin": ["-"], "script": [str(tmp_path / "script.py")]}[way]
    done = subprocess.run([sys.executable, *words], input=code, capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(expected())}\n"
    assert files_of(tmp_path / "out") == expected()


ENDLESS = """
import itertools
import fineweb_shards as fs
def documents():
    for number in itertools.count():
        yield f"Document {{number}}. " + "word " * 2000
try:
    fs.build(input=documents(), out={out!r}, shard_tokens=100_000, workers=1, quiet=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def run_endless(out: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A build that never ends, when its third shard is finished; and all its processes."""
    words = [sys.executable, "-c", ENDLESS.format(out=str(out))]
    caller = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    third = out / "edufineweb_train_000002.npy"
    while not third.exists():
        assert caller.poll() is None
        time.sleep(0.05)
    return caller, psutil.Process(caller.pid).children(recursive=True)


@pytest.mark.promise(PROMISE)
def test_an_interrupted_call(tmp_path: Path) -> None:
    """KeyboardInterrupt stops the build, keeps what is finished, and leaves no process."""
    caller, processes = run_endless(tmp_path / "out")
    caller.send_signal(signal.SIGINT)
    assert caller.communicate(timeout=60)[0] == "interrupted\n"
    assert caller.returncode == 0
    psutil.wait_procs(processes, timeout=10)
    assert not any(process.is_running() for process in processes)
    assert fs.status(tmp_path / "out").state == "stopped"
    assert fs.verify(tmp_path / "out").shards >= 3


@pytest.mark.full
@pytest.mark.promise("no orphans, nothing left in /dev/shm")
def test_a_killed_caller(tmp_path: Path) -> None:
    """When the caller is killed, the build stops by itself: what it was given by then is not taken for everything."""
    caller, processes = run_endless(tmp_path / "out")
    caller.kill()
    caller.communicate()
    gone, alive = psutil.wait_procs(processes, timeout=30)
    assert gone
    assert not alive
    assert fs.status(tmp_path / "out").state == "stopped"


def test_importing_is_cheap() -> None:
    """`import fineweb_shards` loads nothing that is not Python's own; neither does the API."""
    code = "import sys, fineweb_shards.api; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(Path(fs.__file__).parent.parent)})  # fmt: skip
    assert {*done.stdout.split()} <= {*sys.stdlib_module_names, "__main__", "fineweb_shards"}
    with pytest.raises(AttributeError, match="biuld"):
        _ = fs.biuld
    assert {*fs.__all__} <= {*dir(fs)}


def test_names_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is not installed, `import *`, `help` and `hasattr` work, and ShardDataset is not there."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(fs, "find_spec", lambda name: None)
    names: dict[str, object] = {}
    exec("from fineweb_shards import *", names)
    assert {*fs.__all__} <= names.keys()
    assert not hasattr(fs, "ShardDataset")
    with pytest.raises(AttributeError, match="PyTorch"):
        _ = fs.ShardDataset
    text = pydoc.render_doc(fs, renderer=pydoc.plaintext)
    for name in ("max_tokens: 'int | str | None' = None", "class BuildResult", "on_event"):
        assert name in text


def test_settings_are_in_signatures() -> None:
    """`help`, and whatever else looks at signatures, sees each setting."""
    for function, settings in ((fs.build, fs.Settings), (fs.plan, fs.Settings), (fs.export, fs.OutputSettings)):
        shown = inspect.signature(function).parameters
        assert get_type_hints(settings).keys() <= shown.keys()
        assert not any(one.kind is one.VAR_KEYWORD for one in shown.values())


def test_the_loader_needs_numpy_alone(tmp_path: Path, source: Path) -> None:
    """With every other package hidden, the loader reads a folder."""
    fs.build(input=source, out=tmp_path / "out", shard_tokens=10_000, workers=1, quiet=True)
    code = f"""
import sys
class Visible:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        known = {{*sys.stdlib_module_names, "numpy", "fineweb_shards"}}
        return self.finder.find_spec(name, path, target) if name.partition(".")[0] in known else None
sys.meta_path = [Visible(finder) for finder in sys.meta_path]
import fineweb_shards
x, y = fineweb_shards.ShardLoader({str(tmp_path / "out")!r}, "train", batch_size=2, seq_len=8).next_batch()
print(x.shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(2, 8)\n", done.stderr
