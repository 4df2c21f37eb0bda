"""The command in this process and a build without workers, where what is said, written and returned is the point and
processes are not: a tenth of the time of `runs.run_command`, which has the same answer."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from fineweb_shards.commands import build as build_command
from fineweb_shards.commands import main as cli
from fineweb_shards.events import Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.run import build, job
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.system.retry import Disk
from fineweb_shards.tokenizers.encoder import Encoder, TokenJoiner
from fineweb_shards.tokenizers.trial import Trial, try_engines
from fineweb_shards.tokenizers.vocabulary_files import engine_file
from fineweb_shards.vocabulary import GPT2, Vocabulary
from tests.support import runs
from tests.support.doubles import AtOncePlane, InlineExecutor

MOST_ENCODERS = 4


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
        disk = Disk(spec.store.folder, spec.max_outage_seconds, observer or Observer())
        plane = AtOncePlane(spec.store, spec.shard_format, disk)
        super().__init__(spec.source.reopened(observer), _encoder_of(spec), plane)  # as a worker does


@dataclass(frozen=True)
class _EncoderOf:
    """What an encoder depends on, to find one that is loaded."""

    engine: str | None
    vocabulary: Vocabulary
    eot_first: bool
    mistaken: str


_encoders: dict[_EncoderOf, Encoder | TokenJoiner] = {}


def _encoder_of(spec: WorkerSpec) -> Encoder | TokenJoiner:
    """A worker's encoder. The last few are kept: loading one takes up to a second."""
    eot_first = spec.shard_format.layout.eot_first
    if spec.engine is not None and spec.vocabulary == GPT2:
        return runs.encoder(spec.engine, eot_first=eot_first)
    key = _EncoderOf(spec.engine, spec.vocabulary, eot_first, spec.mistaken)
    if key not in _encoders:
        if len(_encoders) == MOST_ENCODERS:
            del _encoders[next(iter(_encoders))]
        _encoders[key] = spec.make_encoder()
    return _encoders[key]


@lru_cache(maxsize=16)
def _tried(
    wanted: str, like: Vocabulary, special_tokens: tuple[str, ...], added_tokens: tuple[str, ...]
) -> tuple[Trial, bytes | None]:
    trial = try_engines(wanted, like, special_tokens, added_tokens)
    made = like != GPT2 and engine_file(like).exists()
    return trial, engine_file(like).read_bytes() if made else None


def forget_trials() -> None:
    """The next one is a real one, whatever was tried before."""
    _tried.cache_clear()


def _try_once(
    wanted: str, vocabulary: Vocabulary, special_tokens: Iterable[str] = (), added_tokens: Iterable[str] = ()
) -> Trial:
    """The trial of a tokenizer, which takes seconds and always ends the same, once in this process."""
    trial, data = _tried(wanted, vocabulary, tuple(special_tokens), tuple(added_tokens))
    if data is not None and not engine_file(vocabulary).exists():
        engine_file(vocabulary).write_bytes(data)
    return trial


def run_command(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
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
        patch.setattr(build, "LocalExecutor", InlineWorkers)
        patch.setattr(job, "try_engines", _try_once)
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
