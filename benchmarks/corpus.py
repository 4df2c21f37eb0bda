"""The text that is measured with: 300 MB of prose in which nothing repeats, in every form that can be read.

Engines remember the words that they have seen, so that a text which is read twice is encoded two or three
times as fast as any real one. So this is made of manuals (packages.py, prose.py): a sentence that occurs
again, whatever its numbers, is left out, and so is what is then left of a page if it is short. The same
packages give the same documents, in an order that is as good as random.

    python benchmarks/corpus.py     # once, about 5 minutes; into benchmarks/.data: 0.8 GB of packages, 2 GB
"""

from __future__ import annotations

import gzip
import hashlib
import json
import multiprocessing
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from packages import fetch_packages, read_pages
from prose import paragraphs_of

from fineweb_shards.texts import Texts
from fineweb_shards.tokenizers import resolve_engine

DATA = Path(__file__).parent / ".data"
EOT_TEXT = "<|endoftext|>"
SHORTEST_DOCUMENT = 300  # characters
LONGEST_DOCUMENT = 50_000
PARQUET_FILES = 4
ROW_GROUP_DOCUMENTS = 1000
QUICK_SHARE = 8  # one document in so many
NGRAM = 13
SENTENCE_END = re.compile(r"(?<=[.!?:;]) ")
NUMBER = re.compile(r"\d+")
FORMS = ("jsonl", "jsonl.gz", "jsonl.zst", "txt", "txt.gz", "txt.zst")


@dataclass(frozen=True)
class Corpus:
    """The same documents in every form, and how many they are."""

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


def find_corpus(*, quick: bool = False, files: list[str] | None = None) -> Corpus:
    """The corpus, or an eighth of it, or that of one's own parquet files; made if it is not there."""
    if files:
        return write_corpus(DATA / "own", read_texts(files), "own files")
    stamp = DATA / ("quick" if quick else "full") / "corpus.json"
    if not stamp.exists():
        make_corpus()
    return Corpus(folder=str(stamp.parent), **json.loads(stamp.read_text()))


def make_corpus() -> None:
    print("Making the benchmark's text, once; about 5 minutes …", file=sys.stderr)
    packages = fetch_packages(DATA / "packages")
    # By digest: shuffled, so that any part of it is like the whole.
    documents = sorted(make_documents(packages), key=lambda text: hashlib.sha256(text.encode()).digest())
    source = f"prose of {len(packages)} of Debian's documentation packages"
    write_corpus(DATA / "quick", documents[::QUICK_SHARE], source)
    corpus = write_corpus(DATA / "full", documents, source)
    print(
        f"{corpus.bytes:,} bytes, {corpus.tokens:,} tokens: {corpus.repeated_ngrams:.1%} of the runs repeat"
    )


def read_texts(files: list[str]) -> list[str]:
    tables = (pq.read_table(file, columns=["text"]) for file in files)
    # The text form can't hold these two: an empty document, and one that looks like a separator.
    return [text for table in tables for text in table["text"].to_pylist() if text and EOT_TEXT not in text]


def make_documents(packages: list[Path]) -> Iterator[str]:
    """Pages without the sentences that were in an earlier one; long ones are cut."""
    seen: set[int] = set()
    with multiprocessing.Pool() as pool:
        for package, pages in zip(packages, pool.imap(read_package, map(str, packages)), strict=True):
            before = len(seen)
            for paragraphs in pages:
                new = (" ".join(drop_seen(SENTENCE_END.split(one), seen)) for one in paragraphs)
                for document in cut_page(filter(None, new)):
                    if len(document) >= SHORTEST_DOCUMENT and EOT_TEXT not in document:
                        yield document
            print(f"  {package.name}: {len(seen) - before:,} new sentences", file=sys.stderr)


def read_package(package: str) -> list[list[str]]:
    """The paragraphs of every page of a package."""
    return [paragraphs_of(name, page) for name, page in read_pages(Path(package))]


def drop_seen(sentences: Iterable[str], seen: set[int]) -> Iterator[str]:
    for sentence in sentences:
        digest = hashlib.blake2b(NUMBER.sub("0", sentence).encode(), digest_size=8).digest()
        key = int.from_bytes(digest)
        if key not in seen:
            seen.add(key)
            yield sentence


def cut_page(paragraphs: Iterable[str]) -> Iterator[str]:
    """Documents of whole paragraphs."""
    held: list[str] = []
    length = 0
    for paragraph in paragraphs:
        if held and length + len(paragraph) > LONGEST_DOCUMENT:
            yield "\n".join(held)
            held, length = [], 0
        held.append(paragraph)
        length += len(paragraph) + 1
    yield "\n".join(held)


def write_corpus(folder: Path, texts: list[str], source: str) -> Corpus:
    """Write every form of the documents; what says that they are complete comes last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokens, counts = count_tokens(texts)
    write_parquet(folder, texts, counts)
    with open(folder / "corpus.jsonl", "w") as lines, open(folder / "corpus.txt", "w") as whole:
        for number, text in enumerate(texts):
            lines.write(json.dumps({"text": text, "id": name_document(number)}, ensure_ascii=False) + "\n")
            whole.write((EOT_TEXT if number else "") + text)
    for ending in ("jsonl", "txt"):
        compress(folder / f"corpus.{ending}")
    corpus = Corpus(
        str(folder), source, len(texts), sum(len(text.encode()) for text in texts), int(counts.sum()),
        repeated_share(tokens),
    )  # fmt: skip
    facts = asdict(corpus)
    del facts["folder"]  # it may be moved
    (folder / "corpus.json").write_text(json.dumps(facts, indent=2))
    return corpus


def name_document(number: int) -> str:
    return f"<urn:benchmark:{number}>"


def count_tokens(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """All tokens, and how many each document has."""
    engine = resolve_engine("auto")()
    tokens, counts = [], []
    for begin in range(0, len(texts), ROW_GROUP_DOCUMENTS):
        encoded = engine.encode(Texts.from_strings(texts[begin : begin + ROW_GROUP_DOCUMENTS]))
        tokens += [np.asarray(ids, np.uint16) for ids in encoded]
        counts.append(np.array([len(ids) for ids in encoded]))
    return np.concatenate(tokens), np.concatenate(counts)


def write_parquet(folder: Path, texts: list[str], counts: np.ndarray) -> None:
    """As FineWeb-Edu's files are: groups of 1,000 rows, snappy."""
    size = -(-len(texts) // PARQUET_FILES)
    for number, begin in enumerate(range(0, len(texts), size)):
        rows = range(begin, min(begin + size, len(texts)))
        table = pa.table(
            {
                "text": texts[rows.start : rows.stop],
                "id": [name_document(row) for row in rows],
                "token_count": pa.array(counts[rows.start : rows.stop], pa.int64()),
            }
        )
        path = folder / f"{number:03d}_00000.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP_DOCUMENTS, compression="snappy")


def compress(path: Path) -> None:
    """Beside it, as .gz (level 6) and .zst (level 3)."""
    with open(path, "rb") as source, gzip.open(f"{path}.gz", "wb", compresslevel=6) as packed:
        shutil.copyfileobj(source, packed, 2**20)
    packed_whole = pa.Codec("zstd", compression_level=3).compress(path.read_bytes(), asbytes=True)
    Path(f"{path}.zst").write_bytes(packed_whole)


def repeated_share(tokens: np.ndarray) -> float:
    """The share of the runs of 13 tokens that occur again: by a hash of each run."""
    length = len(tokens) - NGRAM + 1
    if length < 1:
        return 0.0
    hashes = np.zeros(length, np.uint64)
    for place in range(NGRAM):
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += tokens[place : place + length].astype(np.uint64) + np.uint64(1)
        hashes ^= hashes >> np.uint64(29)
    hashes.sort()
    return float(np.count_nonzero(hashes[1:] == hashes[:-1]) / length)


if __name__ == "__main__":
    make_corpus()
