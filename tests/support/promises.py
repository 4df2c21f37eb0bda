"""The promises of an overnight run, and the count of what was tried for each: `make soak`.

A test that proves one is marked with its name, `@pytest.mark.promise("resumes can be chained")`. Where it tries many
times it takes its tries from the fixture `tries`: a few in `make test`, the full count in a soak. At the end of a soak
a table shows promise, tries, failures, and the worst of what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

PROMISES = (
    "kill -9 loses only the unfinished shard",
    "resumes can be chained",
    "a shard is durable before the manifest names it",
    "a reader never sees half a shard",
    "workers, batches, engine and executor change no byte",
    "a changed source or setting is refused by name",
    "a finished run does nothing when rerun",
    "a worker's death never hangs the run",
    "poison is isolated, quarantined and counted",
    "a tokenizer's exception loses no document",
    "no orphans, nothing left in /dev/shm",
    "Ctrl-C and SIGTERM stop cleanly",
    "a full disk loses nothing",
    "no start when the disk can't hold the result",
    "an fsync error is fatal",
    "network faults are survived",
    "memory stays within the budget",
    "short memory pauses the run",
    "bad text can't stop a run",
    "bad files are named, or skipped and counted",
    "verify finds all damage",
    "one writer per folder",
    "nothing from data is executed or followed",
    "untrusted text is shown safely",
    "the HF token appears nowhere",
    "the vocabulary is GPT-2's, token for token",
    "a worker's death with unwritten tokens costs only time",
    "a failing write in a worker never leaves a torn shard",
    "the hub's quota is kept, not hit",
    "the HF token is sent to the hub only",
    "another vocabulary is exact by its own reference, or refused",
    "Ray gives the same bytes; a lost node or driver costs time",
    "a bucket never shows half a shard; only one writer wins",
    "a build from Python leaves the process as it was",
    "a mix is that of a plain loop",
    "a shuffle is a plain sort",
)

Measure = Callable[[float], AbstractContextManager[None]]


@dataclass
class Score:
    """What was seen of one promise."""

    tries: int = 0
    failures: int = 0
    skipped: int = 0
    worst_seconds: float = 0.0


SCORES = pytest.StashKey[dict[str, Score]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="the full count of tries for every promise")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(name, ...): proves promises of an overnight run")
    config.addinivalue_line("markers", "full(but=[ids]): runs in the second step only, `make test-all`")
    config.addinivalue_line("markers", "soak: takes too long for every day")
    config.stash[SCORES] = {name: Score() for name in PROMISES}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A soak runs what proves a promise, and what only it has time for; every day runs everything else."""
    for item in items:
        for name in names(item):
            if name not in PROMISES:
                raise pytest.UsageError(f"{item.nodeid}: no promise in {__file__} is named {name!r}")
    soak = config.getoption("soak")
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        rare = item.get_closest_marker("soak") is not None
        (chosen if (rare or names(item) if soak else not rare) else others).append(item)
    config.hook.pytest_deselected(items=others)
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
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    for score in _scores(item):
        if report.failed:
            score.failures += 1
        elif report.skipped:
            score.skipped += 1
        elif report.when == "call" and "tries" not in getattr(item, "fixturenames", ()):
            score.tries += 1
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    # With --numprocesses every process counts for itself, and this one has run no test.
    if not config.getoption("soak") or config.getoption("numprocesses", None):
        return
    write = terminalreporter.write_line
    write("")
    write(f"{'promise':<62} {'tries':>6} {'failures':>8}  worst")
    for name, score in config.stash[SCORES].items():
        worst = f"{score.worst_seconds:.1f} s" if score.worst_seconds else ""
        worst += " (something was skipped)" if score.skipped else ""
        write(f"{name:<62} {score.tries:>6} {score.failures:>8}  {worst}".rstrip())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A promise that nothing was tried for is not kept."""
    scores = session.config.stash[SCORES].values()
    untried = any(score.tries == 0 for score in scores)
    if session.config.getoption("soak") and has_every_file(session.config) and untried:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def has_every_file(config: pytest.Config) -> bool:
    """Whether nobody has named files or tests: then every promise has its tests among what was collected."""
    return config.args == config.getini("testpaths") and not config.getoption("-k")


def names(item: pytest.Item) -> list[str]:
    """Of the promises that a test proves."""
    return [name for marker in item.iter_markers("promise") for name in marker.args]


def _scores(item: pytest.Item) -> list[Score]:
    return [item.config.stash[SCORES][name] for name in names(item)]
