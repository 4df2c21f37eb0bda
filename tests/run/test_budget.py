"""The memory, divided before the start."""

from __future__ import annotations

import pytest

from fineweb_shards.errors import UsageError
from fineweb_shards.run import resources
from fineweb_shards.run.resources import PARENT_BYTES, WORKER_BYTES, plan_budget
from fineweb_shards.vocabulary import CutRule, Vocabulary

MIB = 2**20


def test_budget_holds_what_it_promises() -> None:
    """Parent, workers and the window with its copies fit into the memory."""
    for memory in (600 * MIB, 1024 * MIB, 4096 * MIB):
        found = plan_budget(2, memory, 4 * MIB)
        used = PARENT_BYTES + found.workers * WORKER_BYTES + 4 * found.window_bytes
        assert used <= memory
        assert found.window_bytes >= 8 * MIB


def test_a_small_budget_means_fewer_workers() -> None:
    """Eight workers don't fit into a gigabyte."""
    assert plan_budget(8, 1024 * MIB, 4 * MIB).workers == 3


def test_too_small_a_budget_is_told() -> None:
    """With what one worker needs, and how to get there."""
    with pytest.raises(UsageError, match=r"104\.9 MB is too small"):
        plan_budget(1, 100 * MIB, 4 * MIB)


@pytest.mark.parametrize(("reference", "room"), [("tiktoken", 256 * MIB), ("tokenizers", 1024 * MIB)])
@pytest.mark.parametrize("rule", ["words", None])
def test_there_is_room_for_a_long_document_that_is_not_cut(reference: str, room: int, rule: CutRule | None) -> None:
    """Once, besides all workers; if there is none, the run is refused before it starts."""
    vocabulary = Vocabulary("made-up", "", 50_000, 49_999, "", reference, rule)
    least = PARENT_BYTES + WORKER_BYTES + 32 * MIB + room
    assert plan_budget(4, least, 4 * MIB, vocabulary).workers == 1
    found = plan_budget(4, 4096 * MIB, 4 * MIB, vocabulary)
    assert found.workers == 4
    assert PARENT_BYTES + room + 4 * WORKER_BYTES + 4 * found.window_bytes <= 4096 * MIB
    with pytest.raises(UsageError, match="one worker needs"):
        plan_budget(4, least - 1, 4 * MIB, vocabulary)


def test_a_worker_with_more_ids_needs_more() -> None:
    """A kilobyte for each id beyond GPT-2's."""
    large = Vocabulary("made-up", "", 250_257, 250_000, cut_rule="gpt2")
    memory = PARENT_BYTES + 32 * MIB + 4 * WORKER_BYTES
    assert plan_budget(4, memory, 4 * MIB).workers == 4
    assert plan_budget(4, memory, 4 * MIB, large).workers == 2


def test_default_budget_is_a_quarter_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 4 GiB, or 320 MiB for each of many cores."""
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 8 * 1024 * MIB)
    assert plan_budget(1, None, 4 * MIB).memory_bytes == 2 * 1024 * MIB
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 64 * 1024 * MIB)
    assert plan_budget(1, None, 4 * MIB).memory_bytes == 4 * 1024 * MIB
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 512 * 1024 * MIB)
    monkeypatch.setattr(resources, "usable_cores", lambda: 64)
    assert plan_budget(None, None, 4 * MIB).memory_bytes == 64 * 320 * MIB


def test_a_machine_with_many_cores_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory enough there is a worker for each core, and none has to wait for the window."""
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 128 * 1024 * MIB)
    monkeypatch.setattr(resources, "usable_cores", lambda: 64)
    found = plan_budget(None, None, 4 * MIB)
    assert found.workers == 64
    assert found.window_bytes >= 3 * 64 * 4 * MIB


def test_a_worker_that_uploads_needs_more() -> None:
    """What is on its way to a bucket is in its memory, beside everything else."""
    memory = (PARENT_BYTES + 2 * WORKER_BYTES) + 2 * 4 * 4 * MIB
    assert plan_budget(2, memory, 4 * MIB).workers == 2
    assert plan_budget(2, memory, 4 * MIB, upload_bytes=64 * MIB).workers == 1
    assert plan_budget(2, memory + 2 * 64 * MIB, 4 * MIB, upload_bytes=64 * MIB).workers == 2
