"""Shuffles of little text with many records in each pass, and builds of them that are interrupted in one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from fineweb_shards.output.manifest import Manifest, load_manifest
from fineweb_shards.run import shuffle
from fineweb_shards.run.stream import Running
from fineweb_shards.writing import piles

PILES = 3


@contextlib.contextmanager
def small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "choose_count", lambda *_: PILES)
        patch.setattr(piles, "_TOKENS_PER_PILE", 300)
        yield


@contextlib.contextmanager
def interrupted_in(pass_number: int) -> Iterator[None]:
    """A build in this process is interrupted, once, when it has recorded something in that pass."""
    add_totals, stopped = Running.add_totals, False

    def stop(self: Any, manifest: Manifest) -> Manifest:
        nonlocal stopped
        saved = load_manifest(self.job.folder)
        if saved and not stopped and saved.pass_number == pass_number:
            stopped = (saved.piled_tokens, saved.tokens)[pass_number - 1] > 0
            if stopped:
                raise KeyboardInterrupt
        return add_totals(self, manifest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Running, "add_totals", stop)
        yield
