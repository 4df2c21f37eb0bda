"""Errands alone, without a process: each is done, by whichever worker lives long enough."""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_shards.errors import DamageError, WorkerError
from fineweb_shards.executors.exit_cause import Death, DeathKind
from fineweb_shards.executors.local.errands import Errands
from fineweb_shards.executors.local.messages import Errand, Returned
from fineweb_shards.executors.task import MAXIMUM_DEATHS, MAXIMUM_KILLS

CRASH = Death(DeathKind.CRASHED, "was killed by signal 11")
KILL = Death(DeathKind.KILLED, "was killed by signal 9")


def test_the_worker_with_the_fewest_gets_the_next() -> None:
    """And nobody gets one twice."""
    errands: Errands[str] = Errands()
    for number in range(4):
        errands.add(os.getpid, (number,))
    assert list(errands.give_out([])) == []
    assert [(worker, errand.arguments) for worker, errand in errands.give_out("ab")] == [
        ("a", (0,)), ("b", (1,)), ("a", (2,)), ("b", (3,)),
    ]  # fmt: skip
    assert list(errands.give_out("abc")) == []
    assert [errands.count(worker) for worker in "abc"] == [2, 2, 0]


def test_an_error_is_the_callers() -> None:
    """What the function raised, or what it returned."""
    errands: Errands[str] = Errands()
    futures = [errands.add(os.getpid, ()) for _ in range(2)]
    given_out = [errand.number for _, errand in errands.give_out("a")]
    errands.finish(Returned(given_out[0], 7))
    errands.finish(Returned(given_out[1], error=DamageError("torn")))
    assert futures[0].result(0) == 7
    with pytest.raises(DamageError, match="torn"):
        futures[1].result(0)
    assert errands.count("a") == 0


@pytest.mark.promise(27)
@pytest.mark.parametrize(("death", "most"), [(CRASH, MAXIMUM_DEATHS), (KILL, MAXIMUM_KILLS)])
def test_an_errand_that_ends_all_workers_ends_the_run(death: Death, most: int) -> None:
    """With a sentence that says what they did; workers that are sent away don't count."""
    errands: Errands[str] = Errands()
    errands.add(os.sync, ())
    for _ in range(most - 1):
        list(errands.give_out("a"))
        errands.remove_worker("a", death)
        list(errands.give_out("b"))
        errands.remove_worker("b")
    list(errands.give_out("a"))
    with pytest.raises(WorkerError, match=f"Workers die while they sync: the last one {death.description}"):
        errands.remove_worker("a", death)


@dataclass
class Simulation:
    """Workers that have errands, and their answers on the way."""

    errands: Errands[int] = field(default_factory=Errands)
    running: dict[int, list[Errand]] = field(default_factory=dict)
    futures: list[Future[int]] = field(default_factory=list)
    hired: int = 0
    kills: int = 0

    def give_out(self, workers: int) -> None:
        while len(self.running) < workers:
            self.running[self.hired] = []
            self.hired += 1
        for worker, errand in self.errands.give_out(list(self.running)):
            self.running[worker].append(errand)

    def act(self, action: str, number: int) -> None:
        if action == "add":
            self.futures.append(self.errands.add(pow, (len(self.futures), 2)))
            return
        if not self.running:
            return
        worker = list(self.running)[number % len(self.running)]
        if action == "answer":
            self.answer(worker)
        elif action == "kill" and self.kills < MAXIMUM_KILLS - 1:
            self.kills += 1
            del self.running[worker]
            self.errands.remove_worker(worker, KILL)
        elif action == "send away":
            del self.running[worker]
            self.errands.remove_worker(worker)

    def answer(self, worker: int) -> None:
        if self.running[worker]:
            errand = self.running[worker].pop(0)
            self.errands.finish(Returned(errand.number, errand.function(*errand.arguments)))


@pytest.mark.promise(27)
@given(
    workers=st.integers(1, 4),
    actions=st.lists(
        st.tuples(
            st.sampled_from(["add", "give out", "answer", "kill", "send away", "answer", "give out"]),
            st.integers(0, 3),
        ),
        max_size=100,
    ),
)
def test_whatever_becomes_of_workers_every_errand_is_done(
    workers: int, actions: list[tuple[str, int]]
) -> None:
    """Killed or sent away at any moment: each errand has its own answer, once, and then nobody has any."""
    simulation = Simulation()
    for action, number in actions:
        if action == "give out":
            simulation.give_out(workers)
        else:
            simulation.act(action, number)
        for worker, errands in simulation.running.items():
            assert simulation.errands.count(worker) == len(errands)
    while not all(future.done() for future in simulation.futures):
        simulation.give_out(workers)
        for worker in simulation.running:
            simulation.answer(worker)
    for number, future in enumerate(simulation.futures):
        assert future.result(0) == number**2
    assert not any(map(simulation.errands.count, simulation.running))
