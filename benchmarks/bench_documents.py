"""Documents of prose in which nothing repeats, in an order that is as good as random.

A sentence that occurs again, whatever its numbers, is left out, and so is what is then left of a page if it is short.
The same pages give the same documents. Memory is bounded, however many there are: a bitmap says which sentences were
seen, and the documents are put in order on the disk, a part at a time.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

EOT_TEXT = "<|endoftext|>"
SHORTEST_DOCUMENT = 300  # characters
LONGEST_DOCUMENT = 10_000  # so that they are as long as FineWeb-Edu's, 5,000 on the average
SENTENCE_END = re.compile(r"(?<=[.!?:;]) ")
NUMBER = re.compile(r"\d+")
PARTS = 64  # of the documents while they are put in order


class SeenSentences:
    """Which sentences were seen, by a bit for each digest. One new sentence in a hundred is taken for an old one when
    there are 20 million."""

    def __init__(self) -> None:
        self._bits = bytearray(2**28)

    def add(self, sentence: str) -> bool:
        """Return whether it was new."""
        digest = hashlib.blake2b(NUMBER.sub("0", sentence).encode(), digest_size=8).digest()
        byte, bit = divmod(int.from_bytes(digest) % (8 * len(self._bits)), 8)
        is_new = not self._bits[byte] >> bit & 1
        self._bits[byte] |= 1 << bit
        return is_new


def make_documents(pages: Iterable[list[str]], seen: SeenSentences) -> Iterator[str]:
    """Pages, each a list of paragraphs, without the sentences that were in an earlier one; long ones are cut."""
    for paragraphs in pages:
        new = (" ".join(filter(seen.add, SENTENCE_END.split(paragraph))) for paragraph in paragraphs)
        for document in cut_page(filter(None, new)):
            if len(document) >= SHORTEST_DOCUMENT and EOT_TEXT not in document:
                yield document


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


def shuffle(documents: Iterable[str], folder: Path) -> Iterator[str]:
    """Yield them by their digest, so that any part of them is like the whole."""
    with ExitStack() as files, tempfile.TemporaryDirectory(dir=folder) as scratch:
        parts = [files.enter_context(open(Path(scratch) / str(part), "w+")) for part in range(PARTS)]
        for document in documents:
            parts[digest_of(document)[0] * PARTS // 256].write(json.dumps(document) + "\n")
        for part in parts:
            part.seek(0)
            yield from sorted((json.loads(line) for line in part), key=digest_of)


def digest_of(document: str) -> bytes:
    return hashlib.sha256(document.encode()).digest()
