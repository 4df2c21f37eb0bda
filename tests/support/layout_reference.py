"""What every layout's files must be: plain loops over documents and tiktoken, nothing of ours.

The format facts are written down a second time on purpose: `struct` and `numpy.save` by hand.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import reference

EOT = reference.EOT
EOT_FIRST = {"build-nanogpt": True, "llm.c": True, "modded-nanogpt": True}
DEFAULT_VAL = {
    "build-nanogpt": "shard",
    "llm.c": "shard",
    "modded-nanogpt": "shard",
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
    n = wanted.shard_tokens
    if wanted.layout == "nanogpt":
        return {f"{k}.bin": raw(v) for k, v in (("val", val), ("train", train)) if v}
    if wanted.layout == "megatron":
        found = {}
        for split, tokens in (("val", val), ("train", train)):
            if tokens:
                found[f"fineweb_{split}_text_document.bin"] = raw(tokens)
                found[f"fineweb_{split}_text_document.idx"] = megatron_index(tokens)
        return found
    found = {}
    side_by_side = wanted.val_ratio is not None
    number = 0
    for split, tokens in (("val", val), ("train", train)):
        number = 0 if side_by_side else number
        for start in range(0, len(tokens), n):
            shard = tokens[start : start + n]
            if split == "train" and wanted.drop and len(shard) < n:
                continue
            name, data = shard_file(wanted.layout, split, number, shard)
            found[name] = data
            number += 1
    return found


def shard_file(layout: str, split: str, number: int, tokens: list[int]) -> tuple[str, bytes]:
    if layout == "build-nanogpt":
        buffer = io.BytesIO()
        np.save(buffer, np.array(tokens, np.uint16))
        return f"edufineweb_{split}_{number:06d}.npy", buffer.getvalue()
    if layout == "plain":
        return f"{split}_shard_{number:04d}.bin", raw(tokens)
    stem = "edu_fineweb" if layout == "llm.c" else "fineweb"
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    return f"{stem}_{split}_{number:06d}.bin", header + raw(tokens)


def raw(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}H", *tokens)


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
    starts = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    n = len(lengths)
    return (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, n, n + 1)
        + struct.pack(f"<{n}i", *lengths)
        + struct.pack(f"<{n}q", *starts)
        + struct.pack(f"<{n + 1}q", *range(n + 1))
    )
