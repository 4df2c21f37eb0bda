"""A folder in a bucket that can be read in a process forked from one that has used it.

A DataLoader of torch forks its workers. What has threads of its own, as the client of object stores does,
hangs there, and a worker may not start processes with `multiprocessing`. So such a process calls the methods
of the store in a helper process, which is spawned, not forked.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from fineweb_shards.reading.verify import fetch_range
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_credentials import was_forked
from fineweb_shards.store.bucket_store import BucketStore

# Ctrl-C signals the whole process group; who has asked decides. Ignored before anything large is imported.
_PROGRAM = f"""
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from {__name__} import serve
serve()
"""

Result = TypeVar("Result")


class HelperProcess:
    """A process with a copy of an object. It ends with the one that has started it, however that ends.

    It is started when it is needed. If a call is interrupted, its process is ended, and the next call has a
    new one: in the pipe of the old one there may be an answer, or a part of it, to what nobody asks any more.
    """

    def __init__(self, subject: object) -> None:
        self._subject = pickle.dumps(subject)
        self._lock = threading.Lock()
        self._idle: subprocess.Popen[bytes] | None = None  # the process, if it owes no answer

    def call(self, method: str, *arguments: object) -> Any:
        """Return what the object's method returns; raise what it raises. Threads take turns."""
        with self._lock:
            idle, self._idle = self._idle, None  # whatever happens until the answer is here
            process = idle or _start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                if idle is None:
                    process.stdin.write(self._subject)
                pickle.dump((method, arguments), process.stdin)
                process.stdin.flush()
                value, error = pickle.load(process.stdout)
            except (EOFError, BrokenPipeError, pickle.UnpicklingError):  # there is no answer, or half of one
                raise RuntimeError(f"a helper process has ended with {_wait_for_end(process)}") from None
            except BaseException:
                process.kill()
                _wait_for_end(process)  # after that it writes no file any more
                raise
            self._idle = process
        if error is not None:
            raise error
        return value


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)}
    words = [sys.executable, "-c", _PROGRAM]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Close the pipes of a process, wait until it has ended, and return its exit code."""
    with contextlib.suppress(BrokenPipeError), process:  # it does not read any more what was not sent yet
        pass
    return process.wait()


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


def _forkable(method: Callable[..., Result]) -> Callable[..., Result]:
    """Return a method of ForkableStore that a forked process calls in the helper process."""

    @wraps(method)
    def call(self: ForkableStore, *arguments: object) -> Result:
        if was_forked():
            return cast(Result, self.helper.call(method.__name__, *arguments))
        return method(self, *arguments)

    return call


class ForkableStore(BucketStore):
    """A bucket's folder for a loader, which only reads it, and needs no copies of its small files."""

    def __init__(self, bucket: Bucket, scratch: Path) -> None:
        super().__init__(bucket, scratch)
        self.helper = HelperProcess(self)  # for a forked process

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkableStore, (self._bucket, self._scratch)

    fetch_range = _forkable(fetch_range)
    find = _forkable(BucketStore.find)
    read_range = _forkable(BucketStore.read_range)
    is_locked = _forkable(BucketStore.is_locked)
    manifest_version = _forkable(BucketStore.manifest_version)
    read_manifest = _forkable(BucketStore.read_manifest)
