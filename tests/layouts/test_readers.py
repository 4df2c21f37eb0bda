"""The rules of every layout's own reader, applied to our files: what its code checks and how it reads."""

from __future__ import annotations

import bisect
import glob
import gzip
import os
import re
import struct
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fineweb_shards.layouts import LAYOUTS, modded_nanogpt, nanogpt
from fineweb_shards.layouts.datatrove import Metadata
from fineweb_shards.layouts.sidecar import FileFacts
from fineweb_shards.types import Split
from fineweb_shards.vocabulary import GPT2
from tests.support import reference, runs
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted

DOCUMENTS = make_documents(80, seed=93)
ENCODED = [reference.encode(text) for text in DOCUMENTS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    path = write_jsonl(folder / "a.jsonl", DOCUMENTS)
    for layout in LAYOUTS:
        runs.build_inline(folder / layout, path, **Wanted(layout, 4000, val_ratio=Fraction(1, 8)).settings())
    return folder


@pytest.mark.parametrize(("layout", "stem"), [("llm.c", "edu_fineweb"), ("modded-nanogpt", "fineweb")])
def test_llm_c_opens_every_shard(made: Path, layout: str, stem: str) -> None:
    """dataloader.h: magic, version, the exact length of the file, seeks of 32 bits, no shard without a batch;
    modded-nanogpt's _load_data_shard besides: documents begin with EOT."""
    batch, length, ranks = 2, 16, 2
    for split in ("val", "train"):
        paths = sorted(glob.glob(str(made / layout / f"{stem}_{split}_*.bin")))
        assert paths
        for path in paths:
            header = np.fromfile(path, np.int32, 256)
            tokens = int(header[2])
            assert (header[0], header[1]) == (20240520, 1)
            assert not header[3:].any()
            assert os.path.getsize(path) == 256 * 4 + tokens * 2 < 2**31
            assert tokens >= ranks * batch * length + 1
            read = np.fromfile(path, np.uint16, offset=1024)
            assert len(read) == tokens
        assert np.fromfile(paths[0], np.uint16, offset=1024)[0] == 50256


class File(NamedTuple):
    """As much of a file as the rules look at."""

    name: str
    split: Split
    tokens: int
    documents: int


def name_files(layout: str, val: list[int], train: list[int]) -> list[File]:
    sizes: list[tuple[Split, int]] = [*(("val", n) for n in val), *(("train", n) for n in train)]
    return [
        File(LAYOUTS[layout].shard_name(split, number), split, tokens, tokens // 800)
        for number, (split, tokens) in enumerate(sizes)
    ]


BATCH = 8 * 64 * 1024


@pytest.mark.parametrize("layout", ["build-nanogpt", "llm.c"])
@pytest.mark.parametrize(
    ("val", "train", "words"),
    [
        ([BATCH + 1], [BATCH + 1] * 3, None),
        ([BATCH + 1], [10**8, BATCH], "1 of 3 shards has fewer than the 524,289 tokens .* --last-shard drop"),
        ([BATCH], [10**8] * 2, "1 of 3 shards has .* --val-tokens of 524289 or more"),
        ([10**8, 70], [10**8, 5], r"2 of 4 shards have .*000003.*: 5\).* below 5; or choose .* --val-tokens"),
        ([400_000], [400_000] * 2, "3 of 3 shards have .* --shard-tokens and .* 524289 or more"),
        ([9000], [9000, 9000], "3 of 3 shards have .* or take more input"),
        ([], [9000], "1 of 1 shard has fewer .* or take more input"),
    ],
)
def test_every_shard_is_compared_with_a_batch(layout: str, val: list[int], train: list[int], words: str | None) -> None:
    """DataLoaderLite and llm.c: each shard of either split needs a batch of all GPUs and one token."""
    warnings = LAYOUTS[layout].warnings(name_files(layout, val, train), 8)
    assert len(warnings) == (words is not None)
    if words:
        assert re.search(words, warnings[0])
        assert ("would abort" if layout == "llm.c" else "would crash") in warnings[0]


def data_loader_lite_reads(sizes: list[int], size: int, ranks: int) -> bool:
    """Whether DataLoaderLite comes through all shards once on every rank."""
    for rank in range(ranks):
        for tokens in sizes:
            position = size * rank
            while True:
                if tokens - position < size + 1:  # .view of a shorter buffer
                    return False
                position += size * ranks
                if position + size * ranks + 1 > tokens:
                    break
    return True


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_the_shortest_shard_is_what_data_loader_lite_and_llm_c_say(offset: int, gpus: int) -> None:
    """At the figure they read it, one token below they don't; without a word about GPUs, with one."""
    tokens = gpus * 64 * 1024 + 1 + offset
    assert data_loader_lite_reads([tokens], 64 * 1024, gpus) == (offset >= 0)
    for layout in ("build-nanogpt", "llm.c"):
        files = name_files(layout, [10**7], [10**7, tokens])
        assert (LAYOUTS[layout].warnings(files, gpus) == []) == (offset >= 0)
        assert gpus > 1 or LAYOUTS[layout].warnings(files) == LAYOUTS[layout].warnings(files, 1)


def modded_validation(sizes: list[int], batch: int, steps: int) -> bool:
    """distributed_data_generator without align_to_bos: whether it gives that many batches on 8 ranks."""
    files = iter(sizes)
    tokens, position = next(files), 0
    for _ in range(steps):
        if position + batch + 1 >= tokens:
            following = next(files, None)
            if following is None:
                return False
            tokens, position = following, 0
        if position + batch + 1 > tokens:  # the last rank's buffer is too short for .view
            return False
        position += batch
    return True


@pytest.mark.parametrize(
    "sizes",
    [
        [10_485_762],
        [10_485_761],
        [10**8],
        [6_000_000, 6_000_000],
        [8_000_000, 8_000_000],
        [1_000_000] * 20,
        [2_097_154] * 5,
        [8_388_610, 2_097_154],
        [8_388_610, 2_097_152],
    ],
)
def test_validation_of_modded_nanogpt_in_one_file_or_more(sizes: list[int]) -> None:
    """A warning exactly where its generator does not give 10,485,760 tokens on 8 GPUs."""
    warnings = LAYOUTS["modded-nanogpt"].warnings(name_files("modded-nanogpt", sizes, [10**9] * 3))
    reads = modded_validation(sizes, 8 * 262_144, 5)
    assert len(warnings) == (not reads)
    assert all("10,485,762 in one file" in text and "--val-tokens 10485762" in text for text in warnings)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ([169_410_560] * 2, []),
        ([169_410_560, 169_410_559], ["too few for train_gpt.py"]),
        ([10**8], ["needs 2 training shards", "train_gpt.py"]),
    ],
)
def test_modded_nanogpt_needs_two_shards_and_the_tokens_of_its_steps(train: list[int], words: list[str]) -> None:
    """By hand from train_gpt.py: thirds of 1,270 steps, and 15 more; it reads its files once."""
    ends = [0, *(round(part * 1270) for part in (1 / 3, 2 / 3, 1)), 1285]
    sizes = [131_072, 262_144, 393_216, 393_216]
    tokens = sum((end - begin) * size for begin, end, size in zip(ends, ends[1:], sizes, strict=False))
    assert tokens == 2 * 169_410_560
    warnings = LAYOUTS["modded-nanogpt"].warnings(name_files("modded-nanogpt", [10**8], train))
    assert len(warnings) == len(words)
    assert all(word in text for word, text in zip(words, warnings, strict=True))


@pytest.mark.parametrize(("tokens", "fits"), [(1024, False), (1025, True)])
def test_nanogpt_needs_a_window(tokens: int, fits: bool) -> None:
    """get_batch: torch.randint(len(data) - block_size) needs a place to begin, in both files."""
    assert (tokens - 1024 > 0) == fits
    for val, train in (([tokens], [10**6]), ([10**6], [tokens])):
        assert (LAYOUTS["nanogpt"].warnings(name_files("nanogpt", val, train)) == []) == fits


def test_the_documentation_states_the_same_figures() -> None:
    """docs/layouts.md has a line for each reader's rule, with the figures of the table in the code."""
    text = (Path(__file__).parent.parent.parent / "docs" / "layouts.md").read_text()
    stated = {
        "build-nanogpt, llm.c": [1024, 65_537, 524_289],
        "nanoGPT": [nanogpt.BLOCK_TOKENS, nanogpt.SHORTEST_TOKENS],
        "modded-nanogpt": [10_485_762, 2, modded_nanogpt.TRAIN_TOKENS],
    }
    for reader, figures in stated.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {reader} |")]
        found = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d|\d", row)}
        assert set(figures) <= found, reader


def test_nanogpt_maps_its_files(made: Path) -> None:
    """get_batch: np.memmap of uint16, any window; EOT ends each document."""
    for split in ("train", "val"):
        data = np.memmap(made / "nanogpt" / f"{split}.bin", dtype=np.uint16, mode="r")
        assert data[-1] == 50256
        for start in np.random.default_rng(1).integers(len(data) - 65, size=20):
            x = data[start : start + 64].astype(np.int64)
            y = data[start + 1 : start + 65].astype(np.int64)
            assert np.array_equal(x[1:], y[:-1])


def test_plain_shards_joined_are_a_nanogpt_file(made: Path) -> None:
    """`cat train_shard_*.bin > train.bin`."""
    joined = b"".join(path.read_bytes() for path in sorted((made / "plain").glob("train_shard_*.bin")))
    assert joined == (made / "nanogpt" / "train.bin").read_bytes()


def test_megatron_finds_every_document(made: Path) -> None:
    """_IndexReader's arithmetic: header, then views of lengths, pointers and document numbers one behind the other;
    each document by pointer and length is tiktoken's, with EOD behind it."""
    found = []
    for split in ("train", "val"):
        prefix = made / "megatron" / f"fineweb_{split}_text_document"
        data = prefix.with_suffix(".idx").read_bytes()
        assert data[:9] == b"MMIDIDX\x00\x00"
        version, code, sequences, documents = struct.unpack_from("<QBQQ", data, 9)
        assert (version, code, documents) == (1, 8, sequences + 1)
        offset = 34
        lengths = np.frombuffer(data, np.int32, sequences, offset)
        pointers = np.frombuffer(data, np.int64, sequences, offset + lengths.nbytes)
        numbers = np.frombuffer(data, np.int64, documents, offset + lengths.nbytes + pointers.nbytes)
        assert len(data) == offset + lengths.nbytes + pointers.nbytes + numbers.nbytes == 42 + 20 * sequences
        assert lengths.shape[0] == numbers[-1]
        tokens = np.memmap(prefix.with_suffix(".bin"), np.uint16, "r")
        assert lengths.sum() == len(tokens)
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True):
            document = np.frombuffer(tokens, np.uint16, length, pointer)
            assert document[-1] == 50256
            found.append(document[:-1].tolist())
    assert sorted(found) == sorted(ENCODED)


def test_olmo_core_reads_ranges_of_bytes_and_its_table(made: Path) -> None:
    """load_array_slice: np.frombuffer of any range, from byte 0 on. iter_document_indices gives the same documents
    whether it searches the array for EOS or reads the metadata file, whose name it makes by replacing the suffix; lines
    are split at commas, and must be inside the array."""
    found = []
    for split in ("train", "val"):
        rest: list[int] = []
        for path in sorted(glob.glob(str(made / "olmo-core" / f"part-{split}-*.npy"))):
            total = os.path.getsize(path) // 2
            with open(path, "rb") as file:
                file.seek(2 * 3)
                part = np.frombuffer(file.read(2 * 4), np.uint16)
            tokens = np.memmap(path, np.uint16, "r")
            assert part.tolist() == tokens[3:7].tolist()
            searched, start = [], 0
            for place in (tokens == 50256).nonzero()[0].tolist():
                searched.append((start, place + 1))
                start = place + 1
            listed = []
            with gzip.open(path.replace(".npy", ".csv.gz"), "rt") as table:
                for line in table:
                    begin, end, *_ = line.split(",")
                    assert int(begin) < total
                    assert int(end) <= total
                    listed.append((int(begin), int(end)))
            assert listed == searched
            for begin, end in listed:
                document = [*rest, *tokens[begin : end - 1].tolist()]
                found.append(document)
                rest = []
            rest += tokens[start:].tolist()
        assert rest == []
    assert sorted(found) == sorted(ENCODED)


def datatrove_positions(ends: list[int], first: int, length: int) -> list[int]:
    """DatatroveFileDataset._get_pos_from_index_file, over all ends at once: the place of each token of a window in its
    document, as far as the window shows it."""
    boundaries = [0, *(end - first for end in ends if first < end <= first + length - 1)]
    return [place - boundaries[bisect.bisect_right(boundaries, place) - 1] for place in range(length)]


def test_datatrove_and_nanotron_open_every_file(made: Path) -> None:
    """DatatroveFolderDataset globs `*.ds`: no sidecar ends so. DocumentTokenizerMerger wants as many indices, and reads
    documents by their ends, so that no token is left. nanotron takes the tokenizer and the width from the first line of
    a metadata file. Positions begin anew after each EOS."""
    folder = made / "datatrove"
    paths = sorted(folder.glob("*.ds"))
    assert [path.name.rpartition(".")[2] for path in paths] == ["ds"] * len(paths)
    assert len(paths) == len([*folder.glob("*.ds.index")]) == len([*folder.glob("*.ds.metadata")]) > 2
    for path in paths:
        tokens = np.fromfile(path, np.uint16)
        ends = np.frombuffer(path.with_name(f"{path.name}.index").read_bytes(), np.uint64).astype(int).tolist()
        assert ends[-1] == len(tokens)
        assert ends == sorted(set(ends))
        tokenizer, width = path.with_name(f"{path.name}.metadata").read_text().splitlines()[0].split("|")
        assert (tokenizer, int(width)) == ("gpt2", 2)
        assert int(path.with_name(f"{path.name}.metadata").read_text().splitlines()[1]) == len(tokens)
        length = 65
        for first in range(0, len(tokens) - length + 1, length):
            place, expected = 0, []
            for token in tokens[first : first + length]:
                expected.append(place)
                place = 0 if token == 50256 else place + 1
            assert datatrove_positions(ends, first, length) == expected


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (1, "1.00 T"), (63, "63.0 T"), (999, "999 T"), (1000, "1.00 kT"), (1425, "1.43 kT"),
        (9996, "10.0 kT"), (99_950, "100 kT"), (999_499, "999 kT"), (999_999, "1.00 MT"),
        (100_000_000, "100 MT"), (1_234_567_890, "1.23 GT"), (54_321_000_000, "54.3 GT"),
    ],
)  # fmt: skip
def test_the_metadata_of_datatrove_has_the_words_of_humanize(tokens: int, shown: str) -> None:
    """What humanize.metric(tokens, unit="T") of humanize 4.17 says, which datatrove writes."""
    facts = FileFacts(tokens, np.dtype("<u2"), GPT2, False, 1, True, True)
    (part,) = Metadata().parts(facts, [])
    assert part.data.decode() == f"gpt2|2\n{tokens}\n{shown}"


def test_torchtitan_takes_documents_by_their_offsets(made: Path) -> None:
    """PretokenizedMemmapSource in its README: np.memmap of uint32, np.load of the offsets, one document for each two
    neighbours."""
    found = []
    for prefix in ("", "val_"):
        tokens = np.memmap(made / "torchtitan" / f"{prefix}tokens.bin", dtype=np.uint32, mode="r")
        offsets = np.load(made / "torchtitan" / f"{prefix}document_offsets.npy")
        for index in range(len(offsets) - 1):
            start, end = offsets[index : index + 2]
            document = np.asarray(tokens[start:end], dtype=np.int64).tolist()
            assert document[-1] == 50256
            found.append(document[:-1])
    assert sorted(found) == sorted(ENCODED)


def test_automodel_aligns_to_the_positions_in_its_index(made: Path) -> None:
    """nanogpt_dataset.py: load_bin_shard's header; _load_bos_index beside it, by with_suffix; the next position in it
    is where the linear search for the BOS token ends."""
    paths = sorted((made / "automodel").glob("dataset_train_*.bin"))
    assert len(paths) > 1
    for path in paths:
        header = np.memmap(path, np.int32, "r", shape=(256,))
        assert header[:2].tolist() == [278895051, 1]
        kind = {2: np.uint16, 4: np.uint32}[int(header[3])]
        tokens = np.memmap(path, kind, "r", 1024, (int(header[2]),))
        positions = np.fromfile(path.with_suffix(".bos.idx"), np.int32)
        for start in range(0, len(tokens), 97):
            later = positions[(positions >= start) & (positions < len(tokens))]
            searched = start
            while searched < len(tokens) and tokens[searched] != 50256:
                searched += 1
            assert (int(later[0]) if len(later) else len(tokens)) == searched


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_reader_trips_over_an_index(tmp_path: Path, layout: str) -> None:
    """It is in a folder of its own, whose name has neither `train` nor `val`; numpy loads it, and documents begin where
    it says: behind an EOT, or at one."""
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    out = tmp_path / "out"
    runs.build_inline(out, path, **Wanted(layout, 4000, index=True).settings())
    described = LAYOUTS[layout]
    opened = [name for name in os.listdir(out) if described.opens(name) and not described.owns(name)]
    assert opened == []
    assert not described.opens("index")
    starts = 0
    for name in sorted(filter(described.holds_tokens, os.listdir(out))):
        index = np.load(out / "index" / f"{Path(name).stem}.npy")
        width = np.uint32 if layout == "torchtitan" else np.uint16
        tokens = np.fromfile(out / name, width, offset=described.header_bytes)
        starts += len(index)
        if described.eot_first:
            assert (tokens[index] == 50256).all()
        else:
            assert (tokens[index[index > 0] - 1] == 50256).all()
    assert starts == len(DOCUMENTS)
