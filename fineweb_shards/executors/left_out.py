"""Remember the documents that are left out because they crash workers. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from fineweb_shards.errors import WorkerError
from fineweb_shards.types import Quarantined

# If more documents than this crash their workers, the documents are not the cause, and the run stops.
MAXIMUM_QUARANTINED = 100


class LeftOut:
    """The digests of documents in quarantine, by file. `known` are those of earlier runs."""

    def __init__(self, known: Iterable[Quarantined]) -> None:
        self._digests: dict[int, frozenset[str]] = {}
        self._new = 0  # in this run
        for document in known:
            self._note(document)

    def of_file(self, file: int) -> frozenset[str]:
        """Return the digests of the documents to leave out of a file."""
        return self._digests.get(file, frozenset())

    def add(self, document: Quarantined) -> None:
        """Leave out a document that has just crashed workers; WorkerError if there are too many of them."""
        self._new += 1
        if self._new > MAXIMUM_QUARANTINED:
            raise WorkerError(
                f"More than {MAXIMUM_QUARANTINED} documents crashed their workers: {document.cause}."
            )
        self._note(document)

    def _note(self, document: Quarantined) -> None:
        self._digests[document.file] = self.of_file(document.file) | {document.sha256}
