"""Connect to a Ray cluster, or start one on this machine, and see its nodes.

Ray prints, installs a signal handler and wants to report its usage. None of it may disturb a run: what it
says goes to the log, and signals are handled as before.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fineweb_shards.errors import UsageError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.ray.api import load_ray

LOCAL = "local"
_SMALLEST_STORE_BYTES = 96 * 2**20  # Ray refuses less than 75 MiB
_CLIENT = "ray://"
_AUTO = "auto"
_CONNECT_SECONDS = 10.0
_NO_CLUSTER = (
    "Start a cluster with `ray start --head`, which prints its address; or leave --ray-address out, and a "
    "run starts its own on this machine."
)
# For this process and, if it starts them, Ray's own: no report to its makers, no errors of a library on the
# terminal, no second message for an error that is handled here.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}


@dataclass(frozen=True)
class Node:
    """A node of the cluster that can do tasks."""

    id: str
    cores: float
    store_bytes: int


class Cluster:
    """A connection to a cluster, from `connect` on. `cores` and `store_bytes` are for one that is started
    here, and goes when it is closed."""

    def __init__(self, address: str, cores: int, store_bytes: int, observer: Observer) -> None:
        self._address = find_address(address)
        self._cores = cores
        self._store_bytes = max(_SMALLEST_STORE_BYTES, store_bytes)
        self._observer = observer
        self._folder: str | None = None  # of a cluster that was started here
        self.is_shared = False  # the process was connected before, and stays so

    def connect(self) -> None:
        """Connect, or start the cluster; UsageError if there is none at the address."""
        ray = load_ray()
        self._redirect_messages()
        self.is_shared = ray.is_initialized()
        if self.is_shared:
            return
        with _handlers_kept(), _environment(_ENVIRONMENT), _standard_error_dropped():
            try:
                ray.init(**self._arguments(), log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[0]
                if self._address == _AUTO and isinstance(error, ConnectionError):
                    reason = "no cluster runs on this machine."
                raise UsageError(f"--ray-address {self._address}: {reason}", _NO_CLUSTER) from error

    def _arguments(self) -> dict[str, Any]:
        if self._address != LOCAL:
            return {"address": self._address}
        # A short name, because the names of sockets are limited to 107 bytes.
        self._folder = tempfile.mkdtemp(prefix="fws-ray-")
        return {
            "address": LOCAL,
            "num_cpus": self._cores,
            "object_store_memory": self._store_bytes,
            "include_dashboard": False,
            "_temp_dir": self._folder,
        }

    def _redirect_messages(self) -> None:
        """Have what Ray would print go to the log."""
        handler = _LogHandler(self._observer)
        logger = logging.getLogger("ray")
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
        # Messages about nodes and workers are printed to standard output by a function of its own.
        module: Any = importlib.import_module("ray._private.worker")
        if hasattr(module, "print_to_stdstream"):
            module.print_to_stdstream = handler.take_lines

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive and have cores for tasks."""
        nodes = []
        for node in load_ray().nodes():
            resources = node["Resources"]
            if node["Alive"] and resources.get("CPU"):
                store_bytes = int(resources.get("object_store_memory", 0))
                nodes.append(Node(node["NodeID"], resources["CPU"], store_bytes))
        return nodes

    def close(self) -> None:
        """Disconnect. The tasks and objects of the run go with the connection, and a cluster that was started
        here goes as well."""
        if not self.is_shared:
            with _handlers_kept():
                load_ray().shutdown()
        if self._folder is not None:  # sockets and logs; Ray's last processes may still write some of them
            shutil.rmtree(self._folder, ignore_errors=True)


def find_address(given: str) -> str:
    """Return the address of the cluster, `given` or the environment's; UsageError if it can't be used."""
    address = given or os.environ.get("RAY_ADDRESS", LOCAL)
    if address.startswith(_CLIENT):
        raise UsageError(
            f"--ray-address {address}: a client connection would send every message of the run through one "
            "proxy, and lose the run with the line.",
            "Start the run on the cluster itself: ray job submit --address http://HOST:8265 -- "
            "fineweb-shards build … --executor ray --ray-address auto",
        )
    return address


def check_reachable(address: str) -> None:
    """Raise UsageError if nothing answers at an address. Ray itself would wait for minutes, and hear no
    Ctrl-C."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return  # a word that Ray knows: `auto`, `local`
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--ray-address {address}: nothing answers there ({reason}).", _NO_CLUSTER) from None


class _LogHandler(logging.Handler):
    """Writes Ray's messages to the run's log."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())

    def take_lines(self, data: dict[str, Any], ignore_prefix: bool = False) -> None:
        """Receive what Ray would print: a dictionary with `lines`."""
        for text in data.get("lines", []):
            self._tell(str(text))

    def _tell(self, text: str) -> None:
        lines = text.strip().splitlines()  # the rest are dumps of a node's state
        if lines:
            self._observer.tell(Event("ray", lines[0][:500], loud=False))


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the handlers of signals. Ray's handler of SIGTERM exits; if that happens meanwhile, ours is called
    in its place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    try:
        yield
    except SystemExit:
        restore()
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        restore()


@contextlib.contextmanager
def _standard_error_dropped() -> Iterator[None]:
    """Drop what is written to standard error, also by libraries that know it as a number."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while, except those that somebody has set."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
