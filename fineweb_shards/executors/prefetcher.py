"""Have a source fetch a batch before it is read. What fails is only reported, once: reading it will tell."""

from __future__ import annotations

from fineweb_shards.errors import describe_error
from fineweb_shards.events import Event, Observer
from fineweb_shards.sources.parts import Parts
from fineweb_shards.types import Batch


class Prefetcher:
    """Fetches batches of a source ahead, and tells an observer of failures."""

    def __init__(self, source: Parts, observer: Observer) -> None:
        self._source = source
        self._observer = observer
        self._reported: set[str] = set()

    def prefetch(self, batch: Batch) -> None:
        """Begin to fetch a batch. Raises MemoryError only: a batch that can't be fetched may be readable."""
        try:
            self._source.prefetch(batch)
        except MemoryError:
            raise
        except Exception as error:
            if repr(error) not in self._reported:
                self._reported.add(repr(error))
                name = self._source.file_of(batch).name
                text = f"{name}: could not be fetched ahead: {describe_error(error)}"
                self._observer.tell(Event("worker", text))
