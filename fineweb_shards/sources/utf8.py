"""Check that bytes are UTF-8, and replace those that are not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from fineweb_shards.sources.base import decode_text
from fineweb_shards.texts import Texts


def decode_texts(pieces: Iterable[bytes]) -> tuple[Texts, int]:
    """Hold pieces of bytes as texts; return them, and the number of characters that replace invalid bytes."""
    decoded = [decode_text(piece) for piece in pieces]
    return Texts.from_strings(text for text, _ in decoded), sum(replaced for _, replaced in decoded)


def is_utf8(data: bytes | memoryview) -> bool:
    """Tell whether bytes are valid UTF-8. Makes no copy of them, unlike `decode`."""
    boundaries = np.array([0, len(data)], np.int64)
    text = pa.LargeStringArray.from_buffers(1, pa.py_buffer(boundaries), pa.py_buffer(data))
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
