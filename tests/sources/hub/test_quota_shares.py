"""What is left of a quota: pure arithmetic over untrusted text."""

from __future__ import annotations

from pathlib import Path

import pytest

from fineweb_shards.storage.hub_session import Quota
from fineweb_shards.system.retry import TransientError
from tests.support.doubles import FakeClock

RESOLVE = "https://hub/datasets/a/b/resolve/main/file"
API = "https://hub/api/datasets/a/b"


def test_a_quota_is_kept_before_it_is_used_up(tmp_path: Path) -> None:
    """All processes together send no more than is left, then wait for the next window."""
    clock = FakeClock()
    one, other = Quota(tmp_path, clock), Quota(tmp_path, clock)
    policy = '"fixed window";"resolvers";q=5;w=300'
    one.take(RESOLVE)
    one.learn(RESOLVE, 200, {"RateLimit": '"resolvers";r=3;t=100', "RateLimit-Policy": policy})
    for quota in (one, other, one):
        quota.take(RESOLVE)
    for quota in (one, other):
        with pytest.raises(TransientError, match="rate limit") as wait:
            quota.take(RESOLVE)
        assert 100 <= wait.value.retry_after_seconds <= 101
    other.take(API)
    clock.sleep(101)
    for _ in range(5):
        other.take(RESOLVE)
    with pytest.raises(TransientError):
        one.take(RESOLVE)


def test_answers_out_of_order_give_nothing_back(tmp_path: Path) -> None:
    """An answer that is late does not raise what is left in its window."""
    clock = FakeClock()
    quota = Quota(tmp_path, clock)
    for left in (2, 1, 2):
        quota.learn(RESOLVE, 200, {"RateLimit": f'"resolvers";r={left};t=100'})
    quota.take(RESOLVE)
    with pytest.raises(TransientError):
        quota.take(RESOLVE)


def test_a_429_holds_for_everybody(tmp_path: Path) -> None:
    """One process is told to wait; the others don't even ask."""
    clock = FakeClock()
    one, other = Quota(tmp_path, clock), Quota(tmp_path, clock)
    one.learn(RESOLVE, 429, {"Retry-After": "30"})
    with pytest.raises(TransientError) as wait:
        other.take(RESOLVE)
    assert 30 <= wait.value.retry_after_seconds <= 31
    clock.sleep(31)
    other.take(RESOLVE)


@pytest.mark.parametrize("header", ["", "garbage", '"resolvers";r=-1;t=5', '"resolvers";r=0;t=9' + "9" * 400])
def test_nonsense_in_headers_never_stops_a_run(tmp_path: Path, header: str) -> None:
    """At most it is waited for as long as a server may ask for."""
    clock = FakeClock()
    quota = Quota(tmp_path, clock)
    quota.learn(RESOLVE, 200, {"RateLimit": header, "RateLimit-Policy": header})
    clock.sleep(901)
    quota.take(RESOLVE)
