"""Describe Megatron-LM and GPT-NeoX: `fineweb_{train|val}_text_document.bin` and an `.idx` beside it.

The `.bin` holds the tokens of all documents, with EOD (our EOT) after each; the `.idx` lists the documents. Megatron
makes its own validation split, so by default everything is for training.
"""

from __future__ import annotations

import shlex
import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.sidecar import FileFacts, Sidecar, SidecarPart, document_ends
from fineweb_shards.types import Dtype, Positions
from fineweb_shards.vocabulary import Vocabulary

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_HEADER = struct.Struct("<9sQBQQ")
_DTYPE_CODES = {"<u2": 8, "<i4": 4}  # in the index: uint16 and int32
_NARROW_IDS = 65_500  # Megatron's DType.optimal_dtype: int32 from this size on


class MegatronIndex(Sidecar):
    """The `.idx`: a header, then the length, the first byte and the number of every document."""

    endings = ".bin", ".idx"

    def size_bytes(self, file: FileFacts) -> int:
        return _HEADER.size + 4 * file.ends + 8 * file.ends + 8 * (file.ends + 1)

    def parts(self, file: FileFacts, eots: Iterable[Positions]) -> Iterator[SidecarPart]:
        sequences = file.ends
        code = _DTYPE_CODES[file.dtype.str]
        yield SidecarPart(0, _HEADER.pack(_MAGIC, _VERSION, code, sequences, sequences + 1))
        lengths_at = _HEADER.size
        starts_at = lengths_at + 4 * sequences
        numbers_at = starts_at + 8 * sequences
        done, start = 0, 0  # documents, and the token at which the next one begins
        for ends in document_ends(file, eots):
            starts = np.concatenate([[start], ends[:-1]])
            yield SidecarPart(lengths_at + 4 * done, (ends - starts).astype("<i4").tobytes())
            yield SidecarPart(starts_at + 8 * done, (starts * file.dtype.itemsize).astype("<i8").tobytes())
            yield SidecarPart(numbers_at + 8 * done, np.arange(done, done + len(ends), dtype="<i8").tobytes())
            done, start = done + len(ends), int(ends[-1])
        yield SidecarPart(numbers_at + 8 * done, np.array([done], "<i8").tobytes())


class Megatron(Layout):
    name = "megatron"
    eot_first = False
    one_file = True
    sidecars = (MegatronIndex(),)
    file_name = "fineweb_{split}_text_document.bin"
    validates_first_shard = False
    pattern = r"fineweb_(train|val)_text_document\.(bin|idx)"

    def dtype(self, vocabulary: Vocabulary) -> Dtype:
        return np.dtype("<u2" if vocabulary.size < _NARROW_IDS else "<i4")

    def loader_lines(self, folder: str, names: Sequence[str], vocabulary: Vocabulary) -> list[str]:
        paths = {name.split("_")[1]: f"{folder}/{name.removesuffix('.bin')}" for name in names}
        prefixes = {split: shlex.quote(path) for split, path in paths.items()}
        if len(prefixes) == 1:
            return [f"--data-path {prefix}" for prefix in prefixes.values()]
        return [f"--train-data-path {prefixes['train']} --valid-data-path {prefixes['val']}"]
