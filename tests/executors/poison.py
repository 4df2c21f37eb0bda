"""Documents that are poison, and engines that die of them. Importable by worker processes."""

from __future__ import annotations

import os
import signal
from dataclasses import fields
from pathlib import Path

from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.texts import Ids, Texts
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.encoder import Encoder
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine

DEADLY = "This document is deadly."
DEADLY_FOR_FIRST = "This one is deadly for the first engine only."
RAISING = "On this one both engines raise."
RAISING_FIRST = "On this one only the first engine raises."
OUT_OF_MEMORY = "For this one there is never enough memory."
KILLED = "Whoever encodes this one is killed from outside, for a while."
KILLS_LEFT = "TEST_KILLS_LEFT"  # names a folder with a file for each kill to come


def _is_still_hunted() -> bool:
    """Takes one file away for each kill."""
    for path in Path(os.environ[KILLS_LEFT]).iterdir():
        path.unlink()
        return True
    return False


class PanicException(BaseException):
    """As pyo3 raises it for a panic in Rust."""


class PoisonedEngine(Engine):
    """tiktoken, but some documents end the process, or raise."""

    name = "poisoned"

    def __init__(self, *, first: bool) -> None:
        self._first = first
        self._right = TiktokenEngine()

    def encode(self, texts: Texts) -> list[Ids]:
        whole = "\n".join(texts)
        if DEADLY in whole or (self._first and DEADLY_FOR_FIRST in whole):
            os.kill(os.getpid(), signal.SIGSEGV)
        if KILLED in whole and _is_still_hunted():
            os.kill(os.getpid(), signal.SIGKILL)  # as somebody outside would
        if OUT_OF_MEMORY in whole:
            raise MemoryError
        if RAISING in whole or (self._first and RAISING_FIRST in whole):
            raise PanicException("index out of bounds")
        return self._right.encode(texts)


class PoisonedEncoder(Encoder):
    """With two engines that don't die of the same documents."""

    @property
    def fallback(self) -> Encoder:  # type: ignore[override]
        return Encoder(PoisonedEngine(first=False), self._reference, eot_first=self._eot_first, seed=0)


class PoisonedSpec(WorkerSpec):
    """A worker whose engines can be poisoned."""

    __slots__ = ()

    def make_encoder(self) -> Encoder:
        return PoisonedEncoder(
            PoisonedEngine(first=True), TiktokenEngine(), eot_first=self.shard_format.layout.eot_first, seed=self.seed
        )


def poisoned(spec: WorkerSpec) -> PoisonedSpec:
    """The same spec for such workers."""
    return PoisonedSpec(*[getattr(spec, field.name) for field in fields(spec)])
