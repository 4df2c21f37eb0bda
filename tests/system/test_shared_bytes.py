"""Bytes that the processes of a run share, and how a worker gets them with its order."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys

import pytest

from fineweb_shards.executors.local.worker import receive_order, send_order
from fineweb_shards.executors.messages import WorkOrder
from fineweb_shards.system.shared_memory import SharedBytes
from fineweb_shards.types import Batch

DATA = bytes(range(256)) * 20_000  # many times what a pipe holds
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such files")


def order_of(shared: SharedBytes) -> WorkOrder:
    return WorkOrder(Batch(0, 0, len(DATA), len(DATA), payload=shared))


def pass_on(order: WorkOrder) -> WorkOrder:
    """What arrives at the other end of a pipe."""
    here, there = multiprocessing.Pipe()
    with here, there:
        send_order(here, order, os.getpid())
        received = receive_order(there)
    assert isinstance(received, WorkOrder)
    return received


@linux_only
@pytest.mark.parametrize("data", [b"", b"a", DATA])
def test_what_arrives_is_what_was_sent(data: bytes) -> None:
    """As often as it is sent, and as often as it is read; nobody needs the object it was sent from."""
    shared = SharedBytes(memoryview(bytearray(data)))
    received = [pass_on(order_of(shared)).batch.payload for _ in range(2)]
    del shared
    assert [payload.read() for payload in [*received, *received] if payload] == [data] * 4


@linux_only
def test_only_a_descriptor_goes_through_the_pipe() -> None:
    """So an order with megabytes of text does not make the parent wait for the worker to receive them."""
    here, there = multiprocessing.Pipe()
    with here, there:
        send_order(here, order_of(SharedBytes(DATA)), os.getpid())  # would block: nobody receives
        assert receive_order(there)


@linux_only
def test_memory_is_given_back() -> None:
    """What is not used any more leaves no descriptor open, on neither side."""
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        assert pass_on(order_of(SharedBytes(DATA)))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("failing", ["memfd_create", "write"])
def test_bytes_that_can_not_be_shared_are_sent(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """Where the system has no such file, or no room in it, the order carries the bytes themselves."""

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail, raising=False)
    shared = SharedBytes(b"some text")
    monkeypatch.undo()
    payload = pass_on(order_of(shared)).batch.payload
    assert payload is not None
    assert payload.read() == b"some text"
