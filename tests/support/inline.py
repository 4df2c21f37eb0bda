"""The command in this process and a build without workers, where what is said, written and returned is the
point and processes are not: a tenth of the time of `runs.run_command`, which has the same answer."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import runs
from doubles import InlineExecutor

from fineweb_shards.commands import build as build_command
from fineweb_shards.commands import main as cli
from fineweb_shards.events import Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.run import executor
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.vocabulary import GPT2


class InlineWorkers(InlineExecutor):
    """In the place of a LocalExecutor: the same arguments, and no process."""

    def __init__(
        self,
        spec: WorkerSpec,
        workers: int,
        window_bytes: int,
        guard: MemoryGuard,
        quarantined: Iterable[object] = (),
        observer: Observer | None = None,
    ) -> None:
        eot_first = spec.shard_format.layout.eot_first
        ready = spec.engine is not None and spec.vocabulary == GPT2
        encoder = runs.encoder(spec.engine, eot_first=eot_first) if ready else spec.make_encoder()
        super().__init__(spec.source, encoder, spec.make_writer(observer or Observer()))


def run_command(*words: Path | str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`fineweb-shards …`; an exception that the command would show as a traceback is raised."""
    arguments = [str(word) for word in words]
    output, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        _handlers_kept(),
        contextlib.chdir(cwd or os.curdir),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        # Or this process would keep it to its end.
        patch.setattr(build_command, "apply_priority", lambda priority: None)
        patch.setattr(executor, "LocalExecutor", InlineWorkers)
        patch.setattr(sys, "argv", [cli.__file__, *arguments])
        patch.setattr(sys, "stdin", io.StringIO())
        code = cli.main(arguments)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Those of this process, which a build replaces by its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
