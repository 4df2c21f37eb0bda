"""Work in a thread that never keeps the process from ending.

A ThreadPoolExecutor's threads are waited for at exit: one that hangs in a download or sleeps through an
outage would make Ctrl-C take minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_background(action: Callable[[], Result]) -> Future[Result]:
    """Start `action`; what it returns or raises is in the future."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # it belongs to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
