"""Run functions in daemon threads, which never keep the process from ending.

At exit Python joins the threads of a ThreadPoolExecutor: one that hangs in a download, or sleeps through an outage,
would delay Ctrl-C for minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_background(action: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the result of `action` for each item, in order, computed by up to `threads` threads. Closing the generator
    starts no further item, and does not wait for those in progress."""
    work = [(Future[Result](), partial(action, item)) for item in items]
    left = iter(work)
    turn, stopped = threading.Lock(), threading.Event()

    def run() -> None:
        while not stopped.is_set():
            with turn:
                task = next(left, None)
            if task is None:
                return
            _fulfil(*task)

    for _ in range(min(threads, len(work))):
        threading.Thread(target=run, daemon=True).start()
    try:
        for future, _ in work:
            yield future.result()
    finally:
        stopped.set()


def in_background(action: Callable[[], Result]) -> Future[Result]:
    """Run `action` in a thread; return the future of its result."""
    future: Future[Result] = Future()
    threading.Thread(target=_fulfil, args=(future, action), daemon=True).start()
    return future


def _fulfil(future: Future[Result], action: Callable[[], Result]) -> None:
    try:
        future.set_result(action())
    except BaseException as error:  # raised again by `future.result()`
        future.set_exception(error)
