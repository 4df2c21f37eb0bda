"""Describe allenai/OLMo-core, dolma: `part-{train|val}-{index:05d}.npy`, EOS (our EOT) after each document.

Despite their names these files are not NumPy arrays: the reader takes ranges of bytes, and would read a header as
tokens. A `.csv.gz` beside each has the start and end of every document, for readers that don't search the tokens.
OLMo-core evaluates on other data, so by default everything is for training.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence

from fineweb_shards.layouts.base import Layout, quote_pattern
from fineweb_shards.layouts.sidecar import FileFacts, Sidecar
from fineweb_shards.types import Positions
from fineweb_shards.vocabulary import GPT2, Vocabulary

_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # deflate, no name, no time, any system
_LARGEST_BLOCK_BYTES = 2**16 - 1
_LINES_AT_ONCE = 2**14  # so that a file of nothing but EOTs takes no more memory than others


class DocumentTable(Sidecar):
    """The `.csv.gz`: a line `start,end` for each document that ends in the file, in tokens.

    As in OLMo-core's own `write_document_indices`, a document that continues in the next file is not listed, because
    its readers ignore it as well. The lines are stored, not deflated, because the output of deflate depends on the
    version of zlib, and sidecars are verified byte for byte."""

    endings = ".npy", ".csv.gz"

    def blocks(self, file: FileFacts, eots: Iterable[Positions]) -> Iterable[bytes]:
        """Yield the blocks of a gzip file that stores the lines; all but the last are full."""
        yield _GZIP_HEADER
        rest, checksum, length = b"", 0, 0
        for text in _lines(eots):
            checksum, length = zlib.crc32(text, checksum), length + len(text)
            data = rest + text
            full = len(data) - len(data) % _LARGEST_BLOCK_BYTES
            for first in range(0, full, _LARGEST_BLOCK_BYTES):
                yield _store(data[first : first + _LARGEST_BLOCK_BYTES])
            rest = data[full:]
        yield _store(rest, last=True) + struct.pack("<II", checksum, length % 2**32)


class OlmoCore(Layout):
    name = "olmo-core"
    eot_first = False
    digits = 5
    suffix = ".npy"
    sidecars = (DocumentTable(),)
    file_name = "part-{split}-{number}.npy"
    validates_first_shard = False
    pattern = r"part-(train|val)-\d{5,}\.(npy|csv\.gz)"

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        # With a BOS, as in its gpt2(), only an EOS before a BOS would end a document.
        eos, dtype = vocabulary.eot, self.dtype(vocabulary)
        ids = f"vocab_size={vocabulary.size}, eos_token_id={eos}, pad_token_id={eos}"
        tokenizer = f"TokenizerConfig({ids}, bos_token_id=None)"
        if vocabulary == GPT2:
            tokenizer = "dataclasses.replace(TokenizerConfig.gpt2(), bos_token_id=None)"
        return [
            *(["import dataclasses"] if vocabulary == GPT2 else []),
            "from olmo_core.data import NumpyDatasetDType, NumpyFSLDatasetConfig, TokenizerConfig",
            f"tokenizer = {tokenizer}  # with a BOS it finds no documents",
            f"NumpyFSLDatasetConfig(paths=[{quote_pattern(folder, 'part-train-*.npy')}], expand_glob=True,",
            f"    dtype=NumpyDatasetDType.{dtype.name}, tokenizer=tokenizer, sequence_length=…)",
        ]


def _lines(eots: Iterable[Positions]) -> Iterator[bytes]:
    """Yield the lines of the table, some documents at a time."""
    start = 0
    for places in eots:
        for first in range(0, len(places), _LINES_AT_ONCE):
            ends = (places[first : first + _LINES_AT_ONCE] + 1).tolist()
            starts = [start, *ends[:-1]]
            yield "".join(f"{begin},{end}\n" for begin, end in zip(starts, ends, strict=True)).encode()
            start = ends[-1]


def _store(data: bytes, *, last: bool = False) -> bytes:  # as a block of deflate
    return struct.pack("<BHH", last, len(data), ~len(data) & 0xFFFF) + data
