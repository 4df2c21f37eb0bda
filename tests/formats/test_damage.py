"""What a damaged input leaves behind is a function of the input alone, never of the size of a batch.

What must be left is written here a second time, in plain Python: unpack what can be unpacked, split it, and drop the
last piece, of which nobody knows how it goes on.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fineweb_shards.errors import BadFileError, InputError
from fineweb_shards.formats import jsonl
from fineweb_shards.formats.ranges import StreamView
from fineweb_shards.storage.local import LocalPlace
from fineweb_shards.storage.place import InputFile
from fineweb_shards.storage.streams import open_stream
from fineweb_shards.types import Cursor
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.doubles import InlineExecutor
from tests.support.inputs import write_jsonl, write_text, write_zstd

BATCHES = (1024, 5000, 10**6)
DOCUMENTS = [text for text in make_documents(120, seed=24) if text and "<|endoftext|>" not in text]
# Many batches long where a batch is small, in one piece where it is large; with and without safe cuts.
LONG = ["some words " * 3000, "的一是不了人我在有他这为之" * 800]
SHORT = [f"number {number * 7919}" for number in range(400)]


def unpack_gzip(packed: bytes) -> bytes:
    """All the text in front of the damage: a byte at a time, so that nothing is lost with it."""
    member, text = zlib.decompressobj(31), bytearray()
    for i in range(len(packed)):
        try:
            text += member.decompress(packed[i : i + 1])
        except zlib.error:
            break
        if member.eof:
            member = zlib.decompressobj(31)
    return bytes(text)


def unpack_zstd(packed: bytes) -> bytes:
    """The same for zstd."""
    text = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        try:
            while byte := stream.read(1):
                text += byte
        except OSError:
            pass
    return bytes(text)


def whole_documents(text: bytes, form: str) -> list[str]:
    """The documents that end in front of the damage."""
    if form == "jsonl":
        return [json.loads(line)["text"] for line in text.split(b"\n")[:-1] if line]
    pieces = text.split(b"<|endoftext|>")[:-1]
    return [piece.decode() for piece in pieces if piece]


def stream_in(folder: Path) -> list[int]:
    shards = sorted(folder.glob("*.npy"), key=lambda shard: shard.name[-10:])
    return [token for shard in shards for token in np.load(shard).tolist()]


@pytest.mark.full
@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("form", ["txt", "jsonl"])
@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_a_cut_stream_leaves_its_whole_documents(tmp_path: Path, form: str, packing: str) -> None:
    """Wherever it is cut, and however large a batch is: the whole documents, and the next file apart."""
    chooser = random.Random(f"{form}{packing}")
    documents = [*DOCUMENTS[:60], LONG[0], *DOCUMENTS[60:], LONG[1], "the last one"]
    plain = (write_jsonl if form == "jsonl" else write_text)(tmp_path / "plain", documents)
    data = plain.read_bytes()
    packed = gzip.compress(data)
    if packing == "zst":  # in small frames, as of a small file all is in one block
        frames = [data[i : i + 3000] for i in range(0, len(data), 3000)]
        packed = b"".join(write_zstd(tmp_path / "frame", frame).read_bytes() for frame in frames)
    last = (write_jsonl if form == "jsonl" else write_text)(tmp_path / f"z.{form}", ["The next file."])
    bad = tmp_path / f"a.{form}.{packing}"
    for _ in range(8):
        bad.write_bytes(packed[: chooser.randrange(20, len(packed))])
        text = (unpack_gzip if packing == "gz" else unpack_zstd)(bad.read_bytes())
        expected = reference.stream([*whole_documents(text, form), "The next file."]).tolist()
        torn_bytes = len(text.split(b"<|endoftext|>")[-1]) if form == "txt" else 0
        for batch_bytes in BATCHES:
            settings = {"on_bad_file": "skip", "batch_bytes": batch_bytes, "separator": "<|endoftext|>"}
            stops = contextlib.nullcontext()
            if torn_bytes > 3 * batch_bytes:
                stops = pytest.raises(InputError, match="It cuts off a long document")
            with stops:
                tokens, counts = runs.encode_inline(bad, last, **settings)
            if torn_bytes > 3 * batch_bytes:
                continue
            assert tokens == expected
            assert counts.bad_parts == 1


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("layout", ["build-nanogpt", "megatron"])
def test_a_long_document_that_is_cut_off_is_never_half_there(tmp_path: Path, layout: str) -> None:
    """Where EOT stands in front of a document and where it stands behind one: it leaves nothing or, if it is longer
    than a batch, the run stops."""
    bad, last = tmp_path / "a.txt.gz", write_text(tmp_path / "b.txt", ["The next file."])
    text = "first<|endoftext|>" + "".join(f"word {i} " for i in range(20_000))
    bad.write_bytes(gzip.compress(text.encode())[:-3000])
    whole = write_text(tmp_path / "whole.txt", ["first"])
    expected = tmp_path / "expected"
    runs.build_inline(expected, whole, last, layout=layout)
    for batch_bytes in BATCHES:
        out = tmp_path / str(batch_bytes)
        if batch_bytes < 10**6:
            with pytest.raises(BadFileError, match=r"a\.txt\.gz: broken after .*[a-z]\.$"):
                runs.build_inline(out, bad, last, layout=layout, batch_bytes=batch_bytes)
            with pytest.raises(InputError, match=r"a\.txt\.gz: broken after .* It cuts off a long document") as error:
                runs.build_inline(out, bad, last, layout=layout, on_bad_file="skip", batch_bytes=batch_bytes)
            assert "--fresh" in error.value.hint
            continue
        runs.build_inline(out, bad, last, layout=layout, on_bad_file="skip", batch_bytes=batch_bytes)
        assert runs.outputs_in(out) == runs.outputs_in(expected)


@pytest.mark.full
def test_a_resume_behind_damage_counts_it_once(tmp_path: Path) -> None:
    """From every shard on, with another batch size: the same shards and the same counts."""
    bad, last = tmp_path / "a.txt.gz", write_text(tmp_path / "b.txt", DOCUMENTS[:40])
    bad.write_bytes(gzip.compress("<|endoftext|>".join([*LONG, *DOCUMENTS, *SHORT]).encode())[:-500])
    settings = {"on_bad_file": "skip", "shard_tokens": 2500, "separator": "<|endoftext|>"}
    out = tmp_path / "out"
    manifest = runs.build_inline(out, bad, last, batch_bytes=1024, **settings)
    shards, totals = runs.shards_in(out), manifest.totals
    assert totals["bad_parts"] == 1
    for records in range(len(manifest.shards)):
        runs.forget_after(out, records)
        resumed = runs.build_inline(out, bad, last, batch_bytes=5000, **settings)
        assert runs.shards_in(out) == shards
        assert resumed.totals == totals


def test_stop_then_skip_is_skip(tmp_path: Path) -> None:
    """A run that stopped at the damage and is told to skip it makes what a run makes that skips at once."""
    bad, last = tmp_path / "a.txt.gz", write_text(tmp_path / "b.txt", DOCUMENTS[:40])
    bad.write_bytes(gzip.compress("<|endoftext|>".join([*LONG, *DOCUMENTS, *SHORT]).encode())[:-500])
    settings = {"shard_tokens": 2000, "separator": "<|endoftext|>", "batch_bytes": 1024}
    runs.build_inline(tmp_path / "skip", bad, last, on_bad_file="skip", **settings)
    with pytest.raises(BadFileError, match=r"a\.txt\.gz: broken after"):
        runs.build_inline(tmp_path / "stop", bad, last, **settings)
    assert len(runs.shards_in(tmp_path / "stop")) > 1
    runs.build_inline(tmp_path / "stop", bad, last, on_bad_file="skip", **settings)
    assert runs.shards_in(tmp_path / "stop") == runs.shards_in(tmp_path / "skip")


@pytest.mark.full
@pytest.mark.promise("bad files are named, or skipped and counted")
def test_flipped_bits_in_gzip(tmp_path: Path) -> None:
    """All text in front of the flip is there, whatever the batch."""
    packed = gzip.compress("<|endoftext|>".join(DOCUMENTS).encode())
    bad = tmp_path / "a.txt.gz"
    for number in range(12):
        chooser = random.Random(number)
        place = chooser.randrange(10, len(packed))
        flipped = bytes([packed[place] ^ (1 << chooser.randrange(8))])
        bad.write_bytes(packed[:place] + flipped + packed[place + 1 :])
        kept = set()
        for batch_bytes in BATCHES:
            settings = {"on_bad_file": "skip", "batch_bytes": batch_bytes, "separator": "line"}
            kept.add(tuple(runs.encode_inline(bad, **settings)[0]))
        assert len(kept) == 1
        text = unpack_gzip(bad.read_bytes()).replace(b"\r\n", b"\n")
        lines = [line.decode("utf-8", "replace") for line in text.split(b"\n")[:-1] if line]
        assert kept == {tuple(reference.stream(lines).tolist())}


def test_all_that_can_be_unpacked_is(tmp_path: Path) -> None:
    """A megabyte at a time, without losing what is in front of the damage."""
    text = os.urandom(100_000).hex().encode() * 6
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text)[:-1000])
    file = InputFile(0, str(path), "a.gz", "text", "gzip", path.stat().st_size, 0, "")
    view = StreamView(file, open_stream(file, LocalPlace()))
    assert view.read_at(0, 2**21) == unpack_gzip(path.read_bytes())
    assert view.failure is not None
    view.close()


@pytest.mark.parametrize("batch_bytes", BATCHES)
def test_zeros_behind_a_gzip_file_are_padding(tmp_path: Path, batch_bytes: int) -> None:
    """As gzip(1) and tar have it; between two members as well."""
    path = tmp_path / "a.txt.gz"
    one, two = gzip.compress(b"one\n\ntwo"), gzip.compress(b" words\n\nthree")
    path.write_bytes(one + bytes(1000) + two + bytes(70_000))
    runs.build_inline(tmp_path / "out", path, batch_bytes=batch_bytes)
    assert stream_in(tmp_path / "out") == reference.stream(["one", "two words", "three"]).tolist()


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("batch_bytes", BATCHES)
def test_garbage_behind_a_gzip_file(tmp_path: Path, batch_bytes: int) -> None:
    """It is told as what it is; the text in front of it is whole, its last document too."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n\ntwo") + b"garbage")
    with pytest.raises(BadFileError, match=r"a\.txt\.gz: after its 8 bytes of text .* not gzip"):
        runs.encode_inline(path, batch_bytes=batch_bytes)
    tokens, counts = runs.encode_inline(path, batch_bytes=batch_bytes, on_bad_file="skip")
    assert tokens == reference.stream(["one", "two"]).tolist()
    assert counts.bad_parts == 1


@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.jsonl.gz"])
def test_an_empty_compressed_file_is_damaged(tmp_path: Path, name: str) -> None:
    """Nothing compressed is not nothing: somebody's disk was full."""
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(BadFileError, match=rf"{name}: is empty"):
        runs.build_inline(tmp_path / "out", tmp_path / name)
    manifest = runs.build_inline(tmp_path / "out", tmp_path / name, on_bad_file="skip")
    assert manifest.totals["bad_parts"] == 1


@pytest.mark.full(but=["middle-", "last-.gz"])
@pytest.mark.promise("bad files are named, or skipped and counted")
@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_line_over_the_limit_costs_itself_only(
    tmp_path: Path, packing: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the batch: it is named or left out, a line at the limit is neither, and the others stay."""
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 200_000)
    lines = [json.dumps({"text": text}).encode() for text in DOCUMENTS[:40]]
    longest = b'{"text": "' + b"x" * (200_000 - 12) + b'"}'
    lines.insert(20, longest)
    number = {"first": 0, "middle": 25, "last": len(lines)}[place]
    lines.insert(number, longest.replace(b"xx", b"xxx", 1))
    offset = sum(len(line) + 1 for line in lines[:number])
    path = tmp_path / f"a.jsonl{packing}"
    data = b"\n".join(lines)
    path.write_bytes(gzip.compress(data) if packing else data)
    kept = [json.loads(line)["text"] for i, line in enumerate(lines) if i != number]
    for batch_bytes in (1024, 5000, 150_000, 10**6):
        with pytest.raises(BadFileError, match=rf"line at byte {offset:,} is longer than 200,000 bytes"):
            runs.encode_inline(path, batch_bytes=batch_bytes)
        tokens, counts = runs.encode_inline(path, batch_bytes=batch_bytes, on_bad_file="skip")
        assert tokens == reference.stream(kept).tolist()
        assert counts.bad_parts == 1


def test_a_resume_around_a_line_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From every shard on: the same shards, and the line is counted once."""
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 100_000)
    lines = [json.dumps({"text": text}) for text in DOCUMENTS[:60]]
    lines.insert(30, json.dumps({"text": "x" * 100_000}))
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    out, settings = tmp_path / "out", {"on_bad_file": "skip", "shard_tokens": 1500}
    manifest = runs.build_inline(out, path, batch_bytes=1024, **settings)
    shards = runs.shards_in(out)
    for records in range(len(manifest.shards)):
        runs.forget_after(out, records)
        resumed = runs.build_inline(out, path, batch_bytes=7000, **settings)
        assert runs.shards_in(out) == shards
        assert resumed.totals == manifest.totals


def test_a_long_line_is_skipped_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed line of any length: no more of it is kept than the limit allows."""
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 2**20)
    kept: list[int] = []
    monkeypatch.setattr(StreamView, "forget", _watched(StreamView.forget, lambda view: kept.append(len(view._kept))))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "' + b"x" * (40 * 2**20) + b'"}\n{"text": "one"}', 1))
    source = runs.job_of(tmp_path / "out", path, on_bad_file="skip", batch_bytes=1024).source
    batches = list(source.batches(runs.START))
    source.close()
    assert [batch.payload.read() for batch in batches if batch.payload] == [b'{"text": "one"}']
    assert max(kept) < 5 * 2**20


def _watched(forget, look):  # type: ignore[no-untyped-def]
    def wrapper(view, offset):  # type: ignore[no-untyped-def]
        look(view)
        forget(view, offset)

    return wrapper


@pytest.mark.promise("bad files are named, or skipped and counted")
def test_a_file_that_begins_with_an_array_is_refused(tmp_path: Path) -> None:
    """Whatever else is in it: JSON lines begin with an object."""
    path = tmp_path / "a.jsonl"
    for content in (b'["a header"]\n{"text": "one"}\n', b'\n [\n{"text": "one"},\n{"text": "two"}\n]\n', b"[1, 2"):
        path.write_bytes(content)
        with pytest.raises(BadFileError, match="one JSON array") as error:
            runs.build_inline(tmp_path / "stop", path)
        assert "jq" in error.value.hint
        tokens, counts = runs.encode_inline(path, on_bad_file="skip")
        assert (tokens, counts.bad_parts) == ([], 1)


@pytest.mark.parametrize("batch_bytes", BATCHES)
def test_what_stop_keeps_does_not_depend_on_the_batch(tmp_path: Path, batch_bytes: int) -> None:
    """Every shard that is full in front of a bad line; and --max-tokens in front of it never meets it."""
    documents = DOCUMENTS[:50]
    lines = [json.dumps({"text": text}) for text in documents]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*lines, "{broken", '{"text": "behind"}']))
    tokens = reference.stream(documents)
    with pytest.raises(BadFileError, match="is not JSON"):
        runs.build_inline(tmp_path / "stop", path, shard_tokens=500, batch_bytes=batch_bytes)
    full = reference.shard_files(tokens[: len(tokens) // 500 * 500], 500)
    assert runs.shards_in(tmp_path / "stop") == full
    out = tmp_path / "limited"
    runs.build_inline(out, path, max_tokens=len(tokens), batch_bytes=batch_bytes)
    assert stream_in(out) == tokens.tolist()


def test_a_cursor_behind_a_bad_file_is_in_the_next(tmp_path: Path) -> None:
    """So that a resume does not meet the damage again."""
    (tmp_path / "a.txt.gz").write_bytes(b"")
    source = runs.job_of(tmp_path / "out", tmp_path / "a.txt.gz", on_bad_file="skip").source
    (batch,) = source.batches(runs.START)
    (chunk,) = source.chunks(batch)
    assert chunk.end == Cursor(1, 0)


@pytest.mark.parametrize("damage", ["gone", "binary", "broken line"])
def test_damage_among_small_files_costs_and_names_one_of_them(tmp_path: Path, damage: str) -> None:
    """They are read together: every document before the damage is kept, and its file is the one named."""
    texts = [text for text in DOCUMENTS if text][:30]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    bad = tmp_path / "17.jsonl"
    line = json.dumps({"text": texts[17]}).encode()
    bad.write_bytes({"gone": line, "binary": b"\0\1\2" * 99, "broken line": line + b"\n{broken"}[damage])
    settings = {"shard_tokens": 50, "batch_bytes": 10**6}
    jobs = [runs.job_of(tmp_path / "out", tmp_path, on_bad_file=what, **settings) for what in ("stop", "skip")]
    kept = texts[: 18 if damage == "broken line" else 17]
    if damage == "gone":
        bad.unlink()
    found: list[list[int]] = []
    for job in jobs:
        executor = InlineExecutor(job.source, runs.encoder())
        found.append([])
        with pytest.raises(BadFileError, match=r"17\.jsonl") if job is jobs[0] else contextlib.nullcontext():
            for block in executor.encode([job.source.batches(runs.START)]):
                found[-1] += block.array.tolist()
                for problem in block.problems:
                    assert "17.jsonl" in problem
    assert found == [reference.stream(kept).tolist(), reference.stream([*kept, *texts[18:]]).tolist()]
