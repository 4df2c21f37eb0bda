"""Describe allenai/OLMo-core: `part-{train|val}-{index:05d}.npy`, EOS (our EOT) after each document.

In spite of their name these files are no NumPy arrays: the reader takes ranges of bytes, and would read a
header as tokens. Beside each there is a `.csv.gz` with the start and the end of every document, for readers
that do not search the tokens. OLMo-core evaluates on other data, so by default everything is for training.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence

from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.sidecar import FileFacts, Part, Sidecar
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import Dtype, Places, Split

_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time, any system
_LARGEST_BLOCK_BYTES = 2**16 - 1


class DocumentTable(Sidecar):
    """The `.csv.gz`: a line `start,end` for each document that ends in the file, in tokens.

    So OLMo-core's own `write_document_indices` has it: a document that goes on in the next file is not
    listed, as its readers do not see it either. The lines are stored, not deflated, because what deflate
    makes of them depends on the version of zlib, and a sidecar is verified byte for byte.
    """

    def name_for(self, shard_name: str) -> str:
        return f"{shard_name.removesuffix('.npy')}.csv.gz"

    def parts(self, file: FileFacts, eots: Iterable[Places]) -> Iterator[Part]:
        yield Part(0, _GZIP_HEADER)
        offset, checksum, length = len(_GZIP_HEADER), 0, 0
        for text in _cut(_lines(eots)):
            block = struct.pack("<BHH", 0, len(text), len(text) ^ 0xFFFF) + text
            yield Part(offset, block)
            offset += len(block)
            checksum = zlib.crc32(text, checksum)
            length += len(text)
        last_block = struct.pack("<BHH", 1, 0, 0xFFFF)
        yield Part(offset, last_block + struct.pack("<II", checksum, length % 2**32))


class OlmoCore(Layout):
    """The layout of OLMo-core and dolma."""

    name = "olmo-core"
    eot_first = False
    digits = 5
    suffix = ".npy"
    sidecars = (DocumentTable(),)
    pattern = r"part-(train|val)-\d{5,}\.(npy|csv\.gz)"

    def shard_name(self, split: Split, index: int, digits: int = 0) -> str:
        return f"part-{split}-{index:0{max(digits, self.digits)}d}.npy"

    def default_split_rule(self, shard_tokens: int) -> SplitRule:
        return SplitRule()

    def loader_lines(self, folder: str, names: Sequence[str], dtype: Dtype) -> list[str]:
        return [
            "from olmo_core.data import NumpyDatasetDType, NumpyFSLDatasetConfig",
            f'NumpyFSLDatasetConfig(paths=["{folder}/part-train-*.npy"], expand_glob=True,',
            f"    dtype=NumpyDatasetDType.{dtype.name}, tokenizer=…, sequence_length=…)",
        ]


def _lines(eots: Iterable[Places]) -> Iterator[bytes]:
    """Yield the lines of the table, those of many documents at a time."""
    start = 0
    for places in eots:
        ends = (places + 1).tolist()
        starts = [start, *ends[:-1]]
        yield "".join(f"{begin},{end}\n" for begin, end in zip(starts, ends, strict=True)).encode()
        start = ends[-1]


def _cut(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same text in blocks that a gzip file can store."""
    for text in texts:
        for first in range(0, len(text), _LARGEST_BLOCK_BYTES):
            yield text[first : first + _LARGEST_BLOCK_BYTES]
