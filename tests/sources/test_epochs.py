"""Epochs of a part: files for validation are read once, the others as often as asked; a run may begin in any epoch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from fineweb_shards.sources.source import Parts, Source
from fineweb_shards.storage.local import LocalPlace
from fineweb_shards.storage.place import InputFile
from fineweb_shards.types import Batch, Cursor
from tests.support import runs
from tests.support.inputs import write_gzip, write_jsonl, write_parquet, write_text

EPOCHS = 3
VALIDATION = [["v one", "v two"], ["v three"]]
TRAINING = [
    [f"a{number} and more of it" for number in range(300)],
    ["b"],  # so small that it shares a batch
    ["c", "d"],
    [f"e{number} " * 40 for number in range(300)],
    ["f" * 1500, "g"],
]
EVERYTHING = [text for file in VALIDATION + TRAINING * EPOCHS for text in file]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Files of all kinds; the first two are for validation."""
    val = [write_jsonl(tmp_path / f"v{number}.jsonl", texts) for number, texts in enumerate(VALIDATION)]
    train = [write_parquet(tmp_path / "0.parquet", TRAINING[0], 4)]
    train += [write_jsonl(tmp_path / f"{number}.jsonl", TRAINING[number]) for number in (1, 2)]
    packed = write_text(tmp_path / "3.txt", TRAINING[3]).read_bytes()
    train += [write_gzip(tmp_path / "3.txt.gz", packed), write_text(tmp_path / "4.txt", TRAINING[4])]
    job = runs.job_of(
        tmp_path / "out", *train, val_input=tuple(map(str, val)), epochs=EPOCHS, batch_bytes=1024,
        separator="<|endoftext|>",
    )  # fmt: skip
    return job.source.parts[0]


def texts_of(source: Source, batches: Sequence[Batch]) -> list[str]:
    """All documents, those that were cut as one."""
    texts: list[str] = []
    continues = False
    for batch in batches:
        for chunk in source.chunks(batch):
            found = [bytes(text).decode() for text in chunk.texts.iter_views()]
            if continues and found:
                texts[-1] += found.pop(0)
            texts += found
            continues = chunk.ends_mid_document
    return texts


def test_every_epoch_has_all_files_but_those_for_validation(source: Source) -> None:
    """In their order; a file's number tells the epoch, and its name is the same in each."""
    assert source.file_count == 2 + 3 * 5
    batches = list(source.batches(Cursor(0, 0)))
    assert texts_of(source, batches) == EVERYTHING
    assert [source.file(number).index for number in range(17)] == list(range(17))
    names = [source.file(number).name for number in range(17)]
    assert names[2:7] == names[7:12] == names[12:17]
    assert not any(source.file(number).for_validation for number in range(2, 17))
    assert list(source.batches(Cursor(17, 0))) == []


def test_a_run_may_begin_at_every_batch_of_every_epoch(source: Source, soak: bool) -> None:
    """What is listed from there on has the rest of the documents."""
    batches = list(source.batches(Cursor(0, 0)))
    for number, batch in list(enumerate(batches))[:: 1 if soak else 7]:
        if not batch.rows:
            start = Cursor(batch.file, batch.position, starts_mid_document=batch.starts_mid_document)
            again = list(source.batches(start))
            assert [(one.file, one.position) for one in again] == [(one.file, one.position) for one in batches[number:]]
            assert texts_of(source, again) == texts_of(source, batches[number:])


def test_the_share_that_is_read_grows_from_nothing_to_all(source: Source) -> None:
    """Over all epochs; where it is unknown, inside a compressed file, nothing is said."""
    shares = [source.share_before(Cursor(batch.file, batch.position)) for batch in source.batches(Cursor(0, 0))]
    known = [0.0, *(share for share in shares if share is not None), source.share_before(Cursor(17, 0))]
    assert all(before <= after for before, after in itertools.pairwise(known) if after is not None)
    assert (shares[0], known[-1]) == (0.0, 1.0)
    sizes = [file.size_bytes for file in source.files]
    assert source.read_bytes == sum(sizes[:2]) + 3 * sum(sizes[2:])
    second = sum(sizes) / source.read_bytes
    assert source.share_before(Cursor(7, 0)) == pytest.approx(second)
    assert len(known) > 20


def test_a_file_is_released_when_no_epoch_reads_it_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads that are needed again stay on the disk; those for validation, and of the last epoch, go at once."""
    released: list[InputFile] = []
    monkeypatch.setattr(LocalPlace, "release", lambda place, files: released.extend(files))
    for number in range(source.file_count + 1):
        released.clear()
        source.release_before(number)
        later = {source.file(other).path for other in range(number, source.file_count)}
        before = {source.file(other).path for other in range(number)}
        assert {file.path for file in released} == before - later


def test_parts_have_epochs_of_their_own(source: Source) -> None:
    """The end of a part is after its last epoch, and of its share all epochs count."""
    parts = Parts((source, source))
    assert parts.ends == (Cursor(17, 0), Cursor(17, 0))
    half = (Cursor(17, 0), Cursor(0, 0))
    assert parts.share_before(half) == 0.5
    assert parts.share_before(half, first_ends=True) == 1.0
    listings = [list(listing) for listing in parts.listings((Cursor(7, 0), Cursor(12, 0)))]
    for number, (listing, epochs) in enumerate(zip(listings, (2, 1), strict=True)):
        assert {batch.part for batch in listing} == {number}
        assert texts_of(source, listing) == [text for file in TRAINING * epochs for text in file]
