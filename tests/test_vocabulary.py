"""A vocabulary of 70,000 ids, made up, through everything that does not need an engine; and no width, id or size of
GPT-2 stands where it would matter."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
import re
import struct
import tokenize
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fineweb_shards.errors import ChangedError, DamageError, InputError, UsageError
from fineweb_shards.events import Observer
from fineweb_shards.layouts import LAYOUTS, get_layout
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.loader import ShardLoader
from fineweb_shards.output import shard_files
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import Manifest, load_manifest
from fineweb_shards.output.manifest_file import save_manifest
from fineweb_shards.output.resume_rules import check_settings, trim_to_whole_files
from fineweb_shards.reading.inspection import open_target
from fineweb_shards.reading.statistics import count_sample
from fineweb_shards.reading.token_file import open_token_file
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import output_spec
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.section import Section, Span, join_spans
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.retry import Disk
from fineweb_shards.tokenizers.references import load_token_bytes
from fineweb_shards.types import Cursor, EncodedBlock, ShardSlice
from fineweb_shards.vocabulary import GPT2, Vocabulary
from fineweb_shards.writing.placement import Output, begin_output
from tests.support import loader_reference, runs
from tests.support.doubles import AtOncePlane
from tests.support.stitching import stitch

PACKAGE = Path(__file__).parent.parent / "fineweb_shards"
EOT = 69_999
WIDE = Vocabulary("made-up", "ab" * 32, 70_000, EOT)
SHARD_TOKENS = 1000
LAYOUTS_FOR_WIDE = [
    "build-nanogpt", "llm.c", "plain", "megatron", "olmo-core", "datatrove", "torchtitan", "automodel",
]  # fmt: skip
EOT_FIRST = {"build-nanogpt", "llm.c", "automodel"}
ONE_FILE = {"megatron", "torchtitan"}
_DOCUMENTS_A_BLOCK = 7

Documents = list[list[int]]


class Killed(BaseException):
    """As a crash: nobody catches it."""


def make_documents(count: int = 300, highest: int = EOT) -> Documents:
    chooser = random.Random(7)
    return [[chooser.randrange(highest) for _ in range(chooser.randrange(40))] for _ in range(count)]


# -- the reference: numpy and struct, nothing of ours


def raw(tokens: list[int], kind: str = "<u4") -> bytes:
    return np.array(tokens, kind).tobytes()


def stream_of(documents: Documents, layout: str) -> list[int]:
    first = layout in EOT_FIRST
    return [t for one in documents for t in ([EOT, *one] if first else [*one, EOT])]


def shard(layout: str, tokens: list[int]) -> bytes:
    if layout == "build-nanogpt":
        buffer = io.BytesIO()
        np.save(buffer, np.array(tokens, np.uint32))
        return buffer.getvalue()
    headers = {"llm.c": (20240801, 7, len(tokens), 0), "automodel": (278895051, 1, len(tokens), 4)}
    header = struct.pack("<256i", *headers[layout], *[0] * 252) if layout in headers else b""
    return header + raw(tokens)


def sidecars(layout: str, name: str, tokens: list[int]) -> dict[str, bytes]:
    """What is beside a numbered shard."""
    eots = [place for place, token in enumerate(tokens) if token == EOT]
    ends = [place + 1 for place in eots]
    if layout == "olmo-core":
        text = "".join(f"{a},{b}\n" for a, b in zip([0, *ends], ends, strict=False)).encode()
        block = struct.pack("<BHH", 1, len(text), 0xFFFF - len(text)) + text
        end = struct.pack("<II", zlib.crc32(text), len(text))
        return {name.replace(".npy", ".csv.gz"): b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block + end}
    if layout == "datatrove":
        ends = ends if tokens[-1] == EOT else [*ends, len(tokens)]
        count = f"{len(tokens) / 1000:.2f} kT" if len(tokens) > 999 else f"{len(tokens):.1f} T"
        metadata = f"made-up|4\n{len(tokens)}\n{count}".encode()
        return {f"{name}.index": np.array(ends, "<u8").tobytes(), f"{name}.metadata": metadata}
    if layout == "automodel":
        return {name.replace(".bin", ".bos.idx"): np.array(eots, "<i4").tobytes()}
    return {}


def megatron_index(documents: Documents) -> bytes:
    lengths = [len(one) + 1 for one in documents]
    starts = [4 * sum(lengths[:i]) for i in range(len(lengths))]
    n = len(lengths)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, n, n + 1)
    return head + struct.pack(f"<{n}i{n}q{n + 1}q", *lengths, *starts, *range(n + 1))


def expected(layout: str, documents: Documents) -> dict[str, bytes]:
    """The files, with the layout's own split: the first shard for validation, or nothing."""
    tokens = stream_of(documents, layout)
    if layout == "megatron":
        stem = "fineweb_train_text_document"
        return {f"{stem}.bin": raw(tokens, "<i4"), f"{stem}.idx": megatron_index(documents)}
    if layout == "torchtitan":
        buffer = io.BytesIO()
        np.save(buffer, np.cumsum([0, *(len(one) + 1 for one in documents)], dtype=np.int64))
        return {"tokens.bin": raw(tokens), "document_offsets.npy": buffer.getvalue()}
    names = {
        "build-nanogpt": "edufineweb_{}_{:06d}.npy",
        "llm.c": "edu_fineweb_{}_{:06d}.bin",
        "plain": "{}_shard_{:04d}.bin",
        "olmo-core": "part-{}-{:05d}.npy",
        "datatrove": "{}_{:05d}.ds",
        "automodel": "dataset_{}_{:06d}.bin",
    }
    files = {}
    for number, start in enumerate(range(0, len(tokens), SHARD_TOKENS)):
        split = "val" if number == 0 and layout in EOT_FIRST else "train"
        name, part = names[layout].format(split, number), tokens[start:][:SHARD_TOKENS]
        files[name] = shard(layout, part)
        files |= sidecars(layout, name, part)
    return files


# -- the same with our parts


def encoded_blocks(documents: Documents, start: Cursor, *, eot_first: bool) -> Iterator[EncodedBlock]:
    """As a worker would send them; a position is a document's number."""
    for first in range(start.position, len(documents), _DOCUMENTS_A_BLOCK):
        part = documents[first : first + _DOCUMENTS_A_BLOCK]
        spans = [
            Span(
                np.array([EOT, *one] if eot_first else [*one, EOT], WIDE.dtype),
                np.array([0 if eot_first else len(one)]),
            )
            for one in part
        ]
        whole = join_spans(spans)
        yield EncodedBlock(Cursor(0, first), Cursor(0, first + len(part)), whole.tokens, whole.eots)


def no_mender() -> object:
    raise AssertionError("there is no seam to mend")


def write(out: Path, layout: str, documents: Documents, *, kill_after: int | None = None, **more: object) -> Manifest:
    """Make the shards, or the rest of them; `kill_after` so many slices."""
    config = Config(out=str(out), layout=layout, shard_tokens=SHARD_TOKENS, **more)  # type: ignore[arg-type]
    spec = output_spec(config, FolderStore(out), WIDE)
    new = runs.manifest_of(
        config.fingerprint(),
        [{"name": "made up", "size_bytes": 1, "content_hash": ""}],
        digits=spec.layout.digits,
        vocabulary=WIDE,
    )
    with FolderLock(out):
        manifest = trim_to_whole_files(load_manifest(out) or new, FolderStore(out))
        check_settings(manifest, new, Config().fingerprint())
        begin_output(FolderStore(out), manifest)
        packer = Packer(
            SHARD_TOKENS,
            split_rule=spec.split_rule,
            one_file=spec.layout.one_file,
            eot_first=spec.layout.eot_first,
            done=manifest.done,
            starts=manifest.end,
        )
        blocks = encoded_blocks(documents, manifest.end[0], eot_first=spec.layout.eot_first)
        disk, numbers = Disk(out, 0, Observer()), itertools.count()

        def deadly(slices: Iterator[ShardSlice]) -> Iterator[ShardSlice]:
            for part in slices:
                if next(numbers) == kill_after:
                    raise Killed
                yield part

        with (
            contextlib.closing(AtOncePlane(spec.store, spec.shard_format, disk)) as plane,
            Output(spec, manifest, plane, disk) as output,
        ):
            for block in stitch(blocks, no_mender, manifest.end):  # type: ignore[arg-type]
                section = Section.of(block)
                output.add(section, deadly(packer.pack(section)))
            return output.finish()


@pytest.fixture(scope="module")
def documents() -> Documents:
    return make_documents()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, documents: Documents) -> dict[str, Path]:
    """A folder in every layout that takes such ids."""
    folders = {layout: tmp_path_factory.mktemp("wide") / layout for layout in LAYOUTS_FOR_WIDE}
    for layout, folder in folders.items():
        write(folder, layout, documents)
    return folders


@pytest.mark.parametrize("layout", LAYOUTS_FOR_WIDE)
def test_every_file_is_what_numpy_makes(made: dict[str, Path], documents: Documents, layout: str) -> None:
    """Headers, widths, the index; and `verify` agrees."""
    assert runs.outputs_in(made[layout]) == expected(layout, documents)
    verdict = verify_folder(FolderStore(made[layout]))
    assert verdict.damages == []
    assert verdict.manifest.vocabulary == WIDE
    assert verdict.manifest.documents == len(documents)
    data = json.loads((made[layout] / "manifest.json").read_text())
    dtype = "int32" if layout == "megatron" else "uint32"
    assert data["vocabulary"] == {
        "name": "made-up", "sha256": "ab" * 32, "size": 70_000, "eot": EOT, "dtype": dtype,
    }  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS_FOR_WIDE)
@pytest.mark.parametrize("ratio", [None, 0.1])
def test_a_crash_in_the_middle_changes_nothing(
    tmp_path: Path, documents: Documents, layout: str, ratio: float | None
) -> None:
    """Killed once, resumed: the same files as without."""
    write(tmp_path / "whole", layout, documents, val_ratio=ratio)
    with pytest.raises(Killed):
        write(tmp_path / "killed", layout, documents, kill_after=35, val_ratio=ratio)
    before = load_manifest(tmp_path / "killed")
    assert before is not None
    assert 0 < before.tokens < sum(map(len, documents)) + len(documents)
    write(tmp_path / "killed", layout, documents, val_ratio=ratio)
    assert runs.outputs_in(tmp_path / "killed") == runs.outputs_in(tmp_path / "whole")
    assert verify_folder(FolderStore(tmp_path / "killed")).damages == []


@pytest.mark.parametrize("source", LAYOUTS_FOR_WIDE)
def test_export_into_every_other_layout(
    made: dict[str, Path], documents: Documents, tmp_path: Path, source: str
) -> None:
    """The tokens are copied, each in the width of its new layout."""
    for layout in LAYOUTS_FOR_WIDE:
        manifest = runs.export(made[source], tmp_path / layout, layout=layout, shard_tokens=SHARD_TOKENS)
        assert runs.outputs_in(tmp_path / layout) == expected(layout, documents)
        assert manifest.vocabulary == WIDE
        assert verify_folder(FolderStore(tmp_path / layout)).damages == []


def test_export_puts_a_share_of_the_documents_back(tmp_path: Path, documents: Documents) -> None:
    """Both splits are read side by side, by documents."""
    write(tmp_path / "in", "megatron", documents, val_ratio=0.2)
    runs.export(tmp_path / "in", tmp_path / "out", layout="llm.c", shard_tokens=SHARD_TOKENS)
    assert runs.outputs_in(tmp_path / "out") == expected("llm.c", documents)


@pytest.mark.parametrize("layout", LAYOUTS_FOR_WIDE)
def test_the_loader_gives_the_right_ids(made: dict[str, Path], documents: Documents, layout: str) -> None:
    """Also without a header: the manifest beside the files says how wide a token is."""
    size = 2 * 16
    loader = ShardLoader(made[layout], "train", batch_size=2, seq_len=16, framework="numpy")
    tokens = stream_of(documents, layout)
    if layout in ONE_FILE:
        files = [tokens]
    else:
        files = [tokens[i : i + SHARD_TOKENS] for i in range(0, len(tokens), SHARD_TOKENS)]
    for file in files[1:] if layout in EOT_FIRST else files:
        for first in range(0, len(file) - size, size):
            x, y = loader.next_batch()
            assert x.ravel().tolist() == file[first : first + size]
            assert y.ravel().tolist() == file[first + 1 : first + size + 1]


@pytest.mark.parametrize("layout", LAYOUTS_FOR_WIDE)
def test_the_loader_finds_documents_by_the_manifests_eot(
    made: dict[str, Path], documents: Documents, layout: str
) -> None:
    """In every layout: rows that begin at a document are those of plain lists."""
    tokens, eot_first = stream_of(documents, layout), layout in EOT_FIRST
    size = len(tokens) if layout in ONE_FILE else SHARD_TOKENS
    files = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    rows = loader_reference.epoch_rows(files, 16, eot=WIDE.eot, eot_first=eot_first, aligned=True)
    skipped = loader_reference.epoch_rows(files[:1], 16, eot=WIDE.eot, eot_first=eot_first, aligned=True)
    expected = rows[len(skipped) :] if eot_first else rows  # the first shard is for validation
    loader = ShardLoader(made[layout], "train", batch_size=1, seq_len=16, align="document", framework="numpy")
    assert [x.tolist() for x, _ in loader.epoch_batches(0)] == [[row[:-1]] for row in expected]
    assert len(expected) > 10


def test_train_llama3_reads_every_shard(made: dict[str, Path], documents: Documents) -> None:
    """llm.c's train_llama3.py: _peek_data_shard and _load_data_shard, over the files that its glob finds; the stream
    begins with the token that begins documents."""
    found = []
    for split in ("val", "train"):
        paths = sorted(made["llm.c"].glob(f"edu_fineweb_{split}_*.bin"))
        assert paths
        for path in paths:
            data = path.read_bytes()
            header = np.frombuffer(data[: 256 * 4], np.int32)
            assert header[:2].tolist() == [20240801, 7]
            tokens = np.frombuffer(data[256 * 4 :], np.uint32)
            assert len(tokens) == header[2]
            found += tokens.tolist()
    assert found[0] == EOT
    assert found == stream_of(documents, "llm.c")


@pytest.mark.parametrize("layout", ["nanogpt", "modded-nanogpt"])
def test_a_reader_of_two_bytes_is_refused(made: dict[str, Path], tmp_path: Path, layout: str) -> None:
    """In a sentence with layout, vocabulary and the next step, before anything is written."""
    sentence = rf"--layout {layout}: its reader takes tokens of 2 bytes, but the 70,000 ids .* made-up need 4"
    with pytest.raises(UsageError, match=sentence) as refused:
        runs.export(made["plain"], tmp_path / "out", layout=layout, shard_tokens=SHARD_TOKENS)
    assert "plain" in refused.value.hint
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match=sentence):
        ShardFormat(get_layout(layout), WIDE)


def test_widths_by_vocabulary_and_layout() -> None:
    """GPT-2 is uint16 everywhere but in torchtitan, which reads uint32 only; Megatron changes to int32 at 65,500 ids,
    the others at 65,537."""
    widths = {name: ShardFormat(layout, GPT2).dtype.str for name, layout in LAYOUTS.items()}
    assert widths == {**dict.fromkeys(LAYOUTS, "<u2"), "torchtitan": "<u4"}
    for size, plain, megatron in [(65_499, "<u2", "<u2"), (65_536, "<u2", "<i4"), (65_537, "<u4", "<i4")]:
        vocabulary = Vocabulary("v", "", size, 0)
        assert ShardFormat(LAYOUTS["plain"], vocabulary).dtype.str == plain
        assert ShardFormat(LAYOUTS["megatron"], vocabulary).dtype.str == megatron
    llm_c = get_layout("llm.c")
    assert llm_c.most_tokens(np.dtype("<u2")) == (2**31 - 1 - 1024) // 2
    assert llm_c.most_tokens(np.dtype("<u4")) == (2**31 - 1 - 1024) // 4


def test_an_id_outside_the_vocabulary_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the width could hold; as int32 a negative number is one, too. It is found before the file has a name,
    and in a file that has one."""
    tokens = [[5, 70_001], [2**31 + 5]]
    with pytest.raises(DamageError, match=f"token {2**31 + 5} is outside the vocabulary"):
        write(tmp_path, "megatron", tokens)
    assert not runs.outputs_in(tmp_path)
    with monkeypatch.context() as blind:
        blind.setattr(shard_files, "find_damage", lambda *arguments: None)
        write(tmp_path, "megatron", tokens)
    (damage,) = verify_folder(FolderStore(tmp_path)).damages
    assert f"token {2**31 + 5} is outside the vocabulary" in damage


def test_statistics_have_the_length_of_the_vocabulary(made: dict[str, Path], documents: Documents) -> None:
    """Every id is counted."""
    folder = made["build-nanogpt"]
    manifest = load_manifest(folder)
    assert manifest is not None
    statistics, _ = count_sample(FolderStore(folder), manifest.shard_format, manifest.shards, in_order=True)
    tokens = stream_of(documents, "build-nanogpt")
    assert statistics.frequencies.tolist() == np.bincount(tokens, minlength=70_001).tolist()
    assert statistics.boundaries == len(documents)


def test_another_vocabulary_is_refused(made: dict[str, Path]) -> None:
    """A folder goes on with the vocabulary it was begun with."""
    manifest = load_manifest(made["plain"])
    assert manifest is not None
    with pytest.raises(ChangedError, match=r"was made-up .70,000 ids.* and is gpt2 .50,257 ids"):
        check_settings(manifest, replace(manifest, vocabulary=GPT2), Config().fingerprint())
    with pytest.raises(UsageError, match="made-up"):
        load_token_bytes(manifest.vocabulary)


@pytest.mark.parametrize(
    "change", [{"dtype": "uint16"}, {"eot": 70_000}, {"size": 0}, {"size": "many"}, {"eot": -1}, {"name": 3}]
)
def test_a_vocabulary_that_can_not_be_is_damage(
    made: dict[str, Path], tmp_path: Path, change: dict[str, object]
) -> None:
    """Told before a token is read with it."""
    data = json.loads((made["plain"] / "manifest.json").read_text())
    data["vocabulary"] |= change
    runs.write_manifest(tmp_path, data)
    with pytest.raises(DamageError, match="the manifest is damaged"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("folder", ["growing", "killed-before-its-record"])
@pytest.mark.parametrize("version", [2, 3])
def test_manifests_from_before_are_gpt2(tmp_path: Path, folder: str, version: int) -> None:
    """Those of format 2, and of format 3 from the days before it named a vocabulary; saved, they name it."""
    specimen = Path(__file__).parent / "output" / "specimens" / "format-2" / folder / "manifest.json"
    text = specimen.read_text()
    if version == 3:
        text = text.replace('"inside"', '"starts_mid_document"')
        text = text.replace('"wrong_claims"', '"token_count_mismatches"')
    runs.write_manifest(tmp_path, {**json.loads(text), "format": version})
    manifest = load_manifest(tmp_path)
    assert manifest is not None
    assert (manifest.vocabulary, manifest.shard_format.dtype.name) == (GPT2, "uint16")
    with FolderLock(tmp_path):
        save_manifest(manifest, FolderStore(tmp_path))
    data = json.loads((tmp_path / "manifest.json").read_text())
    assert (data["format"], data["vocabulary"]["name"]) == (4, "gpt2")
    assert "tokenizer" not in data


def test_a_setting_that_is_younger_than_the_folder_has_its_default(made: dict[str, Path]) -> None:
    """A new setting does not lock out the folders that were begun before it existed."""
    manifest = load_manifest(made["plain"])
    assert manifest is not None
    defaults = {**Config().fingerprint(), "brand_new": "as before"}
    with_default = replace(manifest, settings={**manifest.settings, "brand_new": "as before"})
    check_settings(manifest, with_default, defaults)
    with pytest.raises(ChangedError, match=r"--brand-new was as before when .* and is other now"):
        check_settings(manifest, replace(manifest, settings={"brand_new": "other"}), defaults)


def test_a_damaged_manifest_beside_bare_tokens_is_told(made: dict[str, Path], tmp_path: Path) -> None:
    """Its width would be a guess; a file with a header is read all the same. One of another program says nothing about
    ours."""
    text = (made["plain"] / "manifest.json").read_text()
    (tmp_path / "train.bin").write_bytes(np.array([1, 2], np.uint16).tobytes())
    np.save(tmp_path / "a.npy", np.array([1, 2], np.uint16))
    (tmp_path / "manifest.json").write_text(text[:-20])
    with pytest.raises(DamageError, match=r"manifest\.json: the manifest is damaged"):
        open_token_file(tmp_path / "train.bin")
    assert open_target(tmp_path / "a.npy").vocabulary == GPT2
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    assert open_token_file(tmp_path / "train.bin").tokens == 2


def test_files_of_other_people(tmp_path: Path) -> None:
    """A uint32 array can be mapped; bare tokens are uint16 where no manifest says otherwise."""
    tokens = np.array([1, 2**20, 3], np.uint32)
    np.save(tmp_path / "theirs_train.npy", tokens)
    assert open_token_file(tmp_path / "theirs_train.npy").map().tolist() == tokens.tolist()
    (tmp_path / "theirs.bin").write_bytes(struct.pack("<256i", 20240801, 7, 3, *[0] * 253) + tokens.tobytes())
    file = open_token_file(tmp_path / "theirs.bin")
    assert (file.kind, next(file.blocks()).tolist()) == ("llm.c", tokens.tolist())
    (tmp_path / "train.bin").write_bytes(tokens.tobytes())
    assert open_token_file(tmp_path / "train.bin").tokens == 6
    (tmp_path / "old.bin").write_bytes(struct.pack("<256i", 20240801, 1, 3, *[0] * 253) + tokens.tobytes())
    with pytest.raises(InputError, match="version 1 in its header, not 7"):
        open_token_file(tmp_path / "old.bin")


# -- the source itself

_WIDTHS = re.compile(
    r"uint16|[<>=|]u2|\b5025[67]\b|\b65[_,]?53[56]\b|2 ?\*\* ?16|1 << 16|VOCABULARY_SIZE"
    r"|\b2 \* [\w.]*tokens|(tokens|bytes)\)? (\*|//?) 2\b(?!\*)"
)
# Sizes that have nothing to do with ids say of what they are.
_NAMED = re.compile(r"^_?[A-Z_]+_(DOCUMENTS|CHARACTERS|BYTES|TOKENS) = ")
_SEARCH = re.compile(r"(flatnonzero|count_nonzero|where|nonzero)\(.*eot|== *[\w.]*\beot\b", re.IGNORECASE)


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a module without comments and docstrings."""
    lines: dict[int, list[str]] = {}
    with open(path, "rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
            if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING) and not is_docstring:
                lines.setdefault(token.start[0], []).append(token.line.partition("#")[0].strip())
    return ((number, found[0]) for number, found in lines.items())


def sources(*allowed: str) -> Iterator[tuple[str, int, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(allowed):
            yield from ((name, number, line) for number, line in code_lines(path))


@pytest.mark.parametrize(
    "line",
    [
        "np.empty(0, np.uint16)", 'np.fromfile(file, "<u2")', "2 * record.tokens", "len(tokens) // 2",
        "tokens * 2", "output_bytes / 2 / speed", "if token == 50256:", "_IDS = 2**16", "ids = 2 ** 16",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_should(line: str) -> None:
    """Each of them once stood somewhere."""
    assert _WIDTHS.search(line)
    assert not _NAMED.match(line)


def test_no_width_is_hard_wired() -> None:
    """Only the vocabulary and the layouts know how wide a token is, which one is EOT, how many there are."""
    found = [
        f"{name}:{number}: {line}"
        for name, number, line in sources("vocabulary.py", "layouts/")
        if _WIDTHS.search(line) and not _NAMED.match(line)
    ]
    assert found == []


def test_only_readers_of_finished_files_search_for_eots() -> None:
    """In a build the boundaries are carried along; and whoever searches does it in the one way there is."""
    lines = list(sources("vocabulary.py"))
    assert [f"{name}:{number}: {line}" for name, number, line in lines if _SEARCH.search(line)] == []
    assert {name for name, _, line in lines if re.search("(find|count)_eots", line)} == {
        "loader/shards.py",
        "reading/inspection.py",
        "reading/statistics.py",
        "reading/token_file.py",
        "reading/verify.py",
        "formats/piles.py",  # where they are known: for damage
        "formats/rows.py",  # of --tokens-column
        "output/shard_files.py",  # of finished segments
        "output/sidecars.py",
        "tokenizers/encoder.py",  # where there must be none
    }
