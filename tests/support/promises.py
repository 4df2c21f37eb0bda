"""The promises of an overnight run, and the count of what was tried for each: `make soak`.

A test that proves one is marked `@pytest.mark.promise(number)`. Where it tries many times it takes its
tries from the fixture `tries`: a few in `make test`, the full count in a soak. At the end of a soak a
table shows promise, tries, failures, and the worst of what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

PROMISES = {
    1: "kill -9 at any moment costs the unfinished shard",
    2: "resumes can be chained",
    3: "a shard is durable before the manifest names it",
    4: "a reader never sees half a shard",
    5: "output is independent of workers, batches, engine, executor",
    6: "a changed source or setting is refused by name",
    7: "a finished run, started again, does nothing (2 s)",
    8: "a worker's death never hangs the run (replaced in 5 s)",
    9: "poison is narrowed down, quarantined, counted",
    10: "a tokenizer's exception loses no document",
    11: "no orphans, nothing in /dev/shm (2 s)",
    12: "Ctrl-C and SIGTERM stop cleanly (10 s)",
    13: "a full disk loses nothing and is survived",
    14: "no start when the disk can't hold the result",
    15: "an fsync error is fatal",
    16: "network faults are survived",
    17: "memory stays inside the budget",
    18: "short memory pauses the run",
    19: "bad text can't stop a run",
    20: "bad files are named, or skipped and counted",
    21: "verify finds every damage",
    22: "one writer per folder",
    23: "nothing from data is executed or followed",
    24: "untrusted text is shown safely",
    25: "the HF token appears nowhere",
    26: "the vocabulary is the vocabulary",
    27: "a worker's death with unwritten tokens costs only time",
    28: "a failing write in a worker never leaves a torn shard",
    31: "the hub's quota is kept, not hit",
    32: "the token is sent to the hub only",
    33: "another vocabulary is exact by its own reference, or refused",
    34: "Ray gives the same bytes; a node or driver lost costs time",
    35: "an object store never shows half a shard; two writers can't both win",
}

Measure = Callable[[float], AbstractContextManager[None]]


@dataclass
class Score:
    """What was seen of one promise."""

    tries: int = 0
    failures: int = 0
    skipped: int = 0
    worst_seconds: float = 0.0


SCORES = pytest.StashKey[dict[int, Score]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="the full count of tries for every promise")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(number): proves a promise of an overnight run")
    config.addinivalue_line("markers", "soak: takes too long for every day")
    config.stash[SCORES] = {number: Score() for number in PROMISES}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A soak runs what proves a promise, and what only it has time for; every day runs everything else."""
    soak = config.getoption("soak")
    rare = [item for item in items if item.get_closest_marker("soak")]
    chosen = [item for item in items if (_numbers(item) or item in rare if soak else item not in rare)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


class Tries:
    """`for number in tries(quick, full)`: so many tries, counted as they begin."""

    def __init__(self, scores: list[Score], soak: bool) -> None:
        self._scores = scores
        self.soak = soak

    def __call__(self, quick: int, full: int) -> Iterator[int]:
        for number in range(full if self.soak else quick):
            for score in self._scores:
                score.tries += 1
            yield number


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether there is time for everything."""
    return bool(request.config.getoption("soak"))


@pytest.fixture
def tries(request: pytest.FixtureRequest) -> Tries:
    return Tries(_scores(request.node), request.config.getoption("soak"))


@pytest.fixture
def within(request: pytest.FixtureRequest) -> Measure:
    """`with within(2.0):` measures a promised time. It decides nothing but in a soak."""

    @contextmanager
    def measure(limit_seconds: float) -> Iterator[None]:
        begin = time.monotonic()
        yield
        seconds = time.monotonic() - begin
        for score in _scores(request.node):
            score.worst_seconds = max(score.worst_seconds, seconds)
        if request.config.getoption("soak"):
            assert seconds < limit_seconds

    return measure


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc, assignment]
    for score in _scores(item):
        if report.failed:
            score.failures += 1
        elif report.skipped:
            score.skipped += 1
        elif report.when == "call" and "tries" not in getattr(item, "fixturenames", ()):
            score.tries += 1
    return report  # type: ignore[return-value]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("soak"):
        return
    write = terminalreporter.write_line
    write("")
    write(f"{'row':>3}  {'promise':<60} {'tries':>6} {'failures':>8}  worst")
    for number, score in config.stash[SCORES].items():
        worst = f"{score.worst_seconds:.1f} s" if score.worst_seconds else ""
        worst += " (something was skipped)" if score.skipped else ""
        write(f"{number:>3}  {PROMISES[number]:<60} {score.tries:>6} {score.failures:>8}  {worst}".rstrip())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A promise that nothing was tried for is not kept."""
    scores = session.config.stash[SCORES].values()
    partial = session.config.args != session.config.getini("testpaths") or session.config.getoption("-k")
    if session.config.getoption("soak") and not partial and any(score.tries == 0 for score in scores):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _numbers(item: pytest.Item) -> list[int]:
    return [number for marker in item.iter_markers("promise") for number in marker.args]


def _scores(item: pytest.Item) -> list[Score]:
    return [item.config.stash[SCORES][number] for number in _numbers(item)]
