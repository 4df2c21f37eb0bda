"""Run a function in a daemon thread, which never keeps the process from ending.

Not a ThreadPoolExecutor: at exit Python joins its threads, and one that hangs in a download or sleeps through
an outage would make Ctrl-C take minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_background(action: Callable[[], Result]) -> Future[Result]:
    """Start `action` in a thread; the future holds what it returns or raises."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # raised again by `future.result()`
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
