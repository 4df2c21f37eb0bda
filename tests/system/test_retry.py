"""Retrier: hours of outage on a fake clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fineweb_shards.errors import HubError, NetworkError
from fineweb_shards.system.retry import LONGEST_WAIT_SECONDS, Retrier, TransientError
from tests.support.doubles import FakeClock, Listener


def failing_for(seconds: float, clock: FakeClock, trouble: TransientError) -> Callable[[], str]:
    def action() -> str:
        if clock.now() < seconds:
            raise trouble
        return "done"

    return action


@pytest.mark.promise("network faults are survived")
@pytest.mark.parametrize("minutes", [5, 30, 59])
def test_an_outage_shorter_than_the_limit_is_survived(minutes: int) -> None:
    """With growing pauses of minutes at most, told once it lasts, and told when it is over."""
    clock = FakeClock()
    listener = Listener()
    retrier = Retrier(3600, listener, clock=clock)
    assert retrier.call(failing_for(minutes * 60, clock, TransientError("hub: status 503"))) == "done"
    words = "waiting for the network since 02:13 (hub: status 503), giving up at 03:13"
    assert listener.waits[0] == ("network", words)
    assert listener.waits[-1] == ("network", None)
    assert len(listener.texts("retry")) == len(clock.waits)
    assert max(clock.waits) <= LONGEST_WAIT_SECONDS
    assert len(clock.waits) < 60


@pytest.mark.promise("network faults are survived")
def test_a_longer_one_ends_with_a_sentence() -> None:
    """Not before the limit, and not much after it."""
    clock = FakeClock()
    with pytest.raises(NetworkError, match=r"after 60 min, since 02:13: no connection") as error:
        Retrier(3600, clock=clock).call(failing_for(1e9, clock, TransientError("no connection")))
    assert error.value.exit_code == 10
    assert 3600 <= clock.now() < 3660


def test_retry_after_is_honoured() -> None:
    """What the server asks for is the least that is waited."""
    clock = FakeClock()
    Retrier(3600, clock=clock).call(failing_for(100, clock, TransientError("status 429", retry_after_seconds=40)))
    assert all(wait >= 40 for wait in clock.waits)
    assert len(clock.waits) == 3


def test_a_long_wait_says_when_it_goes_on_and_what_would_help() -> None:
    """A rate limit: the next try, the end of the retrier, the advice."""
    clock, listener = FakeClock(), Listener()
    retrier = Retrier(3600, listener, clock=clock)
    retrier.call(failing_for(100, clock, TransientError("hub: rate limit (429)", 300, "HF_TOKEN helps")))
    assert listener.waits[0][1] == (
        "waiting for the network since 02:13 (hub: rate limit (429)), next try at 02:18, giving up at 03:13; "
        "HF_TOKEN helps"
    )


def test_a_short_trouble_is_nobodys_business() -> None:
    """A reset that heals at once is in the log, and nowhere else."""
    clock = FakeClock()
    listener = Listener()
    retrier = Retrier(3600, listener, clock=clock)
    retrier.call(failing_for(0.1, clock, TransientError("reset")))
    assert listener.waits == []
    assert not any(event.loud for event in listener.events)


def test_what_is_final_is_not_tried_again() -> None:
    """A refusal is raised as it is."""
    tries = []

    def refused() -> None:
        tries.append(1)
        raise HubError("404")

    with pytest.raises(HubError):
        Retrier(3600, clock=FakeClock()).call(refused)
    assert len(tries) == 1
