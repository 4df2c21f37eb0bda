"""Say what it means that a task of Ray's has failed without an answer.

Whatever ended it, a document is never suspected for it: where that matters, documents are encoded in a
process whose exit code is seen (one_by_one_process.py). Only a shortage of memory is told apart, because the
batch is then tried alone.
"""

from __future__ import annotations

import platform
import re

import fineweb_shards
from fineweb_shards.errors import UsageError, WorkerError
from fineweb_shards.executors.exit_cause import Death, DeathKind
from fineweb_shards.executors.ray.api import load_ray

LOST = Death(DeathKind.KILLED, "was on a node that is gone")
_CAN_NOT_IMPORT = re.compile(r"^(ModuleNotFoundError|ImportError): |failed to import on the worker", re.M)
_ADDRESS = re.compile(r"\bip=([^,)\s]+)")


def explain_failure(error: BaseException) -> Death:
    """Return how a task died; UsageError or WorkerError, with its node, if another try would fail as well."""
    exceptions = load_ray().exceptions
    match error:
        case exceptions.OutOfMemoryError():
            return Death(DeathKind.OUT_OF_MEMORY, "was ended by Ray, because its node was short of memory")
        case (
            exceptions.NodeDiedError()
            | exceptions.ObjectLostError()
            | exceptions.ActorUnschedulableError()
            | exceptions.TaskUnschedulableError()
        ):
            return LOST
        case exceptions.RayTaskError() | exceptions.RayActorError() if _CAN_NOT_IMPORT.search(str(error)):
            raise UsageError(
                f"Node {_node_of(error)} can't load fineweb_shards: {_last_line(error)}",
                f"Install fineweb_shards[ray] {fineweb_shards.__version__} on every node, for Python "
                f"{platform.python_version()} as on this one.",
            ) from error
        case exceptions.RayTaskError():
            raise WorkerError(f"Node {_node_of(error)} could not run a task: {_last_line(error)}") from error
        case exceptions.WorkerCrashedError() | exceptions.RayActorError():
            return Death(DeathKind.KILLED, "ended unexpectedly")
        case exceptions.TaskCancelledError():
            return Death(DeathKind.KILLED, "was cancelled")
        case exceptions.RayError():
            return Death(DeathKind.KILLED, f"failed: {_last_line(error)}")
    raise error


def _node_of(error: BaseException) -> str:
    """Return the name and the address of the node that an error of Ray's comes from: only its text has it."""
    found = _ADDRESS.search(str(error))
    if found is None:
        return "(unknown)"
    names = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in load_ray().nodes()}
    return f"{names.get(found[1], '')} ({found[1]})".strip()


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
