"""Send requests to a bucket: with retries for what may pass, and our own errors for the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fineweb_shards.buckets.address import BucketAddress
from fineweb_shards.buckets.errors import AnswerError, translate
from fineweb_shards.buckets.stores import get_store, note_answer
from fineweb_shards.errors import NetworkError, ShardError
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Retrier
from fineweb_shards.units import show_seconds

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Result = TypeVar("Result")


class Connection:
    """A folder in a bucket, and how requests about it are sent. Threads may share it."""

    def __init__(self, address: BucketAddress, retrier: Retrier, refusal: type[ShardError]) -> None:
        self.address = address
        self.retrier = retrier
        self.refusal = refusal
        self.longest_answer_seconds: float | None = None  # that is waited for; None: as stores.py says

    def call(
        self,
        name: str,
        action: Callable[[ObjectStore, str], Result],
        *,
        answers: type[AnswerError] | tuple[type[AnswerError], ...] = (),
        for_upload: bool = False,
    ) -> Result:
        """Return what `action` returns for the store and an object's full name in it. Refusals that are
        `answers` to the caller are raised as they are, all others as errors for a user."""
        key = self.address.key(name)

        def attempt() -> Result:
            store = get_store(self.address, for_upload=for_upload)
            from obstore.exceptions import BaseError

            try:
                result = self._call_interruptibly(partial(action, store, key))
            except (BaseError, FileNotFoundError) as error:  # the second one is a missing object
                raise translate(error, self.address, name, self.refusal) from None
            note_answer(self.address)
            return result

        try:
            return self.retrier.call(attempt)
        except AnswerError as answer:
            if isinstance(answer, answers):
                raise
            raise answer.refusal from None

    def _call_interruptibly(self, action: Callable[[], Result]) -> Result:
        """Call a function of obstore. Signals are handled by the main thread, but not inside of obstore,
        where a server that says nothing would keep Ctrl-C waiting; so there another thread calls it."""
        longest = self.longest_answer_seconds
        if longest is None and threading.current_thread() is not threading.main_thread():
            return action()
        future = in_background(action)
        if futures.wait([future], longest).not_done:
            assert longest is not None
            raise NetworkError(f"{self.address}: no answer within {show_seconds(longest)}.")
        return future.result()
