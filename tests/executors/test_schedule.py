"""The schedule alone, without a process: order, window, retries, quarantine, whatever becomes of workers."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineweb_shards.errors import BadFileError, WorkerError
from fineweb_shards.executors import schedule as schedule_module
from fineweb_shards.executors import task as task_module
from fineweb_shards.executors.messages import WorkOrder, WriteOrder
from fineweb_shards.executors.schedule import Schedule
from fineweb_shards.executors.task import MAXIMUM_DEATHS, MAXIMUM_KILLS, MAXIMUM_LOSSES, Death, DeathKind, Task
from fineweb_shards.stream.section import NO_POSITIONS
from fineweb_shards.types import Batch, Counts, Cursor, EncodedBlock, HeldTokens, Placement, Quarantined

CRASH = Death(DeathKind.CRASHED, "was killed by signal 11")
KILL = Death(DeathKind.KILLED, "was killed by signal 9")
OUT_OF_MEMORY = Death(DeathKind.OUT_OF_MEMORY, "ran out of memory")
STUCK = Death(DeathKind.STUCK, "did nothing for 10 min and was killed")
TOKENS_OF_A_DOCUMENT = 4


def batch_at(position: int, size: int = 10, file: int = 0, part: int = 0) -> Batch:
    return Batch(file, position, position + 1, size, part=part)


def block_of(
    position: int, number: int = 0, documents: tuple[int, ...] = (), file: int = 0, part: int = 0
) -> EncodedBlock:
    """Block `number` of a batch. A document is a number, and so are its tokens."""
    tokens = np.repeat(np.array(documents, np.uint16), TOKENS_OF_A_DOCUMENT)
    return EncodedBlock(Cursor(file, position, number), None, tokens, NO_POSITIONS, part=part)


def document_of(position: int, document: int, file: int = 0, part: int = 0) -> Quarantined:
    return Quarantined(file, position, document, None, None, 1, str(document), str(document), part=part)


def leave_out(task: Task, death: Death) -> EncodedBlock:
    """What stands for a batch that can't be read: its first block that is missing says so."""
    start = Cursor(task.batch.file, task.batch.position, task.received)
    return EncodedBlock(
        start,
        None,
        np.empty(0, np.uint16),
        NO_POSITIONS,
        counts=Counts(bad_parts=1),
        problems=("gone",),
        part=task.batch.part,
    )


def schedule_of(batches: int = 0, window: int = 1000, queued: int = 2) -> Schedule[str]:
    found: Schedule[str] = Schedule(window, queued, leave_out)
    for position in range(batches):
        found.add(batch_at(position))
    return found


def places(blocks: Iterator[EncodedBlock]) -> list[int]:
    return [block.start.position for block in blocks if block.start is not None]


def narrow_down(schedule: Schedule[str]) -> WorkOrder:
    """Let the first batch end workers until it is tried document by document; "z" has it then."""
    for number in range(MAXIMUM_DEATHS):
        order = schedule.give_next(f"dead {number}")
        assert order is not None
        assert not order.one_by_one
        assert not schedule.note_death(f"dead {number}", CRASH)
    order = schedule.give_next("z")
    assert order is not None
    assert order.one_by_one
    return order


def end_over(schedule: Schedule[str], document: int, death: Death, *, position: int = 0) -> bool:
    """Let "z" end over a document that it has announced."""
    schedule.announce("z", document_of(position, document))
    return schedule.note_death("z", death)


def test_it_is_pure() -> None:
    """No processes, no threads, no clock, no files: it can be shared by executors of any kind."""
    allowed = {"__future__", "collections", "collections.abc", "concurrent.futures", "dataclasses", "typing"}
    allowed |= {"enum"}
    for module in (schedule_module, task_module):
        tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
        ours = {name for name in names if str(name).startswith("fineweb_shards")}
        assert names - ours <= allowed
        assert not any("local" in str(name) or "system" in str(name) for name in ours)


def test_a_batch_larger_than_the_window_waits_for_nobody() -> None:
    """It is given out when all before it were output, to a worker that has nothing else and gets nothing else, because
    that worker waits for its tokens to be written."""
    schedule = schedule_of(1, window=100, queued=8)
    assert not getattr(schedule.give_next("a"), "is_large", True)
    schedule.add(batch_at(1, size=101))
    schedule.add(batch_at(2))
    schedule.receive_block("a", 0, block_of(0))
    schedule.finish("a")
    assert schedule.give_next("b") is None
    assert places(schedule.take_output()) == [0]
    order = schedule.give_next("b")
    assert order is not None
    assert (order.batch.position, order.is_large) == (1, True)
    assert schedule.least_busy(["b"]) is None
    assert schedule.give_next("b") is None
    order = schedule.give_next("a")
    assert order is not None
    assert order.batch.position == 2


def test_batches_come_out_in_order() -> None:
    """Given out in order, finished in any, told in order; each block once."""
    schedule = schedule_of(3)
    for worker in "abc":
        order = schedule.give_next(worker)
        assert order is not None
        assert order.batch.position == "abc".index(worker)
    for worker in "cb":
        schedule.receive_block(worker, 0, block_of("abc".index(worker)))
        schedule.finish(worker)
        assert schedule.output_lane is None
    schedule.receive_block("a", 0, block_of(0))
    assert places(schedule.take_output()) == [0]
    assert schedule.output_lane is None  # "a" may have more
    schedule.finish("a")
    assert [places(schedule.take_output()) for _ in range(3)] == [[], [1], [2]]
    assert schedule.was_output(0)


def test_a_new_batch_begins_only_while_the_window_has_room() -> None:
    """One batch is always allowed, however large it is."""
    schedule = schedule_of(window=25)
    assert schedule.needs_batch()
    for position in range(3):
        assert schedule.needs_batch()
        schedule.add(batch_at(position))
        assert not schedule.needs_batch()  # first somebody has to take this one
        assert schedule.give_next("a") is not None
    assert schedule.in_flight_bytes == 30
    assert not schedule.needs_batch()
    schedule.finish("a")
    assert list(schedule.take_output()) == []
    assert schedule.needs_batch()


def test_who_has_least_gets_the_next_batch() -> None:
    """And nobody more than may wait for them."""
    schedule = schedule_of(4)
    chosen = []
    while (worker := schedule.least_busy("ab")) is not None:
        chosen.append(worker)
        assert schedule.give_next(worker) is not None
    assert chosen == ["a", "b", "a", "b"]
    assert schedule.least_busy([]) is None
    assert schedule.has_work("a")
    assert not schedule.has_work("c")


def test_the_batches_of_a_worker_that_was_sent_away_are_done_by_others() -> None:
    """Before newer ones, in order, and without the blocks that have arrived; nobody is blamed."""
    schedule = schedule_of(4)
    for worker in "aabb":
        schedule.give_next(worker)
    schedule.receive_block("a", 0, block_of(0))
    for _ in range(10):
        schedule.remove_worker("b")
        schedule.remove_worker("a")
        assert not schedule.needs_batch()
        orders = [schedule.give_next(worker) for worker in "bbaa"]
        assert [order.batch.position for order in orders if order] == [0, 1, 2, 3]
        assert [order.first_block for order in orders if order] == [1, 0, 0, 0]
        assert not any(order.one_by_one for order in orders if order)


def kept(batch: int, block: int = 0, length: int = 4, lane: int = 0) -> EncodedBlock:
    """Block `block` of a batch, whose tokens stay with the worker."""
    return EncodedBlock(Cursor(0, batch, block), None, HeldTokens(batch, block, length), NO_POSITIONS, part=lane)


def placements(*names: str) -> list[Placement]:
    return [Placement(name, np.zeros(1, np.int64), np.array([[0, 1]])) for name in names]


def kept_of(block: EncodedBlock) -> HeldTokens:
    assert isinstance(block.tokens, HeldTokens)
    return block.tokens


def test_a_large_batch_that_was_output_and_lost_is_made_again_at_once() -> None:
    """Whoever takes the output may wait for its tokens to be written, before anything after it is output."""
    schedule = schedule_of(window=10)
    schedule.add(batch_at(0, 20))
    order = schedule.give_next("a")
    assert order is not None
    assert order.is_large
    block = replace(block_of(0, documents=(1,)), tokens=HeldTokens(0, 0, TOKENS_OF_A_DOCUMENT))
    schedule.receive_block("a", 0, block)
    schedule.finish("a")
    (block,) = schedule.take_output()
    schedule.place(kept_of(block), placements("x"))
    schedule.add(batch_at(1))
    assert schedule.give_next("b") is not None
    schedule.remove_worker("a")
    again = schedule.give_next("c")
    assert again is not None
    assert again.number == 0


def test_blocks_that_are_held_back_do_not_stop_the_stream() -> None:
    """If all blocks were output and one has no place yet, the next batch may begin though the window is full: it may be
    what is waited for. A block that is only not written yet is waited for."""
    schedule = schedule_of(1, window=5)
    schedule.give_next("a")
    schedule.receive_block("a", 0, kept(0))
    schedule.finish("a")
    assert not schedule.needs_batch()
    (block,) = schedule.take_output()
    assert schedule.needs_batch()
    schedule.place(kept_of(block), placements("x"))
    assert not schedule.needs_batch()


def lane_schedule(*lanes: int, window: int = 1000, queued: int = 2) -> Schedule[str]:
    """A batch for each of these lanes."""
    schedule: Schedule[str] = Schedule(window, queued, leave_out)
    for position, lane in enumerate(lanes):
        schedule.add(batch_at(position, part=lane), lane)
    return schedule


def test_beyond_the_window_only_the_awaited_lane_is_read() -> None:
    """A mix holds blocks of other lanes back, perhaps for the length of a long document: of those lanes nothing more is
    read. Nor is anything of the awaited one, while what has its place is not written: the disk may be slow."""
    schedule = lane_schedule(0, 1, window=15)
    for _ in range(2):
        schedule.give_next("a")
    for lane in (0, 1):
        schedule.receive_block("a", 0, kept(lane, lane=lane))
        schedule.finish("a")
        assert not schedule.needs_batch(1, awaited=False)
    _, block = [block for _ in range(2) for block in schedule.take_output()]
    assert not schedule.needs_batch(0, awaited=False)
    assert schedule.needs_batch(1, awaited=True)
    schedule.place(kept_of(block), placements("x"), last=False)
    assert schedule.needs_batch(1, awaited=True)  # the rest of it may wait for the next batch
    schedule.place(kept_of(block), placements("y"))
    assert not schedule.needs_batch(1, awaited=True)
    for _ in range(2):
        schedule.note_written("a", 1, 0)
    schedule.note_dropped("a", 1, 0)
    schedule.add(batch_at(2, size=20, part=1), 1)
    assert schedule.give_next("a") is not None
    assert not schedule.needs_batch(1, awaited=True)  # it is under way


def test_a_worker_that_holds_a_part_of_a_block_is_idle() -> None:
    """It may wait for another lane's network for as long as an outage lasts: the watchdog must not end it."""
    schedule = lane_schedule(0)
    schedule.give_next("a")
    schedule.receive_block("a", 0, kept(0))
    schedule.finish("a")
    (block,) = schedule.take_output()
    order, worker, (written,) = schedule.place(kept_of(block), placements("x"), last=False)
    assert (worker, order.last, order.steps, schedule.has_work("a")) == ("a", False, 1, True)
    schedule.note_written("a", 0, 0)
    assert written.done()
    assert not schedule.has_work("a")
    assert schedule.keeps_any("a")
    assert not schedule.note_death("a", KILL)
    schedule.give_next("b")
    again = schedule.receive_block("b", 0, kept(0))
    assert again is None  # what is written is not written again
    schedule.finish("b")
    assert not schedule.has_work("b")
    order, worker, _ = schedule.place(kept_of(block), placements("y"))
    assert (worker, [one.path for one in order.placements]) == ("b", ["y"])
    schedule.note_written("b", 0, 0)
    schedule.note_dropped("b", 0, 0)
    assert not schedule.keeps_any("b")
    assert schedule.in_flight_bytes == 0


def test_a_batch_that_waits_for_its_turn_holds_up_no_other_lane() -> None:
    """The one that is tried alone waits until those before it were output. Meanwhile tokens of another lane may be
    lost, and be waited for by whoever takes the output: they are made again first."""
    schedule = lane_schedule(1, 1, 0, queued=4)
    for worker in "aza":
        schedule.give_next(worker)
    schedule.receive_block("a", 0, kept(0, lane=1))
    schedule.finish("a")
    schedule.receive_block("a", 0, kept(2))
    schedule.finish("a")
    for _ in range(MAXIMUM_DEATHS):
        assert not schedule.note_death("z", OUT_OF_MEMORY)
        schedule.give_next("z")
    assert schedule._next_output().lane == 1  # type: ignore[union-attr]
    schedule._tasks[1], lane = deque(), schedule._tasks[1]
    (block,) = schedule.take_output()
    schedule._tasks[1] = lane
    _, _, (written,) = schedule.place(kept_of(block), placements("x"))
    assert end_over(schedule, 7, OUT_OF_MEMORY, position=1)  # all start over, that one alone
    given = [order.batch.position for _ in range(3) if (order := schedule.give_next("b"))]
    assert given == [0, 2]
    schedule.receive_block("b", 0, kept(0, lane=1))
    schedule.finish("b")
    assert schedule.receive_block("b", 0, kept(2)) is not None
    schedule.finish("b")
    schedule.note_written("b", 2, 0)
    assert written.done()
    list(schedule.take_output())
    order = schedule.give_next("z")
    assert order is not None
    assert order.batch.position == 1


def test_a_lane_that_can_not_be_read_leaves_the_others_alone() -> None:
    """Its batches after the one with the error are dropped, whoever has them; what was output of it is still placed,
    and the other lanes go on."""
    schedule = lane_schedule(0, 0, 0, 1, queued=4)
    for _ in range(4):
        schedule.give_next("a")
    schedule.receive_block("a", 0, kept(0))
    schedule.finish("a")
    schedule.finish("a", BadFileError("a.parquet: broken."))
    schedule.receive_block("a", 0, kept(2))
    (block,) = schedule.take_output()
    assert schedule.output_lane == 0
    with pytest.raises(BadFileError, match="broken"):
        list(schedule.take_output())
    schedule.abandon_lane(0)
    assert (schedule.was_output(0), schedule.lanes[0].waiting_bytes, schedule.in_flight_bytes) == (True, 0, 20)
    assert schedule.receive_block("a", 1, kept(2, 1)) is None  # it does not know yet
    schedule.finish("a")
    assert schedule.place(kept_of(block), placements("x"))[1] == "a"
    schedule.note_written("a", 0, 0)
    schedule.note_dropped("a", 0, 0)
    schedule.receive_block("a", 0, kept(3, lane=1))
    schedule.finish("a")
    assert schedule.output_lane == 1
    (block,) = schedule.take_output()
    schedule.place(kept_of(block), [])
    schedule.note_dropped("a", 3, 0)
    assert schedule.in_flight_bytes == 0
    assert not schedule.keeps_any("a")


def test_an_abandoned_mix_leaves_workers_free() -> None:
    """Of blocks that were held back, in whole or in part, only what has its place is written."""
    schedule = lane_schedule(0, 1)
    for _ in range(2):
        schedule.give_next("a")
    for lane in (0, 1):
        schedule.receive_block("a", 0, kept(lane, lane=lane))
        schedule.finish("a")
    first, _ = [block for _ in range(2) for block in schedule.take_output()]
    schedule.place(kept_of(first), placements("x"), last=False)
    schedule.abandon_output()
    assert (schedule.in_flight_bytes, schedule.has_work("a")) == (10, True)
    schedule.remove_worker("a")
    order = schedule.give_next("b")
    assert order is not None
    assert order.batch.position == 0
    write = schedule.receive_block("b", 0, kept(0))
    assert write is not None
    assert [one.path for one in write.placements] == ["x"]
    schedule.finish("b")
    schedule.note_written("b", 0, 0)
    assert schedule.in_flight_bytes == 0
    assert not schedule.keeps_any("b")


def test_a_batch_is_in_flight_until_it_is_written() -> None:
    """Whoever keeps its tokens is not free; afterwards it is."""
    schedule = schedule_of(1)
    schedule.give_next("a")
    assert schedule.receive_block("a", 0, kept(0)) is None
    schedule.finish("a")
    assert not schedule.has_work("a")
    assert schedule.keeps_any("a")
    (block,) = schedule.take_output()
    assert schedule.was_output(0)
    assert schedule.in_flight_bytes == 10
    order, worker, _ = schedule.place(kept_of(block), placements("x", "y"))
    assert (worker, [one.path for one in order.placements]) == ("a", ["x", "y"])
    assert schedule.has_work("a")
    schedule.note_written("a", 0, 0)
    schedule.note_written("a", 0, 0)
    assert schedule.in_flight_bytes == 10
    schedule.note_dropped("a", 0, 0)
    assert schedule.in_flight_bytes == 0
    assert not schedule.keeps_any("a")


@pytest.mark.promise("a worker's death with unwritten tokens costs only time")
def test_what_was_written_is_not_written_again() -> None:
    """A worker that dies between two placements of a block: the next one writes the second only, because the file of
    the first may have its name by now."""
    schedule = schedule_of(1)
    schedule.give_next("a")
    for number in range(3):
        schedule.receive_block("a", number, kept(0, number))
    schedule.finish("a")
    for block in list(schedule.take_output()):
        schedule.place(kept_of(block), placements("x", "y"))
    schedule.note_written("a", 0, 0)
    schedule.note_written("a", 0, 0)
    schedule.note_dropped("a", 0, 0)
    schedule.note_written("a", 0, 1)
    assert not schedule.note_death("a", KILL)
    order = schedule.give_next("b")
    assert order is not None
    assert order.first_block == 1
    write = schedule.receive_block("b", 1, kept(0, 1))
    assert write is not None
    assert [one.path for one in write.placements] == ["y"]
    write = schedule.receive_block("b", 2, kept(0, 2))
    assert write is not None
    assert [one.path for one in write.placements] == ["x", "y"]


def test_a_batch_that_gives_other_tokens_ends_the_run() -> None:
    """When it is encoded again after its length was made use of."""
    schedule = schedule_of(1)
    schedule.give_next("a")
    schedule.receive_block("a", 0, kept(0))
    (block,) = schedule.take_output()
    schedule.place(kept_of(block), placements("x"))
    schedule.remove_worker("a")
    schedule.give_next("b")
    with pytest.raises(WorkerError, match="gave 5 tokens when it was encoded again, but 4 before"):
        schedule.receive_block("b", 0, kept(0, length=5))


def test_workers_that_keep_dying_with_tokens_end_the_run() -> None:
    """Whatever they die of; a batch that nobody can write is not tried for ever."""
    schedule = schedule_of(1)
    for number in range(MAXIMUM_LOSSES):
        schedule.give_next("a")
        schedule.receive_block("a", 0, kept(0))
        schedule.finish("a")
        if number < MAXIMUM_LOSSES - 1:
            assert not schedule.note_death("a", KILL)
    with pytest.raises(WorkerError, match=f"{MAXIMUM_LOSSES} workers died before they could write"):
        schedule.note_death("a", KILL)


def test_what_a_worker_died_on_gets_one_of_its_own() -> None:
    """What else that worker has would be lost with it each time: tokens that it is told to write, and batches."""
    schedule = schedule_of(3)
    schedule.give_next("a")
    schedule.give_next("b")
    assert not schedule.note_death("b", CRASH)
    assert schedule.give_next("a") is None
    schedule.receive_block("a", 0, kept(0))
    schedule.finish("a")
    (block,) = schedule.take_output()
    schedule.place(kept_of(block), placements("x"))
    assert schedule.give_next("a") is None
    schedule.note_written("a", 0, 0)
    schedule.note_dropped("a", 0, 0)
    suspect = schedule.give_next("a")
    assert suspect is not None
    assert suspect.batch.position == 1
    assert schedule.give_next("a") is None
    assert schedule.least_busy("a") is None
    assert schedule.give_next("b") is not None
    schedule.finish("a")
    assert schedule.least_busy("ab") == "a"


def lose_after_output(schedule: Schedule[str], *, blocks: int = 1, output: int = 1) -> None:
    """So many blocks of the first batch were encoded by a worker that is gone, and so many output."""
    schedule.give_next("a")
    for number in range(blocks):
        schedule.receive_block("a", number, kept(0, number))
    stream = schedule.take_output()
    for _ in range(output):
        schedule.place(kept_of(next(stream)), placements("x"))
    if blocks == output:
        schedule.finish("a")
        list(stream)
    schedule.remove_worker("a")


def test_a_batch_that_fails_the_second_time_ends_the_run_at_once() -> None:
    """Its tokens are waited for, so nobody would come to ask for its error."""
    schedule = schedule_of(1)
    lose_after_output(schedule)
    schedule.give_next("b")
    with pytest.raises(BadFileError, match="gone"):
        schedule.finish("b", BadFileError("a.parquet is gone."))


def test_lost_blocks_that_nobody_has_seen_give_way_to_the_error() -> None:
    """What can't be made again is not output."""
    schedule = schedule_of(1)
    lose_after_output(schedule, blocks=3, output=0)
    schedule.give_next("b")
    schedule.receive_block("b", 0, kept(0))
    schedule.finish("b", BadFileError("a.parquet is gone."))
    stream = schedule.take_output()
    schedule.place(kept_of(next(stream)), placements("x"))
    with pytest.raises(BadFileError, match="gone"):
        next(stream)


def test_a_batch_that_cannot_be_read_the_second_time_ends_the_run_at_once() -> None:
    """Three deaths, and three more, after its tokens were counted on: nothing may stand for it."""
    schedule: Schedule[str] = Schedule(1000, 2, lambda task, death: WorkerError("It can't be read."))
    schedule.add(batch_at(0))
    lose_after_output(schedule)
    narrow_down(schedule)
    for _ in range(MAXIMUM_DEATHS - 1):
        assert not schedule.note_death("z", CRASH)
        schedule.give_next("z")
    with pytest.raises(WorkerError, match="can't be read"):
        schedule.note_death("z", CRASH)


def test_a_document_that_was_output_cannot_go_to_quarantine() -> None:
    """It was encoded before, and others were cut behind it: the run ends, and a resume decides anew."""
    schedule = schedule_of(2)
    lose_after_output(schedule)
    narrow_down(schedule)
    schedule.give_next("b")
    schedule.receive_block("b", 0, kept(1))
    stream = schedule.take_output()
    schedule.place(kept_of(next(stream)), placements("x"))
    assert not end_over(schedule, 7, CRASH)
    schedule.give_next("z")
    with pytest.raises(WorkerError, match="encoded before"):
        end_over(schedule, 7, CRASH)


def test_an_abandoned_stream_leaves_workers_free() -> None:
    """What has no place is nobody's; what has one is still written, by somebody else if need be."""
    schedule = schedule_of(3)
    for worker in "aab":
        schedule.give_next(worker)
    schedule.receive_block("a", 0, kept(0))
    schedule.receive_block("a", 1, kept(0, 1))
    schedule.receive_block("b", 0, kept(2))
    stream = schedule.take_output()
    schedule.place(kept_of(next(stream)), placements("x"))
    schedule.abandon_output()
    assert schedule.was_output(0)
    schedule.finish("b")
    assert not schedule.keeps_any("b")
    assert schedule.in_flight_bytes == 10
    schedule.remove_worker("a")
    order = schedule.give_next("b")
    assert order is not None
    assert (order.batch.position, order.first_block) == (0, 0)
    assert schedule.give_next("b") is None
    write = schedule.receive_block("b", 0, kept(0))
    assert write is not None
    assert schedule.receive_block("b", 1, kept(0, 1)) is None
    schedule.finish("b")
    assert schedule.has_work("b")
    schedule.note_written("b", 0, 0)
    schedule.note_dropped("b", 0, 0)
    assert not schedule.keeps_any("b")
    assert schedule.in_flight_bytes == 0


def test_an_error_is_raised_in_its_turn() -> None:
    """What stands in front of it comes out first."""
    schedule = schedule_of(2)
    for worker in "ab":
        schedule.give_next(worker)
    schedule.finish("b", BadFileError("b.parquet: broken."))
    assert schedule.output_lane is None
    schedule.receive_block("a", 0, block_of(0))
    schedule.finish("a")
    assert places(schedule.take_output()) == [0]
    with pytest.raises(BadFileError, match="broken"):
        list(schedule.take_output())
    assert schedule.was_output(0)


@pytest.mark.promise("poison is isolated, quarantined and counted")
@pytest.mark.parametrize("death", [CRASH, STUCK])
def test_a_document_that_ends_both_engines_goes_to_quarantine(death: Death) -> None:
    """What comes behind it starts over, without it, and so does nothing in front of it."""
    schedule = schedule_of(4)
    for worker in "abc":
        schedule.give_next(worker)
    schedule.receive_block("a", 0, block_of(0))
    schedule.finish("a")
    schedule.receive_block("c", 0, block_of(2))
    schedule.finish("c")
    assert not schedule.note_death("b", CRASH)
    for _ in range(MAXIMUM_DEATHS - 1):
        schedule.give_next("z")
        assert not schedule.note_death("z", CRASH)
    schedule.give_next("z")
    assert not end_over(schedule, 77, death, position=1)
    order = schedule.give_next("z")
    assert order is not None
    assert order.use_fallback_for == {"77"}
    assert end_over(schedule, 77, death, position=1)
    assert places(schedule.take_output()) == [0]
    orders = [schedule.give_next(worker) for worker in ("new", "b", "b", "b")]
    assert [order and (order.batch.position, order.first_block) for order in orders] == [
        (1, 0), (2, 0), (3, 0), None,
    ]  # fmt: skip
    assert all(order.skip_digests == {"77"} for order in orders if order)
    schedule.receive_block("new", 0, block_of(1))
    (block,) = schedule.take_output()
    (lost,) = block.quarantined
    assert lost.begins == "77"
    assert death.description in lost.cause


def test_a_document_whose_block_has_come_is_not_blamed() -> None:
    """The worker died on what comes next."""
    schedule = schedule_of(1)
    narrow_down(schedule)
    schedule.announce("z", document_of(0, 7))
    schedule.receive_block("z", 0, block_of(0))
    assert not schedule.note_death("z", CRASH)
    order = schedule.give_next("z")
    assert order is not None
    assert (order.first_block, order.use_fallback_for) == (1, frozenset())


def test_documents_of_earlier_runs_stay_in_quarantine() -> None:
    """In their file only."""
    schedule: Schedule[str] = Schedule(1000, 2, leave_out, [document_of(0, 5, file=1)])
    for file in (0, 1):
        schedule.add(batch_at(0, file=file))
    orders = [schedule.give_next("a") for _ in range(2)]
    assert [order and set(order.skip_digests) for order in orders] == [set(), {"5"}]


def test_too_many_documents_in_quarantine_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is not the documents."""
    monkeypatch.setattr(schedule_module, "MAXIMUM_QUARANTINED", 1)
    schedule = schedule_of(1)
    narrow_down(schedule)
    end_over(schedule, 1, CRASH)
    schedule.give_next("z")
    assert end_over(schedule, 1, CRASH)
    schedule.give_next("z")
    assert not end_over(schedule, 2, CRASH)
    schedule.give_next("z")
    with pytest.raises(WorkerError, match="More than 1 documents crashed their workers"):
        end_over(schedule, 2, CRASH)


@pytest.mark.promise("poison is isolated, quarantined and counted")
def test_what_ran_out_of_memory_is_tried_alone() -> None:
    """In its turn, with nobody else at work; only what happens then counts."""
    schedule = schedule_of(3)
    schedule.give_next("a")
    order = schedule.give_next("z")
    for _ in range(MAXIMUM_DEATHS):
        assert not schedule.note_death("z", OUT_OF_MEMORY)
        order = schedule.give_next("z")
    assert order is not None
    assert (order.batch.position, order.one_by_one, schedule.tries_alone) == (1, True, False)
    schedule.give_next("b")
    assert end_over(schedule, 7, OUT_OF_MEMORY, position=1)
    assert schedule.tries_alone
    assert not any(map(schedule.has_work, "abz"))
    first = schedule.give_next("a")
    assert first is not None
    assert first.batch.position == 0
    assert schedule.give_next("b") is None
    schedule.finish("a")
    assert schedule.give_next("z") is None  # first what stands in front of it has to come out
    list(schedule.take_output())
    alone = schedule.give_next("z")
    assert alone is not None
    assert alone.batch.position == 1
    assert schedule.give_next("b") is None
    assert not schedule.needs_batch()
    schedule.finish("z")
    assert not schedule.tries_alone
    assert schedule.give_next("b") is not None


@pytest.mark.promise("a worker's death never hangs the run", "poison is isolated, quarantined and counted")
def test_kills_from_outside_never_cost_a_document() -> None:
    """A block in between, and they are forgotten; very many without any end the run."""
    schedule = schedule_of(1)
    narrow_down(schedule)
    for _ in range(MAXIMUM_KILLS - 1):
        assert not end_over(schedule, 7, KILL)
        order = schedule.give_next("z")
        assert order is not None
        assert not order.use_fallback_for
    schedule.receive_block("z", 0, block_of(0))
    for _ in range(MAXIMUM_KILLS - 1):
        assert not end_over(schedule, 7, KILL)
        schedule.give_next("z")
    with pytest.raises(WorkerError, match=f"{MAXIMUM_KILLS} workers were killed from outside on one batch"):
        end_over(schedule, 7, KILL)


@pytest.mark.parametrize("error", [None, WorkerError("It can't be read.")])
def test_a_batch_that_cannot_be_read_is_given_up(error: WorkerError | None) -> None:
    """Three deaths, and three more with no document announced; the others go on."""
    schedule: Schedule[str] = Schedule(1000, 2, lambda task, death: error or leave_out(task, death))
    schedule.add(batch_at(0))
    schedule.add(batch_at(1))
    narrow_down(schedule)
    for number in range(MAXIMUM_DEATHS):
        assert schedule.output_lane is None
        assert not schedule.note_death("z", CRASH)
        order = schedule.give_next("z")
        assert order is not None
        assert order.batch.position == int(number == MAXIMUM_DEATHS - 1)
    if error is None:
        (block,) = schedule.take_output()
        assert block.counts.bad_parts == 1
    else:
        with pytest.raises(WorkerError, match="can't be read"):
            list(schedule.take_output())
    schedule.receive_block("z", 0, block_of(1))
    assert places(schedule.take_output()) == [1]


@dataclass(frozen=True)
class Text:
    """What is in a batch: chunks of documents."""

    batch: Batch
    chunks: tuple[tuple[int, ...], ...]


@dataclass
class Man:
    """A worker: what it has to say about its batches, the tokens that it keeps, what it has to write."""

    batches: deque[tuple[WorkOrder, Iterator[object]]] = field(default_factory=deque)
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # by batch and block
    writes: deque[WriteOrder] = field(default_factory=deque)
    unheard: deque[tuple[int, int, str | None]] = field(default_factory=deque)  # None: it dropped a block

    @property
    def is_idle(self) -> bool:
        return not (self.batches or self.writes or self.unheard)


@dataclass
class Waiting:
    """A block that was output, and how many of its tokens have their place."""

    block: EncodedBlock
    tokens: list[int]
    placed: int = 0


@dataclass
class Simulation:
    """An executor without processes. Workers do one thing at a time, when the test says so. A text's part is its lane:
    several of them are mixed, document by document, by their weights."""

    texts: list[Text]
    workers: int
    window: int
    queued: int
    deadly: frozenset[int]  # documents that end their worker, whatever the engine
    deadly_for_first: frozenset[int]  # ... with the first engine
    weights: tuple[int, ...] = (1,)  # of the lanes
    step_tokens: int = TOKENS_OF_A_DOCUMENT  # at most in one placement of a mix
    out: list[tuple[EncodedBlock, list[int]]] = field(default_factory=list)  # with tokens, as they were made
    running: dict[int, Man] = field(default_factory=dict)
    disk: dict[str, list[int]] = field(default_factory=dict)  # what was written, by the name of the placement
    wanted: dict[str, list[int]] = field(default_factory=dict)  # what should be there
    noted: set[str] = field(default_factory=set)  # the parent knows that it is there
    mixed: list[int] = field(default_factory=list)  # the lane of each document of the mix
    ended_by: WorkerError | None = None
    abandoned: bool = False
    hired: int = 0

    def __post_init__(self) -> None:
        self.schedule: Schedule[int] = Schedule(self.window, self.queued, leave_out_or_stop)
        self.largest = max((text.batch.size_bytes for text in self.texts), default=0)
        self.made: dict[tuple[int, int], list[int]] = {}  # tokens of all blocks, as they were made last
        self.lanes = range(len(self.weights))
        self.unread = [deque(text for text in self.texts if text.batch.part == lane) for lane in self.lanes]
        self.waiting: list[deque[Waiting]] = [deque() for _ in self.lanes]  # for their places in the mix
        self.taken = [0 for _ in self.lanes]

    def work(self, order: WorkOrder) -> Iterator[object]:
        """What a worker says about a batch, as encode_batch does it: documents it tries, blocks, a death."""
        (text,) = [text for text in self.texts if text.batch == order.batch]
        batch = text.batch
        for number, chunk in enumerate(text.chunks):
            if number < order.first_block:
                continue
            made = tuple(document for document in chunk if str(document) not in order.skip_digests)
            for document in made:
                if order.one_by_one or len(made) < len(chunk):
                    yield document_of(batch.position, document, batch.file, batch.part)
                spared = str(document) in order.use_fallback_for
                if document in self.deadly or (document in self.deadly_for_first and not spared):
                    yield CRASH
            yield number, block_of(batch.position, number, made, batch.file, batch.part)
        yield None

    @property
    def is_mix(self) -> bool:
        return len(self.lanes) > 1

    def was_output(self, lane: int) -> bool:
        return not self.unread[lane] and self.schedule.was_output(lane)

    def awaited(self) -> int | None:
        """The lane whose next block the mix needs; None if there is none."""
        lanes = [lane for lane in self.lanes if self.waiting[lane] or not self.was_output(lane)]
        return min(lanes, key=lambda lane: Fraction(self.taken[lane], self.weights[lane]), default=None)

    def next_lane(self) -> tuple[int, bool] | None:
        """As choose_listing does it."""
        lanes = [lane for lane in self.lanes if self.unread[lane]]
        awaited = self.awaited() if self.is_mix else 0
        if awaited in lanes and not self.schedule.lanes[awaited].waiting_bytes:
            return awaited, True

        def expected(lane: int) -> Fraction:
            waiting = sum(len(one.tokens) - one.placed for one in self.waiting[lane])
            return Fraction(self.taken[lane] + waiting + self.schedule.lanes[lane].waiting_bytes, self.weights[lane])

        return (min(lanes, key=expected), not self.is_mix) if lanes else None

    def dispatch(self) -> None:
        while len(self.running) < (1 if self.schedule.tries_alone else self.workers):
            self.running[self.hired] = Man()
            self.hired += 1
        while (worker := self.schedule.least_busy(self.running)) is not None:
            chosen = self.next_lane()
            if chosen is not None and self.schedule.needs_batch(chosen[0], awaited=chosen[1]):
                before, (lane, awaited) = self.schedule.in_flight_bytes, chosen
                assert before < self.window or not before or (self.is_mix and awaited)
                self.schedule.add(self.unread[lane].popleft().batch, lane)
                # Beyond the window there may be one of each lane that the mix has waited for.
                beyond = 1 + len(self.lanes) * self.is_mix
                assert self.schedule.in_flight_bytes <= self.window + beyond * self.largest
            order = self.schedule.give_next(worker)
            if order is None:
                return
            self.running[worker].batches.append((order, self.work(order)))

    def step(self, worker: int) -> None:
        """Let a worker say its next word about a batch."""
        man = self.running[worker]
        if not man.batches:
            return
        order, words = man.batches[0]
        message = next(words)
        if isinstance(message, Death):
            self.end(worker, message)
        elif isinstance(message, Quarantined):
            self.schedule.announce(worker, message)
        elif isinstance(message, tuple):
            self.keep(worker, order.number, *message)
        else:
            man.batches.popleft()
            self.schedule.finish(worker)

    def keep(self, worker: int, batch: int, index: int, block: EncodedBlock) -> None:
        """As Worker._keep does it: a block with a seam (here: every seventh) brings its tokens."""
        tokens = block.array.tolist()
        self.made[batch, index] = tokens
        if tokens and (batch + index) % 7:
            self.running[worker].tokens[batch, index] = tokens
            block = replace(block, tokens=HeldTokens(batch, index, len(tokens)))
        order = self.schedule.receive_block(worker, index, block)
        if order is not None:
            self.running[worker].writes.append(order)

    def write(self, worker: int) -> None:
        """Let a worker write one placement, or drop a block."""
        man = self.running[worker]
        while man.writes and not man.writes[0].steps:
            man.writes.popleft()
        if not man.writes:
            return
        order = man.writes[0]
        if order.placements:
            placement = order.placements[0]
            assert placement.path not in self.noted, "its file may have its name by now"
            self.disk[placement.path] = [
                token for begin, end in placement.ranges for token in man.tokens[order.batch, order.block][begin:end]
            ]
            man.writes[0] = replace(order, placements=order.placements[1:])
            man.unheard.append((order.batch, order.block, placement.path))
        else:
            man.writes.popleft()
            del man.tokens[order.batch, order.block]
            man.unheard.append((order.batch, order.block, None))

    def hear(self, worker: int) -> None:
        """Receive what a worker says about its writes."""
        unheard = self.running[worker].unheard
        if not unheard:
            return
        batch, block, path = unheard.popleft()
        if path is None:
            self.schedule.note_dropped(worker, batch, block)
        else:
            assert self.disk[path] == self.wanted[path]
            self.noted.add(path)
            self.schedule.note_written(worker, batch, block)

    def end(self, worker: int, death: Death | None) -> None:
        """None: it is sent away."""
        end_all = False
        if death is not None:  # what a dead worker has said is heard; what one that is killed says is not
            while self.running[worker].unheard:
                self.hear(worker)
        batches = self.running.pop(worker).batches
        if death is None:
            self.schedule.remove_worker(worker)
            return
        lane = batches[0][0].batch.part if batches else None
        before = self.received_elsewhere(lane)
        end_all = self.schedule.note_death(worker, death)
        assert self.received_elsewhere(lane) == before, "what others have made is not made anew"
        if end_all:
            assert not any(map(self.schedule.keeps_any, self.running))
            self.running.clear()

    def received_elsewhere(self, lane: int | None) -> list[tuple[int, int, int]]:
        """How many blocks there are of each batch of the other lanes, and how many of them wait for their turn."""
        tasks = [task for other, tasks in self.schedule._tasks.items() if other != lane for task in tasks]
        return [(task.number, task.received, len(task.blocks)) for task in tasks]

    def take(self, most: int = 10**9) -> None:
        """Output blocks and say where they belong: in no, one or several places."""
        while self.schedule.output_lane is not None:
            for block in self.schedule.take_output():
                self.place(block)
                most -= 1
                if most == 0:
                    return
        if self.is_mix:
            self.mix()  # a lane may have ended

    def place(self, block: EncodedBlock) -> None:
        number, kept = len(self.out), block.tokens
        held = isinstance(kept, HeldTokens)
        tokens = self.made[kept.batch, kept.block] if isinstance(kept, HeldTokens) else kept.tolist()
        assert len(tokens) == len(kept)
        self.out.append((block, tokens))
        if self.is_mix:
            self.waiting[block.part].append(Waiting(block, tokens))
            self.mix()
        elif held:
            cuts = sorted({0, len(tokens), *[len(tokens) * i // (number % 4 + 1) for i in range(number % 4 + 1)]})
            parts = [] if number % 9 == 8 else list(pairwise(cuts))  # behind --max-tokens there are none
            self.order(block, tokens, parts, last=True)

    def order(self, block: EncodedBlock, tokens: list[int], parts: list[tuple[int, int]], *, last: bool) -> None:
        """Have tokens of a block written."""
        if not isinstance(block.tokens, HeldTokens):
            return
        placements = []
        for begin, end in parts:
            path = f"{len(self.wanted)}"
            self.wanted[path] = tokens[begin:end]
            placements.append(Placement(path, np.zeros(1, np.int64), np.array([[begin, end]])))
        order, worker, futures = self.schedule.place(block.tokens, placements, last=last)
        assert len(futures) == len(parts)
        if worker is not None:
            self.running[worker].writes.append(order)

    def mix(self) -> None:
        """Place documents in their order, as far as it is known; some in several steps. Of some blocks it is known only
        later that nothing more of them will be placed."""
        while (lane := self.awaited()) is not None:
            if not self.waiting[lane]:
                if self.was_output(lane):
                    continue
                return
            one = self.waiting[lane][0]
            begin, one.placed = one.placed, min(one.placed + self.step_tokens, len(one.tokens))
            if begin < one.placed:
                self.taken[lane] += one.placed - begin
                self.mixed += [lane] * len(range(begin, one.placed, TOKENS_OF_A_DOCUMENT))
            # Of every other block it is only known later that nothing more of it will be placed.
            last = one.placed == len(one.tokens) and (begin == one.placed or bool(len(one.tokens) % 8))
            parts = [(begin, one.placed)] if begin < one.placed else []
            if parts or last:
                self.order(one.block, one.tokens, parts, last=last)
            if last:
                self.waiting[lane].popleft()

    def check_loads(self) -> None:
        """A worker that has nothing to do has no work, even if it keeps tokens that are needed later: the watchdog
        would end it. One that keeps nothing is free."""
        for worker, man in self.running.items():
            assert self.schedule.has_work(worker) >= bool(man.batches)
            is_idle = man.is_idle or not (man.batches or man.unheard or any(order.steps for order in man.writes))
            assert not (is_idle and self.schedule.has_work(worker)), "it has nothing to do"
            needed = not man.is_idle or any(
                self.schedule._unfinished[batch].worker == worker and block in self.schedule._unfinished[batch].held
                for batch, block in man.tokens
                if batch in self.schedule._unfinished
            )
            if needed or not self.schedule.keeps_any(worker):
                continue
            raise AssertionError("it is free")

    def abandon(self) -> None:
        """The stream ends here."""
        self.schedule.abandon_output()
        for lane in self.lanes:
            self.unread[lane].clear()
            self.waiting[lane].clear()
        self.abandoned = True

    @property
    def is_done(self) -> bool:
        return (
            all(map(self.schedule.was_output, self.lanes))
            and not any(self.unread)
            and not self.schedule.in_flight_bytes
        )

    def play_round(self) -> None:
        """Everybody does something."""
        self.dispatch()
        for worker in list(self.running):
            for action in (self.step, self.write, self.hear):
                if worker in self.running:
                    action(worker)

    def finish(self) -> None:
        """Everybody does something, round after round, until nothing is left to do. As the output does it, now and then
        what was placed has to be written before anything else is taken."""
        for _ in range(5_000):
            self.play_round()
            self.take()
            self.check_loads()
            for _ in range(5_000):
                if self.noted == set(self.wanted):
                    break
                self.play_round()
                self.check_loads()
            else:
                raise AssertionError("deadlock of what waits for a write")
            if self.is_done:
                break
        else:
            raise AssertionError("deadlock")
        for worker, man in list(self.running.items()):
            while worker in self.running and man.batches:  # of an abandoned stream
                self.step(worker)
            while worker in self.running and (man.writes or man.unheard):
                self.write(worker)
                self.hear(worker)
        assert self.noted == set(self.wanted)
        assert self.disk == self.wanted
        assert self.schedule.in_flight_bytes == 0
        assert not any(map(self.schedule.keeps_any, self.running))
        assert not any(self.waiting)


def leave_out_or_stop(task: Task, death: Death) -> EncodedBlock | WorkerError:
    """As replace_unreadable does it: a batch of which there are blocks can't be left out."""
    return WorkerError("unreadable") if task.received else leave_out(task, death)


DOCUMENTS = st.integers(0, 12)  # so few that there are copies
CHUNKS = st.lists(st.lists(DOCUMENTS, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
# Kills from outside stay below the number that ends a run.
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["step", "write", "hear"] * 4
            + ["dispatch", "take", "take one", "send away", CRASH, OUT_OF_MEMORY, KILL, STUCK]
        ),
        st.integers(0, 3),
    ),
    max_size=150,
)


def make_texts(
    contents: list[tuple[int, tuple[tuple[int, ...], ...]]], of_first_file: int, lanes: tuple[int, ...] = (0,)
) -> list[Text]:
    """The texts, each in the next one of these lanes."""
    return [
        Text(batch_at(position, size, int(position >= of_first_file), lanes[position % len(lanes)]), chunks)
        for position, (size, chunks) in enumerate(contents)
    ]


def play(simulation: Simulation, actions: list[tuple[str | Death, int]], *, abandon: int | None = None) -> None:
    """Do what is asked for, to whichever workers there are, then let everybody finish in peace; `abandon` the stream
    after so many actions. A batch that can't be read again may end the run."""
    kills = 0
    try:
        for number, (action, worker) in enumerate(actions):
            kills += action is KILL
            if action is KILL and kills >= MAXIMUM_KILLS:
                continue
            if number == abandon:
                simulation.abandon()
            play_one(simulation, action, worker)
            simulation.check_loads()
        if abandon is not None and not simulation.abandoned:
            simulation.abandon()
        simulation.finish()
    except WorkerError as error:
        simulation.ended_by = error
    for path in simulation.noted:
        assert simulation.disk[path] == simulation.wanted[path]


def play_one(simulation: Simulation, action: str | Death, number: int) -> None:
    if action == "dispatch" or not simulation.running:
        simulation.dispatch()
        return
    worker = list(simulation.running)[number % len(simulation.running)]
    if action == "take":
        simulation.take()
    elif action == "take one":
        simulation.take(1)
    elif action == "step":
        simulation.step(worker)
    elif action == "write":
        simulation.write(worker)
    elif action == "hear":
        simulation.hear(worker)
    elif action == "send away":
        simulation.end(worker, None)
    elif isinstance(action, Death):
        simulation.end(worker, action)


def check(simulation: Simulation) -> set[tuple[int, int, int]]:
    """Of each lane each block once, in order; what is missing was told, and is missing from there on. Returns what was
    lost, by lane, file and document."""
    told = {(one.part, one.file, int(one.sha256)) for block, _ in simulation.out for one in block.quarantined}
    lost: set[tuple[int, int, int]] = set()
    for lane in simulation.lanes:
        lost |= check_lane(simulation, lane, told)
    if not (simulation.ended_by or simulation.abandoned):
        assert simulation.mixed == mixed_again(simulation)
    return lost


def check_lane(simulation: Simulation, lane: int, told: set[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    blocks = iter([one for one in simulation.out if one[0].part == lane])
    lost: set[tuple[int, int, int]] = set()
    for text in simulation.texts:
        if text.batch.part != lane:
            continue
        for number, chunk in enumerate(text.chunks):
            block, tokens = next(blocks, (None, []))
            if block is None:
                assert simulation.ended_by is not None or simulation.abandoned
                return lost
            assert block.start == Cursor(text.batch.file, text.batch.position, number)
            lost |= {(one.part, one.file, int(one.sha256)) for one in block.quarantined}
            if block.problems:
                break  # the rest of the batch was given up
            made = tokens[::TOKENS_OF_A_DOCUMENT]
            missing = {document for document in chunk if document not in made}
            assert made == [document for document in chunk if document not in missing]
            assert {(lane, text.batch.file, document) for document in missing} <= told
            assert not {(lane, text.batch.file, document) for document in made} & lost
    assert next(blocks, None) is None
    return lost


def mixed_again(simulation: Simulation) -> list[int]:
    """The lanes of all documents that were output, in the order that the weights say."""
    if not simulation.is_mix:
        return []
    most, left = simulation.step_tokens, [deque[int]() for _ in simulation.lanes]
    for block, tokens in simulation.out:
        left[block.part] += [min(most, len(tokens) - begin) for begin in range(0, len(tokens), most)]
    taken, order = [0 for _ in left], []
    while any(left):
        lane = min(
            (one for one in simulation.lanes if left[one]),
            key=lambda one: Fraction(taken[one], simulation.weights[one]),
        )
        step = left[lane].popleft()
        taken[lane] += step
        order += [lane] * (-(-step // TOKENS_OF_A_DOCUMENT))
    return order


@pytest.mark.promise(
    "a worker's death never hangs the run",
    "poison is isolated, quarantined and counted",
    "a worker's death with unwritten tokens costs only time",
)
@given(
    contents=st.lists(st.tuples(st.integers(1, 50), CHUNKS), max_size=12),
    of_first_file=st.integers(0, 12),
    workers=st.integers(1, 4),
    window=st.integers(1, 120),
    queued=st.integers(1, 2),
    deadly=st.frozensets(DOCUMENTS, max_size=2),
    deadly_for_first=st.frozensets(DOCUMENTS, max_size=2),
    actions=ACTIONS,
    abandon=st.none() | st.integers(0, 150),
)
def test_whatever_becomes_of_workers_blocks_come_once_and_in_order(
    contents: list[tuple[int, tuple[tuple[int, ...], ...]]],
    of_first_file: int,
    workers: int,
    window: int,
    queued: int,
    deadly: frozenset[int],
    deadly_for_first: frozenset[int],
    actions: list[tuple[str | Death, int]],
    abandon: int | None,
) -> None:
    """They die, are killed, run out of memory or are sent away at any moment: it never hangs, no batch begins beyond
    the window, every document is there or was told, no copy of a lost one comes behind it, and every token is written
    where it belongs, and not again once that is known."""
    texts = make_texts(contents, of_first_file)
    simulation = Simulation(texts, workers, window, queued, deadly, deadly_for_first)
    play(simulation, actions, abandon=abandon)
    check(simulation)


@pytest.mark.promise(
    "a worker's death never hangs the run",
    "poison is isolated, quarantined and counted",
    "a worker's death with unwritten tokens costs only time",
)
@settings(max_examples=150)
@given(
    contents=st.lists(st.tuples(st.integers(1, 50), CHUNKS), max_size=14),
    of_first_file=st.integers(0, 14),
    lanes=st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple),
    weights=st.tuples(*[st.sampled_from([1, 2, 7, 1000])] * 3),
    step=st.sampled_from([1, 4, 8, 100]),
    workers=st.integers(1, 4),
    window=st.integers(50, 150),  # a batch that is larger is refused
    queued=st.integers(1, 2),
    deadly=st.frozensets(DOCUMENTS, max_size=2),
    deadly_for_first=st.frozensets(DOCUMENTS, max_size=2),
    actions=ACTIONS,
    abandon=st.none() | st.integers(0, 150),
)
def test_whatever_becomes_of_workers_a_mix_has_its_order(
    contents: list[tuple[int, tuple[tuple[int, ...], ...]]],
    of_first_file: int,
    lanes: tuple[int, ...],
    weights: tuple[int, ...],
    step: int,
    workers: int,
    window: int,
    queued: int,
    deadly: frozenset[int],
    deadly_for_first: frozenset[int],
    actions: list[tuple[str | Death, int]],
    abandon: int | None,
) -> None:
    """Three lanes, whose blocks are placed in several steps: the same promises for each lane, no lane's output is
    started over because of another one, and the order is that of the weights."""
    texts = make_texts(contents, of_first_file, lanes)
    simulation = Simulation(texts, workers, window, queued, deadly, deadly_for_first, weights, step)
    play(simulation, actions, abandon=abandon)
    check(simulation)


@given(
    contents=st.lists(st.tuples(st.integers(1, 50), CHUNKS), max_size=12),
    workers=st.integers(1, 4),
    window=st.integers(1, 120),
    deadly=st.frozensets(DOCUMENTS, max_size=3),
    deadly_for_first=st.frozensets(DOCUMENTS, max_size=3),
    actions=ACTIONS.map(lambda actions: [(a, n) for a, n in actions if not isinstance(a, Death) or a is KILL]),
)
def test_only_deadly_documents_are_lost(
    contents: list[tuple[int, tuple[tuple[int, ...], ...]]],
    workers: int,
    window: int,
    deadly: frozenset[int],
    deadly_for_first: frozenset[int],
    actions: list[tuple[str | Death, int]],
) -> None:
    """However often workers are killed from outside or sent away: exactly those that both engines die of."""
    texts = make_texts(contents, len(contents))
    simulation = Simulation(texts, workers, window, 2, deadly, deadly_for_first)
    play(simulation, actions)
    assert simulation.ended_by is None
    present = {document for text in texts for chunk in text.chunks for document in chunk}
    assert check(simulation) == {(0, 0, document) for document in deadly & present}


def joined_at(*files: int) -> Batch:
    members = tuple(batch_at(0, file=file) for file in files)
    return replace(members[0], size_bytes=10 * len(files), members=members)


def test_a_batch_of_several_files_is_divided_when_a_worker_dies_on_it() -> None:
    """Each file is then a batch of its own, in its place: what follows is about one file."""
    schedule = schedule_of()
    for batch in (joined_at(0, 1, 2), joined_at(3, 4), batch_at(0, file=5)):
        schedule.add(batch)
    orders = [schedule.give_next(worker) for worker in "aab"]
    assert [order.number for order in orders if order] == [0, 3, 5]
    assert not schedule.note_death("a", CRASH)  # it died on the first; the second is only lost
    assert schedule.in_flight_bytes == schedule.lanes[0].waiting_bytes == 60
    again = [order for _ in range(4) if (order := schedule.give_next("c"))]
    assert [order.batch.file for order in again] == [0, 1, 2, 3]
    assert [order.number for order in again] == [0, 1, 2, 3]
    assert [len(order.batch.members) for order in again] == [0, 0, 0, 2]
    for order in again:
        schedule.receive_block("c", 0, block_of(0, file=order.batch.file))
        schedule.finish("c")
    schedule.receive_block("b", 0, block_of(0, file=5))
    schedule.finish("b")
    found = [block.start for _ in range(5) for block in schedule.take_output()]
    assert [start.file for start in found if start] == [0, 1, 2, 3, 5]
    assert schedule.was_output(0)
    assert schedule.in_flight_bytes == schedule.lanes[0].waiting_bytes == 0


def test_a_document_left_out_of_one_file_is_not_left_out_of_its_neighbours() -> None:
    """A batch of several files is divided at once, if an earlier run has left out a document of one."""
    schedule: Schedule[str] = Schedule(1000, 4, leave_out, [document_of(0, 7, file=1)])
    schedule.add(joined_at(0, 1, 2))
    schedule.add(joined_at(3, 4))
    orders = [order for _ in range(4) if (order := schedule.give_next("a"))]
    assert [(order.batch.file, set(order.skip_digests)) for order in orders] == [
        (0, set()), (1, {"7"}), (2, set()), (3, set())
    ]  # fmt: skip
    assert orders[-1].batch.members


def test_a_batch_of_several_files_that_was_output_is_only_encoded_again() -> None:
    """Its tokens are placed as one block, so it stays one."""
    schedule = schedule_of()
    schedule.add(joined_at(0, 1))
    assert schedule.give_next("a") is not None
    block = replace(block_of(0), tokens=HeldTokens(0, 0, 8))
    schedule.receive_block("a", 0, block)
    assert len(list(schedule.take_output())) == 1
    assert not schedule.note_death("a", KILL)
    order = schedule.give_next("b")
    assert order is not None
    assert len(order.batch.members) == 2
