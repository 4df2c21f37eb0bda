"""The text that is measured with: 700 MB of prose in which nothing repeats, and parts of it in every form that can be
read.

Engines remember the words that they have seen, so that a text which is read twice is encoded two or three times as fast
as any real one. So this is made of manuals (packages.py, prose.py) without the sentences that occur again
(documents.py).

    python benchmarks/bench_corpus.py   # once, 20 minutes; into benchmarks/.data: 2.3 GB of packages, 1.1 GB
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_documents import EOT_TEXT, SeenSentences, make_documents, shuffle
from packages import fetch_packages, read_pages
from prose import paragraphs_of

from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers import resolve_engine

DATA = Path(__file__).parent / ".data"
# Each has one document in so many.
SHARES = {"large": 1, "part": 4, "small": 32}
GROUP_DOCUMENTS = 1000
FILE_GROUPS = 16
NGRAM = 13
SAMPLED_NGRAMS = 16  # one in so many is remembered


@dataclass(frozen=True)
class Corpus:
    """Documents in every form (those of the large one as parquet only), and how many they are."""

    folder: str
    source: str
    documents: int
    bytes: int
    tokens: int  # without EOTs
    repeated_ngrams: float  # share of the runs of 13 tokens that occurred before

    @property
    def parquet(self) -> list[str]:
        return [str(path) for path in sorted(Path(self.folder).glob("*.parquet"))]

    def form(self, ending: str) -> str:
        return str(Path(self.folder) / f"corpus.{ending}")


@dataclass(frozen=True)
class Corpora:
    """What the programs are given."""

    large: Corpus  # for what is compared with the limit: parquet only
    part: Corpus  # a quarter of it
    small: Corpus  # an eighth of that, for programs that are slow


def find_corpora(*, quick: bool = False, files: list[str] | None = None) -> Corpora:
    """The corpora, made if they are not there. Those of one's own parquet files, or the quick ones, are one and the
    same."""
    if files:
        own = write_own(files)
        return Corpora(own, own, own)
    if not all((DATA / name / "corpus.json").exists() for name in SHARES):
        make_corpora()
    found = {name: load_corpus(DATA / name) for name in SHARES}
    return Corpora(**dict.fromkeys(found, found["small"]) if quick else found)


def load_corpus(folder: Path) -> Corpus:
    return Corpus(folder=str(folder), **json.loads((folder / "corpus.json").read_text()))


def make_corpora() -> None:
    print("Making the benchmark's text, once; about 20 minutes …", file=sys.stderr)
    packages = fetch_packages(DATA / "packages")
    source = f"prose of {len(packages)} of Debian's documentation packages"
    with ExitStack() as open_writers:
        writers = {
            name: open_writers.enter_context(CorpusWriter(DATA / name, source, with_forms=name != "large"))
            for name in SHARES
        }
        for number, text in enumerate(shuffle(read_packages(packages), DATA)):
            for name, every in SHARES.items():
                if number % every == 0:
                    writers[name].add(text)


def read_packages(packages: list[Path]) -> Iterator[str]:
    """The documents of all packages."""
    seen = SeenSentences()
    with multiprocessing.Pool() as pool:
        for package, pages in zip(packages, pool.imap(read_package, map(str, packages)), strict=True):
            characters = 0
            for document in make_documents(pages, seen):
                characters += len(document)
                yield document
            print(f"  {package.name}: {characters:,} characters", file=sys.stderr)


def read_package(package: str) -> list[list[str]]:
    """The paragraphs of every page of a package."""
    return [paragraphs_of(name, page) for name, page in read_pages(Path(package))]


def write_own(files: list[str]) -> Corpus:
    with CorpusWriter(DATA / "own", "own files", with_forms=True) as writer:
        for file in files:
            for rows in pq.ParquetFile(file).iter_batches(columns=["text"]):
                for text in rows["text"].to_pylist():
                    # The text form can't hold these two: an empty document, and one with a separator in it.
                    if text and EOT_TEXT not in text:
                        writer.add(text)
    return load_corpus(DATA / "own")


class CorpusWriter:
    """Writes documents in every form, in groups; what says that they are complete comes last."""

    def __init__(self, folder: Path, source: str, *, with_forms: bool) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        self._source = source
        self._with_forms = with_forms
        self._engine = resolve_engine("auto")()
        self._group: list[str] = []
        self._documents = self._bytes = self._tokens = 0
        self._ngrams = Ngrams()
        self._parquet: pq.ParquetWriter | None = None

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()

    def add(self, text: str) -> None:
        self._group.append(text)
        if len(self._group) == GROUP_DOCUMENTS:
            self._write_group()

    def _write_group(self) -> None:
        names = [f"<urn:benchmark:{self._documents + i}>" for i in range(len(self._group))]
        texts = Texts.from_strings(self._group)
        tokens = self._engine.encode(texts)
        self._write_parquet(names, [len(ids) for ids in tokens])
        if self._with_forms:
            self._append_forms(names)
        self._ngrams.add(np.concatenate(tokens))
        self._documents += len(self._group)
        self._bytes += texts.size_bytes
        self._tokens += sum(map(len, tokens))
        self._group = []

    def _write_parquet(self, names: list[str], counts: list[int]) -> None:
        """As FineWeb-Edu's files are: groups of 1,000 rows, snappy."""
        table = pa.table({"text": self._group, "id": names, "token_count": pa.array(counts, pa.int64())})
        number, group = divmod(self._documents // GROUP_DOCUMENTS, FILE_GROUPS)
        if group == 0:
            self._close_parquet()
            path = self._folder / f"{number:03d}_00000.parquet"
            self._parquet = pq.ParquetWriter(path, table.schema, compression="snappy")
        assert self._parquet is not None
        self._parquet.write_table(table)

    def _close_parquet(self) -> None:
        if self._parquet is not None:
            self._parquet.close()

    def _append_forms(self, names: list[str]) -> None:
        with open(self._folder / "corpus.jsonl", "a") as rows, open(self._folder / "corpus.txt", "a") as whole:
            for number, (text, name) in enumerate(zip(self._group, names, strict=True), self._documents):
                whole.write((EOT_TEXT if number else "") + text)
                rows.write(json.dumps({"text": text, "id": name}, ensure_ascii=False) + "\n")

    def _finish(self) -> None:
        if self._group:
            self._write_group()
        self._close_parquet()
        for ending in ("jsonl", "txt") if self._with_forms else ():
            compress(self._folder / f"corpus.{ending}")
        corpus = Corpus(
            str(self._folder), self._source, self._documents, self._bytes, self._tokens,
            self._ngrams.repeated_share(),
        )  # fmt: skip
        facts = asdict(corpus)
        del facts["folder"]  # it may be moved
        (self._folder / "corpus.json").write_text(json.dumps(facts, indent=2))


def compress(path: Path) -> None:
    """Beside it, as .gz (level 6) and .zst (level 3)."""
    with open(path, "rb") as source, gzip.open(f"{path}.gz", "wb", compresslevel=6) as packed:
        shutil.copyfileobj(source, packed, 2**20)
    packed_whole = pa.Codec("zstd", compression_level=3).compress(path.read_bytes(), asbytes=True)
    Path(f"{path}.zst").write_bytes(packed_whole)


class Ngrams:
    """Which runs of 13 tokens occur again, by a hash of each; of all different runs a 16th is counted."""

    def __init__(self) -> None:
        self._sampled: list[np.ndarray] = []

    def add(self, tokens: np.ndarray) -> None:
        length = max(0, len(tokens) - NGRAM + 1)
        hashes = np.zeros(length, np.uint64)
        for place in range(NGRAM):
            hashes *= np.uint64(0x9E3779B97F4A7C15)
            hashes += tokens[place : place + length].astype(np.uint64) + np.uint64(1)
            hashes ^= hashes >> np.uint64(29)
        self._sampled.append(hashes[hashes % np.uint64(SAMPLED_NGRAMS) == 0])

    def repeated_share(self) -> float:
        hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *self._sampled]))
        return float(np.count_nonzero(hashes[1:] == hashes[:-1]) / max(1, len(hashes)))


if __name__ == "__main__":
    make_corpora()
