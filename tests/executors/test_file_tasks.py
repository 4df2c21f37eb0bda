"""File tasks alone, without a process: each is done, by whichever worker lives long enough."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import DamageError, WorkerError
from fineweb_shards.executors.messages import FileOrder, FileResult
from fineweb_shards.executors.task import MAXIMUM_DEATHS, MAXIMUM_KILLS, Death, DeathKind, FileTasks
from fineweb_shards.output.store import Segment

CRASH = Death(DeathKind.CRASHED, "was killed by signal 11")
KILL = Death(DeathKind.KILLED, "was killed by signal 9")


def segment(number: int = 0) -> Segment:
    return Segment(Path("a.tmp"), 0, str(number), "train", 0, 6, 3, 0, whole=True)


def test_the_worker_with_the_fewest_gets_the_next() -> None:
    """And nobody gets one twice."""
    tasks: FileTasks[str] = FileTasks()
    for number in range(4):
        tasks.add(segment(number))
    assert list(tasks.give_out([])) == []
    assert [(worker, order.work) for worker, order in tasks.give_out("ab")] == [
        ("a", segment(0)), ("b", segment(1)), ("a", segment(2)), ("b", segment(3)),
    ]  # fmt: skip
    assert list(tasks.give_out("abc")) == []
    assert [tasks.count(worker) for worker in "abc"] == [2, 2, 0]


def test_an_error_is_the_callers() -> None:
    """As the hash of the segment is."""
    tasks: FileTasks[str] = FileTasks()
    futures = [tasks.add(segment()) for _ in range(2)]
    given_out = [order.number for _, order in tasks.give_out("a")]
    tasks.finish(FileResult(given_out[0], "ab"))
    tasks.finish(FileResult(given_out[1], error=DamageError("torn")))
    assert futures[0].result(0) == "ab"
    with pytest.raises(DamageError, match="torn"):
        futures[1].result(0)
    assert tasks.count("a") == 0


@pytest.mark.promise("a worker's death with unwritten tokens costs only time")
@pytest.mark.parametrize(("death", "most"), [(CRASH, MAXIMUM_DEATHS), (KILL, MAXIMUM_KILLS)])
def test_a_file_task_that_ends_all_workers_ends_the_run(death: Death, most: int) -> None:
    """With a sentence that says what they did; workers that are sent away don't count."""
    tasks: FileTasks[str] = FileTasks()
    tasks.add(segment())
    for _ in range(most - 1):
        list(tasks.give_out("a"))
        tasks.remove_worker("a", death)
        list(tasks.give_out("b"))
        tasks.remove_worker("b")
    list(tasks.give_out("a"))
    with pytest.raises(WorkerError, match=f"Workers die while they seal a file: the last one {death.description}"):
        tasks.remove_worker("a", death)


@dataclass
class Simulation:
    """Workers that have file tasks, and their answers on the way."""

    tasks: FileTasks[int] = field(default_factory=FileTasks)
    running: dict[int, list[FileOrder]] = field(default_factory=dict)
    futures: list[Future[str]] = field(default_factory=list)
    hired: int = 0
    kills: int = 0

    def give_out(self, workers: int) -> None:
        while len(self.running) < workers:
            self.running[self.hired] = []
            self.hired += 1
        for worker, order in self.tasks.give_out(list(self.running)):
            self.running[worker].append(order)

    def act(self, action: str, number: int) -> None:
        if action == "add":
            self.futures.append(self.tasks.add(segment(len(self.futures))))
            return
        if not self.running:
            return
        worker = list(self.running)[number % len(self.running)]
        if action == "answer":
            self.answer(worker)
        elif action == "kill" and self.kills < MAXIMUM_KILLS - 1:
            self.kills += 1
            del self.running[worker]
            self.tasks.remove_worker(worker, KILL)
        elif action == "send away":
            del self.running[worker]
            self.tasks.remove_worker(worker)

    def answer(self, worker: int) -> None:
        if self.running[worker]:
            order = self.running[worker].pop(0)
            assert isinstance(order.work, Segment)
            self.tasks.finish(FileResult(order.number, order.work.name))


@pytest.mark.promise("a worker's death with unwritten tokens costs only time")
@given(
    workers=st.integers(1, 4),
    actions=st.lists(
        st.tuples(
            st.sampled_from(["add", "give out", "answer", "kill", "send away", "answer", "give out"]), st.integers(0, 3)
        ),
        max_size=100,
    ),
)
def test_whatever_becomes_of_workers_every_file_task_is_done(workers: int, actions: list[tuple[str, int]]) -> None:
    """Killed or sent away at any moment: each file task has its own answer, once, and then nobody has any."""
    simulation = Simulation()
    for action, number in actions:
        if action == "give out":
            simulation.give_out(workers)
        else:
            simulation.act(action, number)
        for worker, orders in simulation.running.items():
            assert simulation.tasks.count(worker) == len(orders)
    while not all(future.done() for future in simulation.futures):
        simulation.give_out(workers)
        for worker in simulation.running:
            simulation.answer(worker)
    for number, future in enumerate(simulation.futures):
        assert future.result(0) == str(number)
    assert not any(map(simulation.tasks.count, simulation.running))
