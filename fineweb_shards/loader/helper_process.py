"""Call the methods of an object in a process of its own, which is started anew and not forked.

A DataLoader of torch forks its workers. What has threads of its own, as the client of object stores does,
can't be used there any more, and a worker may not start processes with `multiprocessing`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from typing import Any


class HelperProcess:
    """A process with a copy of an object. It ends with the one that has started it, however that ends."""

    def __init__(self, subject: object) -> None:
        self._lock = threading.Lock()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)}
        words = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._send(subject)

    def call(self, method: str, *arguments: object) -> Any:
        """Return what the object's method returns; raise what it raises. Threads take turns."""
        with self._lock:
            assert self._process.stdout is not None
            self._send((method, arguments))
            try:
                value, error = pickle.load(self._process.stdout)
            except EOFError:
                raise RuntimeError(f"a helper process has ended with {self._process.wait()}") from None
        if error is not None:
            raise error
        return value

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()


def serve() -> None:
    """Answer the requests on standard input until it is closed. What is being done then is given up."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed here must not get among the answers
    subject = pickle.load(requests)

    def answer(method: str, arguments: tuple[object, ...]) -> None:
        value: object = None
        failure: Exception | None = None
        try:
            value = getattr(subject, method)(*arguments)
        except Exception as error:  # raised again in the process that has asked
            failure = error
        pickle.dump((value, failure), answers)
        answers.flush()

    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            os._exit(0)  # without waiting for a thread in the middle of a download
        threading.Thread(target=answer, args=request, daemon=True).start()
