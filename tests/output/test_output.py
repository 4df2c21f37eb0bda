"""The output: numpy's bytes, durable before anybody hears of them, nothing left on failure."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import pytest

from fineweb_shards.errors import DamageError, DiskFullError, Interrupted, OutputError
from fineweb_shards.events import Observer
from fineweb_shards.executors.base import InProcessPlane
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.layouts.build_nanogpt import BuildNanoGPT
from fineweb_shards.output import shard_files
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.output.shard_files import TokenWriter, seal_segment
from fineweb_shards.output.store import OutputSpec, Segment, Store
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.retry import Disk
from fineweb_shards.types import Cursor, Placement, ShardRecord, ShardSlice, TokenBlock
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.writing import placement
from fineweb_shards.writing.placement import GrowingFile, Output
from tests.support import reference, runs
from tests.support.doubles import FailingCall

LAYOUT = BuildNanoGPT()
FORMAT = ShardFormat(LAYOUT, GPT2)
TOKENS = np.array([50256, 1, 2, 50256, 3, 40000], np.uint16)
NAME = "edufineweb_val_000000.npy"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / WORK_FOLDER).mkdir()
    return tmp_path


def numpy_bytes(tokens: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, tokens)
    return buffer.getvalue()


@contextlib.contextmanager
def output_of(
    folder: Path, shard_tokens: int, plane: type[InProcessPlane] = InProcessPlane, layout: str = "build-nanogpt"
) -> Iterator[Output]:
    """An output without workers."""
    disk = Disk(folder, 0, Observer())
    one_file = get_layout(layout).one_file
    rule = SplitRule() if one_file else SplitRule(val_tokens=shard_tokens)
    spec = OutputSpec(FolderStore(folder), get_layout(layout), GPT2, shard_tokens, rule)
    given = {"layout": layout, "shard_tokens": shard_tokens, **({"val_ratio": 0.0} if one_file else {})}
    settings = runs.job_of(folder, __file__, format="text", **given).config.fingerprint()
    with (
        contextlib.closing(plane(spec.store, spec.shard_format, disk)) as opened,
        Output(spec, runs.manifest_of(settings, []), opened, disk) as output,
    ):
        yield output


def section_of(tokens: np.ndarray, end: Cursor = Cursor(1, 2, 3), *, begin: int = 0) -> Section:  # noqa: B008
    """A block, of which the manifest has the first tokens."""
    kept = np.array([[begin, len(tokens)]])
    return Section.of(TokenBlock(Cursor(0, 0), end, tokens, GPT2.find_eots(tokens), kept=kept))


def slices_of(tokens: np.ndarray, shard_tokens: int, *, begin: int = 0) -> list[ShardSlice]:
    """As the packer cuts it."""
    packer = Packer(shard_tokens, split_rule=SplitRule(val_tokens=shard_tokens), starts=(Cursor(0, 0, begin),))
    return list(packer.pack(section_of(tokens, begin=begin)))


def write_shard(folder: Path) -> None:
    with output_of(folder, 6) as output:
        output.add(section_of(TOKENS), slices_of(TOKENS, 6))
        output.finish()


@pytest.mark.parametrize("shard_tokens", [6, 100])
def test_full_and_short_shards_are_what_numpy_saves(folder: Path, shard_tokens: int) -> None:
    """Byte for byte, with the record to match."""
    first, second = TOKENS[:2], TOKENS[2:]
    packer = Packer(shard_tokens, split_rule=SplitRule(val_tokens=shard_tokens))
    with output_of(folder, shard_tokens) as output:
        for tokens, end in ((first, Cursor(0, 1)), (second, Cursor(1, 2, 3))):
            section = section_of(tokens, end)
            output.add(section, packer.pack(section))
        (record,) = output.finish().shards
    data = (folder / NAME).read_bytes()
    assert data == numpy_bytes(TOKENS)
    assert record.sha256 == hashlib.sha256(data).hexdigest()
    assert (record.name, record.end) == (NAME, (Cursor(1, 2, 3),))
    assert (record.tokens, record.documents, record.bytes) == (6, 2, len(data))
    assert list((folder / WORK_FOLDER).iterdir()) == []


def test_a_block_over_several_shards(folder: Path) -> None:
    """Each file has its part, and a record as soon as it is sealed."""
    with output_of(folder, 2) as output:
        output.add(section_of(TOKENS), slices_of(TOKENS, 2))
        records: tuple[ShardRecord, ...] = output.finish().shards
    found = runs.shards_in(folder)
    names = [NAME, "edufineweb_train_000001.npy", "edufineweb_train_000002.npy"]
    assert found == {name: numpy_bytes(TOKENS[2 * i : 2 * i + 2]) for i, name in enumerate(names)}
    assert [record.name for record in records] == names
    assert [record.sha256 for record in records] == [hashlib.sha256(found[one]).hexdigest() for one in names]
    assert [record.documents for record in records] == [1, 1, 0]


def test_without_finish_nothing_is_left(folder: Path) -> None:
    """A shard given up in the middle leaves neither a file nor a temporary one."""
    with contextlib.suppress(ZeroDivisionError), output_of(folder, 100) as output:
        output.add(section_of(TOKENS), slices_of(TOKENS, 100))
        assert list((folder / WORK_FOLDER).iterdir())
        raise ZeroDivisionError
    assert [path.name for path in folder.rglob("*")] == [WORK_FOLDER]


def test_the_shard_is_synced_then_named_then_the_folder_synced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is durable before the manifest names it; then the same for the manifest."""
    calls: list[str] = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1])
    with output_of(folder, 6) as output:
        output.add(section_of(TOKENS), slices_of(TOKENS, 6))
        output.finish()
    assert calls[:7] == ["write", "fsync", "replace", "fsync", "fsync", "replace", "fsync"]


@pytest.mark.promise("an fsync error is fatal")
def test_an_fsync_error_while_writing_is_fatal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised by the write that was to be synced, and never retried."""
    monkeypatch.setattr(shard_files, "SYNC_EVERY_BYTES", 4)
    failing = FailingCall(os.fsync, failing=1)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputError, match="Input/output error"), output_of(folder, 6) as output:
        output.add(section_of(TOKENS), slices_of(TOKENS, 6))
    assert failing.calls == 1
    assert not (folder / NAME).exists()


@pytest.mark.promise("an fsync error is fatal")
def test_an_fsync_error_while_sealing_is_fatal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file gets no name, and is not synced again."""
    failing = FailingCall(os.fsync, failing=1)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OutputError, match="Input/output error"):
        write_shard(folder)
    assert failing.calls == 1
    assert [path.name for path in folder.rglob("*")] == [WORK_FOLDER]


def test_a_full_disk_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the final fsync, too."""
    monkeypatch.setattr(os, "fsync", FailingCall(os.fsync, failing=1, code=errno.ENOSPC))
    with pytest.raises(DiskFullError):
        write_shard(folder)
    assert not (folder / NAME).exists()


class LazyPlane(InProcessPlane):
    """Does nothing before somebody waits for it, so that several shards are in flight."""

    def __init__(self, store: Store, shard_format: ShardFormat, disk: Disk) -> None:
        super().__init__(store, shard_format, disk)
        self._left: dict[Future[Any], Callable[[], Any]] = {}

    def _start(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._left[future] = call
        return future

    def wait(self, future: Future[Any], longest_seconds: float | None = None) -> Any:
        if future in self._left:
            future.set_result(self._left.pop(future)())
        return future.result(0)


class InterruptedAt:
    """While it is entered, the `number`-th line of the output's code is interrupted, as Ctrl-C does it."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.happened = False

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != placement.__file__ or frame.f_code.co_name == "__exit__":
            return None
        if event == "line" and not self.happened:
            self._left -= 1
            if self._left == 0:
                self.happened = True
                raise Interrupted("Interrupted.", 130)
        return self._trace


def write_blocks(output: Output, tokens: np.ndarray, packer: Packer) -> None:
    for begin in range(0, len(tokens), 6):
        block = tokens[begin : begin + 6]
        place = Cursor(0, begin), Cursor(0, begin + 6)
        section = Section.of(TokenBlock(*place, block, GPT2.find_eots(block)))
        output.add(section, packer.pack(section))
    output.finish()


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_an_interruption_at_any_line_while_a_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool
) -> None:
    """What the manifest names of the file is there."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    tokens = np.arange(24, dtype=np.uint16)
    recorded = set()
    for number in itertools.count(1, 1 if soak else 7):
        folder = tmp_path / str(number)
        (folder / WORK_FOLDER).mkdir(parents=True)
        packer = Packer(4, one_file=True, eot_first=False)
        with (
            InterruptedAt(number) as interruption,
            contextlib.suppress(Interrupted),
            output_of(folder, 4, LazyPlane, layout="nanogpt") as output,
        ):
            write_blocks(output, tokens, packer)
        manifest = load_manifest(folder)
        named = 0 if manifest is None else manifest.tokens
        recorded.add(named)
        files = [path for path in folder.rglob("*") if path.name in ("train.bin", "t.bin.tmp")]
        # One that was made in the moment before has no byte yet; the next run removes it.
        files = [path for path in files if path.stat().st_size or named]
        assert len(files) == bool(named)
        assert not named or files[0].read_bytes()[: 2 * named] == tokens[:named].tobytes()
        if not interruption.happened:
            break
    assert recorded == set(range(0, 25, 4))


@pytest.mark.full
@pytest.mark.promise("Ctrl-C and SIGTERM stop cleanly")
def test_an_interruption_at_any_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool) -> None:
    """With several shards in flight: the manifest names a beginning of the shards, each whole and once."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # saves half of the time
    tokens = np.arange(24, dtype=np.uint16)
    expected = reference.shard_files(tokens, 4)
    recorded = set()
    for number in itertools.count(1, 1 if soak else 3):
        folder = tmp_path / str(number)
        (folder / WORK_FOLDER).mkdir(parents=True)
        packer = Packer(4, split_rule=SplitRule(val_tokens=4))
        with (
            InterruptedAt(number) as interruption,
            contextlib.suppress(Interrupted),
            output_of(folder, 4, LazyPlane) as output,
        ):
            write_blocks(output, tokens, packer)
        manifest = load_manifest(folder)
        shards = [] if manifest is None else manifest.shards
        assert [one.name for one in shards] == sorted(expected, key=lambda name: name[-10:])[: len(shards)]
        found = runs.shards_in(folder)
        assert found.items() <= expected.items()
        assert all(hashlib.sha256(found[one.name]).hexdigest() == one.sha256 for one in shards)
        recorded.add(len(shards))
        if not interruption.happened:
            break
    assert recorded == set(range(max(recorded) + 1))
    assert len(recorded) == 7


def sealed(folder: Path, data: bytes, documents: int) -> str:
    """What sealing says about a file with these bytes, which should hold so many documents."""
    path = folder / "growing.tmp"
    path.write_bytes(data)
    segment = Segment(path, 0, NAME, "val", 0, len(data), len(data) // 2 - 64, documents, whole=True)
    return seal_segment(Observer(), segment, FORMAT, FolderStore(folder), 0)


def test_what_is_read_back_is_checked(folder: Path) -> None:
    """A token outside the vocabulary, or another number of documents, ends the run before it has a name."""
    data = numpy_bytes(TOKENS)
    assert sealed(folder, data, 2) == hashlib.sha256(data).hexdigest()
    with pytest.raises(DamageError, match="2 documents, should be 3"):
        sealed(folder, data, 3)
    with pytest.raises(DamageError, match="token 65535 is outside the vocabulary"):
        sealed(folder, data[:-2] + b"\xff\xff", 2)


def test_a_file_that_grows_goes_on_after_the_last_recorded_token(folder: Path) -> None:
    """What a killed run has written after it is cut off; a second segment begins there."""
    disk = Disk(folder, 0, Observer())
    store = FolderStore(folder)
    part, *_ = slices_of(TOKENS, 6)
    with contextlib.closing(TokenWriter(FORMAT, disk)) as writer:
        file = GrowingFile(NAME, store, FORMAT, "val", disk)
        ((_, placement),) = file.place(part)
        writer.write(TOKENS, placement)
        grown = GrowingFile(NAME, store, FORMAT, "val", disk, tokens=4)
        path = grown.open().path
        assert path.stat().st_size == 128 + 8
        assert grown.begin == grown.tokens
        (rest,) = slices_of(TOKENS, 6, begin=4)
        ((_, placement),) = grown.place(rest)
        assert (placement.begin, placement.ranges.tolist()) == (128 + 8, [[4, 6]])
        writer.write(TOKENS, placement)
        segment = grown.end_segment(whole=True)
    assert (segment.offset, segment.size_bytes, segment.tokens, segment.documents) == (136, 4, 2, 0)
    sha256 = seal_segment(Observer(), segment, FORMAT, store, 0)
    assert sha256 == hashlib.sha256(TOKENS[4:]).hexdigest()
    assert path.read_bytes() == numpy_bytes(TOKENS)
    grown.discard()
    grown.discard()
    assert list((folder / WORK_FOLDER).iterdir()) == []


def test_ranges_are_written_one_after_the_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranges of a block, at an offset, even if every write is short."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    path = folder / "a"
    path.write_bytes(b"headerr!")
    ranges = np.array([[0, 2], [4, 6]])
    with contextlib.closing(TokenWriter(FORMAT, Disk(folder, 0, Observer()))) as writer:
        writer.write(TOKENS, Placement(str(path), np.array([8, 12]), ranges))
    assert path.read_bytes() == b"headerr!" + TOKENS[[0, 1, 4, 5]].tobytes()


def test_few_files_stay_open(folder: Path) -> None:
    """However many a process has written to, and each has its bytes."""
    before = len(os.listdir("/proc/self/fd"))
    paths = [folder / str(number) for number in range(20)]
    with contextlib.closing(TokenWriter(FORMAT, Disk(folder, 0, Observer()))) as writer:
        for number in range(40):
            path = paths[number % 20]
            path.touch()
            writer.write(TOKENS, Placement(str(path), np.array([number // 20 * 2]), np.array([[number // 20, 2]])))
        assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(path.read_bytes() == TOKENS[:2].tobytes() for path in paths)


@pytest.mark.parametrize("tokens", [0, 1, 777_777, 100_000_000, 10**12])
def test_the_header_is_numpys(tokens: int) -> None:
    """128 bytes, version 1.0, exactly as numpy writes them."""
    expected = io.BytesIO()
    np.lib.format.write_array_header_1_0(expected, {"descr": "<u2", "fortran_order": False, "shape": (tokens,)})
    assert FORMAT.header(tokens) == expected.getvalue()
    if tokens < 10**6:
        assert FORMAT.header(tokens) == numpy_bytes(np.zeros(tokens, np.uint16))[:128]


def test_names_of_shards() -> None:
    """Shard 0 is for validation, all others for training."""
    assert LAYOUT.shard_name("val", 0) == "edufineweb_val_000000.npy"
    assert LAYOUT.shard_name("train", 12) == "edufineweb_train_000012.npy"
    assert LAYOUT.owns("edufineweb_train_000012.npy")
    assert not LAYOUT.owns("my_train_notes.txt")
