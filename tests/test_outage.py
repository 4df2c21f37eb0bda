"""Patience: hours of outage on a fake clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fineweb_shards.errors import HubError, NetworkError
from fineweb_shards.outage import LONGEST_WAIT_SECONDS, Clock, Patience, Trouble


class FakeClock(Clock):
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds

    def wall(self) -> str:
        return "02:13"


def failing_for(seconds: float, clock: FakeClock, trouble: Trouble) -> Callable[[], str]:
    def action() -> str:
        if clock.now() < seconds:
            raise trouble
        return "done"

    return action


@pytest.mark.parametrize("minutes", [5, 30, 59])
def test_an_outage_shorter_than_the_limit_is_survived(minutes: int) -> None:
    """With growing pauses of minutes at most, told once it lasts, and told when it is over."""
    clock = FakeClock()
    patience = Patience(3600, clock)
    said: list[str | None] = []
    patience.tell = said.append
    assert patience.call(failing_for(minutes * 60, clock, Trouble("status 503"))) == "done"
    assert said[0] == "waiting for the network since 02:13 (status 503)"
    assert said[-1] is None
    assert max(clock.waits) <= LONGEST_WAIT_SECONDS
    assert len(clock.waits) < 60


def test_a_longer_one_ends_with_a_sentence() -> None:
    """Not before the limit, and not much after it."""
    clock = FakeClock()
    with pytest.raises(NetworkError, match=r"for 60 min, since 02:13: no connection") as error:
        Patience(3600, clock).call(failing_for(1e9, clock, Trouble("no connection")))
    assert error.value.exit_code == 10
    assert 3600 <= clock.now() < 3660


def test_retry_after_is_honoured() -> None:
    """What the server asks for is the least that is waited."""
    clock = FakeClock()
    Patience(3600, clock).call(failing_for(100, clock, Trouble("status 429", retry_after_seconds=40)))
    assert all(wait >= 40 for wait in clock.waits)
    assert len(clock.waits) == 3


def test_a_short_trouble_is_nobodys_business() -> None:
    """Nothing is said of a reset that heals at once."""
    clock = FakeClock()
    said: list[str | None] = []
    patience = Patience(3600, clock)
    patience.tell = said.append
    patience.call(failing_for(0.1, clock, Trouble("reset")))
    assert said == []


def test_what_is_final_is_not_tried_again() -> None:
    """A refusal is raised as it is."""
    tries = []

    def refused() -> None:
        tries.append(1)
        raise HubError("404")

    with pytest.raises(HubError):
        Patience(3600, FakeClock()).call(refused)
    assert len(tries) == 1
