"""Fixtures shared by all tests."""

from __future__ import annotations

import locale
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import hypothesis
import pytest

from fineweb_shards.layouts import LAYOUTS
from tests.support import forked

pytest_plugins = ["tests.support.promises", "tests.support.bucket_server", "tests.support.web_server"]

# Timing never decides a test, and every run tries the same examples (soak runs try new ones).
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.load_profile("quick")

# Variables of a shell that would decide how a test ends: settings of the libraries we use, of Python (as
# PYTHONDONTWRITEBYTECODE: modules are compiled once, not in every process), of `make` and of the terminal.
FOREIGN = ("AWS_", "AZURE_", "GOOGLE_", "HF_", "LC_", "PYTHON", "RAY_", "RUST_", "MAKE", "FINEWEB_SHARDS_")
OWN = ("PYTHONPATH", "PYTHONHOME", "FINEWEB_SHARDS_CORPUS")
FOREIGN_NAMES = (
    "LANG", "LANGUAGE", "COLUMNS", "LINES", "NO_COLOR", "CI", "JPY_PARENT_PID", "COLAB_RELEASE_TAG", "MFLAGS",
    "OPENBLAS_NUM_THREADS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
    "all_proxy", "no_proxy",
)  # fmt: skip
FILES_NEEDED = 4096  # open at once


def inherit_nothing() -> None:
    """Set what programs inherit from the shell that starts the tests: variables, ignored and blocked signals (`nohup`,
    `&`), umask, locale and limits. Niceness stays: only root could take it back."""
    for name in list(os.environ):
        if (name.startswith(FOREIGN) and name not in OWN) or name in FOREIGN_NAMES:
            del os.environ[name]
    os.environ |= {"LC_ALL": "C.UTF-8", "TERM": "xterm"}
    if os.name == "nt":
        return
    import resource

    locale.setlocale(locale.LC_ALL, "C.UTF-8")  # also decides the encoding of files in this process
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (hard, hard))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = FILES_NEEDED if hard == resource.RLIM_INFINITY else min(FILES_NEEDED, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


inherit_nothing()

# No process leaves the cores to others, not even this one, after a build in it: the load would decide a test.
STARTUP = Path(__file__).parent / "support" / "startup"
# Programs that tests start, and their workers, import `tests.support`, too.
ROOT = Path(__file__).parent.parent
inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
os.environ["PYTHONPATH"] = os.pathsep.join([str(STARTUP), str(ROOT), *inherited])
os.nice = lambda increment: 0

MEMORY_DISK = Path("/dev/shm")
NEEDED_BYTES = 2 * 10**9  # plenty: what a test has written is deleted when it has passed


def pytest_configure(config: pytest.Config) -> None:
    """Every day, what tests write is in memory, where there is room for it: test_token_limit.py alone syncs 13,000
    times, and on a busy disk waits for that most of its time. A soak is on the disk; TMPDIR names any other place."""
    forked.always_with_workers = config.getoption("soak")
    if config.getoption("soak") or "TMPDIR" in os.environ or not MEMORY_DISK.is_dir():
        return
    if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > NEEDED_BYTES:
        os.environ["TMPDIR"] = str(MEMORY_DISK)  # for the other processes of xdist, and for commands
        tempfile.tempdir = None


def pytest_unconfigure() -> None:
    forked.close()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on the disk, always: where memory is measured, files must not be part of it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def handlers_kept() -> Iterator[None]:
    """A test that runs a command in this process leaves the signals to the next one as they were."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in handlers.items():
        signal.signal(number, handler)


# Outside tests/layouts these represent all of them in `make test`: shards of NumPy, a header before tokens, and a file
# that grows, with an index beside it.
THREE_LAYOUTS = ("build-nanogpt", "llm.c", "megatron")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Put a test into the step where it runs. `@pytest.mark.full` is for the second step, `make test-all`;
    `@pytest.mark.full(but=[…])` leaves the parameters with these ids in the first one, `make test`."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return
    kept = [name for mark in item.iter_markers("full") for name in mark.kwargs.get("but", [])]
    if any(fnmatch(item.callspec.id, name) for name in kept):
        item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "full"]
    if "layouts" not in item.path.parts:
        values = item.callspec.params.values()
        layouts = {str(getattr(value, "layout", value)) for value in values} & LAYOUTS.keys()
        if layouts - set(THREE_LAYOUTS):
            item.add_marker("full")


# Files whose tests take longest, the first ones most.
LONG = [
    "test_kill.py",
    "test_same_bytes.py",
    "test_vocabularies.py",
    "test_local.py",
    "test_kill_bucket.py",
    "test_mixed_datasets.py",
    "test_deaths.py",
    "test_layouts.py",
    "test_kill_layouts.py",
    "test_transport.py",
    "test_bucket_faults.py",
    "test_bucket_shards.py",
    "test_hub.py",
    "test_poison.py",
    "test_hub_faults.py",
    "test_bucket_output.py",
    "test_unwritten.py",
    "test_large_listing.py",
    "test_memory.py",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each of several processes, which begin with equal parts of the list, begins with its share of the long files and
    ends with short tests: then none of them is waited for at the end."""
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes == 1:
        return
    files: dict[str, list[pytest.Item]] = {name: [] for name in LONG}
    short: list[pytest.Item] = []
    for item in items:
        files.get(item.path.name, short).append(item)
    ordered: list[pytest.Item] = []
    for number in range(processes):
        part = [item for name in LONG[number::processes] for item in files[name]]
        room = (len(items) - len(ordered)) // (processes - number) - len(part)
        ordered += [*part, *short[: max(0, room)]]
        del short[: max(0, room)]
    items[:] = [*ordered, *short]
