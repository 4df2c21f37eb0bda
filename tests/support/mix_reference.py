"""The independent reference of a mix: a plain loop over documents. Nothing here imports the code under test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

Document = TypeVar("Document", bound=Sequence[int])


def mix(
    parts: Sequence[Sequence[Document]],
    weights: Sequence[int],
    until: str = "first-exhausted",
    epochs: Sequence[int] = (),
    validation: Sequence[Sequence[Document]] = (),
) -> Iterator[tuple[int, Document]]:
    """Yield (part, document), documents being their tokens with EOT: those of files for validation, one part after the
    other; then always the next one of the part with the smallest t / w."""
    for part, documents in enumerate(validation):
        for document in documents:
            yield part, document
    left = [list(documents) * n for documents, n in zip(parts, epochs or [1] * len(parts), strict=True)]
    taken = [0] * len(parts)
    running = [part for part in range(len(parts)) if left[part] or until == "first-exhausted"]
    while running:
        part = min(running, key=lambda part: (Fraction(taken[part], weights[part]), part))
        if not left[part]:
            return  # first-exhausted
        document = left[part].pop(0)
        taken[part] += len(document)
        yield part, document
        if not left[part] and until == "all-exhausted":
            running.remove(part)
