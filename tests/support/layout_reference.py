"""What every layout's files must be: plain loops over documents and tiktoken, nothing of ours.

The format facts are written down a second time on purpose: `struct` and `numpy.save` by hand.
"""

from __future__ import annotations

import binascii
import gzip
import io
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tests.support import reference

EOT = reference.EOT
EOT_FIRST = {"build-nanogpt": True, "llm.c": True, "modded-nanogpt": True, "automodel": True}
DEFAULT_VAL = {
    "build-nanogpt": "shard",
    "llm.c": "shard",
    "modded-nanogpt": "shard",
    "automodel": "shard",
    "nanogpt": Fraction(1, 2000),
}


@dataclass(frozen=True)
class Wanted:
    """The settings that matter."""

    layout: str
    shard_tokens: int
    val_tokens: int | None = None
    val_ratio: Fraction | None = None
    val_seed: int = 0
    max_tokens: int | None = None
    drop: bool = False
    val_documents: int | None = None
    index: bool = False

    def settings(self) -> dict[str, object]:
        """As the command has them."""
        return {
            "layout": self.layout,
            "shard_tokens": self.shard_tokens,
            "val_tokens": self.val_tokens,
            "val_documents": self.val_documents,
            "val_ratio": None if self.val_ratio is None else float(self.val_ratio),
            "val_seed": self.val_seed,
            "max_tokens": self.max_tokens,
            "last_shard": "drop" if self.drop else "keep",
            "index": self.index,
        }


def is_chosen(number: int, ratio: Fraction, seed: int) -> bool:
    """Of every group of 1/ratio documents one, by SplitMix64 of the group's number."""
    group = number * ratio.numerator // ratio.denominator
    first = -((-group * ratio.denominator) // ratio.numerator)
    after = -((-(group + 1) * ratio.denominator) // ratio.numerator)
    z = ((group + 1) * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31
    return number == first + (z >> 1) % (after - first)


def split_stream(encoded: Sequence[Sequence[int]], wanted: Wanted) -> tuple[list[int], list[int]]:
    """The tokens for validation and for training, token after token."""
    eot_first = EOT_FIRST.get(wanted.layout, False)
    val_tokens, ratio = wanted.val_tokens, wanted.val_ratio
    if val_tokens is None and ratio is None and wanted.val_documents is None:
        default = DEFAULT_VAL.get(wanted.layout)
        val_tokens = wanted.shard_tokens if default == "shard" else None
        ratio = default if isinstance(default, Fraction) else None
    val: list[int] = []
    train: list[int] = []
    left = wanted.max_tokens
    for number, document in enumerate(encoded):
        tokens = [EOT, *document] if eot_first else [*document, EOT]
        if left is not None:
            tokens = tokens[:left]
            left -= len(tokens)
        if ratio:
            (val if is_chosen(number, ratio, wanted.val_seed) else train).extend(tokens)
        elif wanted.val_documents is not None:
            (val if number < wanted.val_documents else train).extend(tokens)
        else:
            room = max(0, (val_tokens or 0) - len(val))
            val.extend(tokens[:room])
            train.extend(tokens[room:])
    return val, train


def files(documents: Sequence[str], wanted: Wanted) -> dict[str, bytes]:
    """Every file of the layout: name to bytes."""
    return files_of_tokens([reference.encode(text) for text in documents], wanted)


def files_of_tokens(encoded: Sequence[Sequence[int]], wanted: Wanted) -> dict[str, bytes]:
    val, train = split_stream(encoded, wanted)
    one_file = wanted.layout in ("nanogpt", "megatron", "torchtitan")
    n = max(len(val), len(train), 1) if one_file else wanted.shard_tokens
    found: dict[str, bytes] = {}
    apart = wanted.val_ratio is not None or (wanted.layout == "nanogpt" and wanted.val_tokens is None)
    number = 0
    before = EOT  # the token that comes before the file in its stream
    for split, tokens in (("val", val), ("train", train)):
        number, before = (0, EOT) if apart else (number, before)
        for start in range(0, len(tokens), n):
            shard = tokens[start : start + n]
            if split == "train" and wanted.drop and len(shard) < n:
                continue
            made = shard_files(wanted.layout, split, number, shard)
            found |= made
            if wanted.index:
                stem = next(iter(made)).rsplit(".", 1)[0]
                starts = document_starts(shard, before, eot_first=EOT_FIRST.get(wanted.layout, False))
                found[f"index/{stem}.npy"] = saved(starts, np.int64)
            number, before = number + 1, shard[-1]
    return found


def shard_files(layout: str, split: str, number: int, tokens: list[int]) -> dict[str, bytes]:
    """A file of tokens, and what the layout has beside it."""
    if layout == "build-nanogpt":
        return {f"edufineweb_{split}_{number:06d}.npy": saved(tokens, np.uint16)}
    if layout == "nanogpt":
        return {f"{split}.bin": raw(tokens)}
    if layout == "plain":
        return {f"{split}_shard_{number:04d}.bin": raw(tokens)}
    if layout == "megatron":
        stem = f"fineweb_{split}_text_document"
        return {f"{stem}.bin": raw(tokens), f"{stem}.idx": megatron_index(tokens)}
    if layout == "olmo-core":
        stem = f"part-{split}-{number:05d}"
        return {f"{stem}.npy": raw(tokens), f"{stem}.csv.gz": olmo_table(tokens)}
    if layout == "datatrove":
        name = f"{split}_{number:05d}.ds"
        ends = document_ends(tokens)
        metadata = f"gpt2|2\n{len(tokens)}\n{metric(len(tokens))}T".encode()
        return {name: raw(tokens), f"{name}.index": struct.pack(f"<{len(ends)}Q", *ends), f"{name}.metadata": metadata}
    if layout == "torchtitan":
        prefix = "val_" if split == "val" else ""
        offsets = saved([0, *document_ends(tokens)], np.int64)
        wide = struct.pack(f"<{len(tokens)}I", *tokens)
        return {f"{prefix}tokens.bin": wide, f"{prefix}document_offsets.npy": offsets}
    if layout == "automodel":
        stem = f"dataset_{split}_{number:06d}"
        header = struct.pack("<256i", 278895051, 1, len(tokens), 2, *[0] * 252)
        places = [place for place, token in enumerate(tokens) if token == EOT]
        return {f"{stem}.bin": header + raw(tokens), f"{stem}.bos.idx": struct.pack(f"<{len(places)}i", *places)}
    stem = "edu_fineweb" if layout == "llm.c" else "fineweb"
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    return {f"{stem}_{split}_{number:06d}.bin": header + raw(tokens)}


def raw(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}H", *tokens)


def saved(numbers: list[int], kind: type[np.integer]) -> bytes:
    """What `numpy.save` writes."""
    buffer = io.BytesIO()
    np.save(buffer, np.array(numbers, kind))
    return buffer.getvalue()


def document_starts(tokens: list[int], before: int, *, eot_first: bool) -> list[int]:
    """The places in a file at which documents start; `before` is the token before its first."""
    if eot_first:
        return [place for place, token in enumerate(tokens) if token == EOT]
    return [place for place, last in enumerate([before, *tokens[:-1]]) if last == EOT]


def document_ends(tokens: list[int]) -> list[int]:
    """Behind each EOT, and behind the last token."""
    ends = [place + 1 for place, token in enumerate(tokens) if token == EOT]
    return ends if tokens[-1] == EOT else [*ends, len(tokens)]


def olmo_table(tokens: list[int]) -> bytes:
    """As OLMo-core's write_document_indices writes it, in a gzip file that stores instead of deflating, in blocks of
    65,535 bytes and a last one that may be empty. gzip itself must read the same from it."""
    ends = [place + 1 for place, token in enumerate(tokens) if token == EOT]
    text = "".join(f"{a},{b}\n" for a, b in zip([0, *ends], ends, strict=False)).encode()
    data = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])
    for start in range(0, len(text) + 1, 65_535):
        block = text[start : start + 65_535]
        data += struct.pack("<BHH", len(block) < 65_535, len(block), 0xFFFF - len(block)) + block
    data += struct.pack("<II", binascii.crc32(text), len(text))
    assert gzip.decompress(data) == text
    return data


def metric(number: int) -> str:
    """Three digits and a prefix, as humanize.metric."""
    thousands = (len(str(number)) - 1) // 3
    value = number / 1000**thousands
    places = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{places}f} {['', 'k', 'M', 'G'][thousands]}"


def megatron_index(tokens: list[int]) -> bytes:
    """By the book: header, lengths, byte offsets, document numbers."""
    lengths, length = [], 0
    for token in tokens:
        length += 1
        if token == EOT:
            lengths.append(length)
            length = 0
    if length:
        lengths.append(length)
    starts = [2 * start for start in itertools.accumulate([0, *lengths[:-1]])]
    n = len(lengths)
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, n, n + 1)
        + struct.pack(f"<{n}i", *lengths)
        + struct.pack(f"<{n}q", *starts)
        + struct.pack(f"<{n + 1}q", *range(n + 1))
    )
