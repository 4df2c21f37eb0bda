"""Connect to a Ray cluster or start one on this machine; list its nodes and explain why its tasks fail.

Ray prints, installs a signal handler and reports its usage. None of this may disturb a run: Ray's output goes to the
log, and the signal handlers stay ours.

Nor may a run change how Ray behaves later. A cluster started here uses Ray's token authentication with a token known
only to its own processes. Left alone, Ray would save a token as `~/.ray/auth_token`, and once that file exists `ray
start --head` demands a token from all users.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fineweb_shards
from fineweb_shards.errors import UsageError, WorkerError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.task import Death, DeathKind
from fineweb_shards.system.machine import environment
from fineweb_shards.system.shell_commands import install_command
from fineweb_shards.system.standard_streams import without_errors_on_screen

LOCAL = "local"
_SMALLEST_STORE_BYTES = 96 * 2**20  # Ray refuses less than 75 MiB
_CONNECT_SECONDS = 10.0
_NO_CLUSTER = (
    "Start a cluster with `ray start --head`, which prints its address; or omit --ray-address, and the "
    "run starts a cluster on this machine."
)
# For this process and Ray's: no usage reports, no library errors on the terminal, no second message for an error.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
# For a cluster started here. The token stays the same for the life of the process, because Ray caches it.
_LOCAL_ENVIRONMENT = {
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_gcs_server_port_wait_time_s": "120",  # the default of 30 is too short on a busy machine
}
_AUTH_MODE = "RAY_AUTH_MODE"
_SET_BY_RAY = (_AUTH_MODE,)  # removed again, because it would affect the next cluster that is started or joined

LOST = Death(DeathKind.KILLED, "was on a lost node")
_CAN_NOT_IMPORT = re.compile(r"^(ModuleNotFoundError|ImportError): |failed to import on the worker", re.M)
_ADDRESS = re.compile(r"\bip=([^,)\s]+)")


def load_ray() -> Any:
    """Import Ray, which is an extra; UsageError if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"--executor ray needs the package ray, which can't be imported: {error}.",
            f"Install it: {install_command('ray')}. If Ray has no wheel for this platform or Python, use "
            "--executor local.",
        ) from error


@dataclass(frozen=True)
class Node:
    """A node of the cluster that can run tasks."""

    id: str
    cores: float
    store_bytes: int


class Cluster:
    """A connection to a cluster, or one with `cores` and `store_bytes` that it starts on this machine and ends."""

    def __init__(self, address: str, cores: int, store_bytes: int, observer: Observer) -> None:
        self._address = find_address(address)
        self._cores, self._store_bytes = cores, max(_SMALLEST_STORE_BYTES, store_bytes)
        self._observer = observer
        self._folder: str | None = None  # of a cluster started here
        self.is_shared = False  # the process was already connected, and stays so

    def connect(self) -> None:
        """Connect, or start the cluster; UsageError if there is none at the address."""
        ray = load_ray()
        handler = _LogHandler(self._observer)
        logger = logging.getLogger("ray")
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
        # Ray prints messages about nodes and workers to standard output with a separate function.
        module: Any = importlib.import_module("ray._private.worker")
        if hasattr(module, "print_to_stdstream"):
            module.print_to_stdstream = handler.take_lines
        self.is_shared = ray.is_initialized()
        if self.is_shared:
            return
        options: dict[str, Any] = {"address": self._address, "log_to_driver": False, "configure_logging": False}
        variables = _ENVIRONMENT
        if self._address == LOCAL:
            # A short name, because the paths of sockets are limited to 107 bytes.
            self._folder = options["_temp_dir"] = tempfile.mkdtemp(prefix="fws-ray-")
            options |= {"num_cpus": self._cores, "object_store_memory": self._store_bytes, "include_dashboard": False}
            variables = _ENVIRONMENT | _LOCAL_ENVIRONMENT
        try:
            with _handlers_kept(), environment(variables, _SET_BY_RAY), without_errors_on_screen():
                ray.init(**options)
        except Exception as error:
            if self._address == LOCAL:  # Ray has no class of its own for processes that are too slow
                raise WorkerError(
                    f"Ray could not be started on this machine: {_lines_of(error)[0]}",
                    "Its processes may be too slow on a busy machine. Rerun the same command later, or with "
                    "--executor local, which needs no Ray.",
                ) from error
            if isinstance(error, (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError)):
                raise _refusal(self._address, error) from error
            raise

    def nodes(self) -> list[Node]:
        """Return the live nodes with cores for tasks."""
        live = [(node["NodeID"], node["Resources"]) for node in load_ray().nodes() if node["Alive"]]
        return [Node(name, has["CPU"], int(has.get("object_store_memory", 0))) for name, has in live if has.get("CPU")]

    def close(self) -> None:
        """Disconnect, which ends the tasks and objects of the run, and a cluster started here."""
        if not self.is_shared:
            with _handlers_kept():
                load_ray().shutdown()
        if self._folder is not None:  # sockets and logs; Ray's last processes may still write some of them
            shutil.rmtree(self._folder, ignore_errors=True)


def find_address(given: str) -> str:
    """Return the address of the cluster, `given` or from the environment; UsageError if it can't be used."""
    address = given or os.environ.get("RAY_ADDRESS", LOCAL)
    if address.startswith("ray://"):
        raise UsageError(
            f"--ray-address {address}: a Ray Client connection would send every message through one proxy, and "
            "the run would end if that connection broke.",
            "Start the run on the cluster itself: ray job submit --address http://HOST:8265 -- "
            "fineweb-shards build … --executor ray --ray-address auto",
        )
    return address


def _refusal(address: str, error: Exception) -> UsageError:
    exceptions = load_ray().exceptions
    is_unauthenticated = isinstance(error, getattr(exceptions, "AuthenticationError", ()))  # from 2.52 on
    # Ray tries twenty times; then only the text of the error's cause has the reason.
    if is_unauthenticated or "AuthenticationError" in str(error.__cause__):
        return UsageError(
            f"--ray-address {address}: this cluster uses Ray's token authentication and refuses this run: "
            "its token is missing or wrong.",
            "Copy the head's ~/.ray/auth_token to every node, and put RAY_AUTH_MODE=token before this "
            "command and before each `ray start --address=…`. Or start all of Ray without it: "
            "RAY_AUTH_MODE=disabled ray start …",
        )
    reason = _lines_of(error)[0]
    if address == "auto" and isinstance(error, ConnectionError):
        reason = "no cluster runs on this machine."
    return UsageError(f"--ray-address {address}: {reason}", _NO_CLUSTER)


def _lines_of(error: BaseException) -> list[str]:
    """Return the non-empty lines of an error's text; at least one."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def check_reachable(address: str) -> None:
    """Raise UsageError if no cluster answers there, or if it refuses this run. Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return  # one of Ray's keywords: `auto`, `local`
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--ray-address {address}: nothing answers there ({reason}).", _NO_CLUSTER) from None
    ray = load_ray()
    # In the mode `token` without a token, GcsClient would end the process; `init` reports it instead.
    if ray.is_initialized() or os.environ.get(_AUTH_MODE, "").lower() == "token":
        return
    client = getattr(importlib.import_module("ray._raylet"), "GcsClient", None)
    try:
        with environment(_ENVIRONMENT, _SET_BY_RAY), without_errors_on_screen():
            if client is not None:
                client(address=address)
    except ray.exceptions.RayError as error:
        raise _refusal(address, error) from error


def explain_failure(error: BaseException) -> Death:
    """Return how a Ray task without a result died; raise UsageError or WorkerError, naming the node, if a retry would
    fail as well. Such a death never makes a document suspect: to find one, documents are encoded in a process whose
    exit code is known (`RunProcess` in worker.py). Only a shortage of memory is distinguished, because the batch is
    then tried alone."""
    exceptions = load_ray().exceptions
    match error:
        case exceptions.OutOfMemoryError():
            return Death(DeathKind.OUT_OF_MEMORY, "was ended by Ray because its node was short of memory")
        case (
            exceptions.NodeDiedError()
            | exceptions.ObjectLostError()
            | exceptions.ActorUnschedulableError()
            | exceptions.TaskUnschedulableError()
        ):
            return LOST
        case exceptions.RayTaskError() | exceptions.RayActorError() if _CAN_NOT_IMPORT.search(str(error)):
            raise UsageError(
                f"Node {_node_of(error)} can't load fineweb_shards: {_lines_of(error)[-1]}",
                f"Install fineweb_shards[ray] {fineweb_shards.__version__} on every node, for Python "
                f"{platform.python_version()} as on this one.",
            ) from error
        case exceptions.RayTaskError():
            raise WorkerError(f"Node {_node_of(error)} could not run a task: {_lines_of(error)[-1]}") from error
        case exceptions.RayError():  # its process crashed, or it was cancelled
            return Death(DeathKind.KILLED, f"ended unexpectedly: {_lines_of(error)[0]}")
    raise error


def _node_of(error: BaseException) -> str:
    """Return the name and address of the node that an error of Ray's comes from, found in its text."""
    found = _ADDRESS.search(str(error))
    if found is None:
        return "(unknown)"
    names = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in load_ray().nodes()}
    return f"{names.get(found[1], '')} ({found[1]})".strip()


class _LogHandler(logging.Handler):
    """Writes Ray's messages to the run's log."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        self.take_lines({"lines": [record.getMessage()]})

    def take_lines(self, data: dict[str, Any], ignore_prefix: bool = False) -> None:
        """Receive Ray's output: a dictionary with `lines`."""
        for text in data.get("lines", []):
            lines = str(text).strip().splitlines()  # after the first line come dumps of a node's state
            if lines:
                self._observer.tell(Event("ray", lines[0][:500], loud=False))


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore our signal handlers afterwards. If Ray's handler of SIGTERM exits meanwhile, call ours instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    exit_of_ray: SystemExit | None = None
    try:
        yield
    except SystemExit as error:
        exit_of_ray = error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if exit_of_ray is not None:
        signal.raise_signal(signal.SIGTERM)
        raise exit_of_ray
