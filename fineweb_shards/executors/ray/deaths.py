"""Say what it means that a task of Ray's has failed without an answer.

Whatever ended it, a document is never suspected for it: where that matters, documents are encoded in a
process whose exit code is seen (one_by_one_process.py). Only a shortage of memory is told apart, because the
batch is then tried alone.
"""

from __future__ import annotations

from fineweb_shards.errors import WorkerError
from fineweb_shards.executors.exit_cause import Death, DeathKind
from fineweb_shards.executors.ray.api import load_ray

LOST = Death(DeathKind.KILLED, "was on a node that is gone")


def explain_failure(error: BaseException) -> Death:
    """Return how a task died; WorkerError if another try would fail as well."""
    exceptions = load_ray().exceptions
    match error:
        case exceptions.OutOfMemoryError():
            return Death(DeathKind.OUT_OF_MEMORY, "was ended by Ray, because its node was short of memory")
        case exceptions.NodeDiedError() | exceptions.ObjectLostError():
            return LOST
        case exceptions.WorkerCrashedError() | exceptions.RayActorError():
            return Death(DeathKind.KILLED, "ended unexpectedly")
        case exceptions.TaskCancelledError():
            return Death(DeathKind.KILLED, "was cancelled")
        case exceptions.RayTaskError():
            raise WorkerError(
                f"A node could not run a task: {_last_line(error)}",
                "Every node needs fineweb_shards[ray], in the version of this one, and the same Python.",
            ) from error
        case exceptions.RayError():
            return Death(DeathKind.KILLED, f"failed: {_last_line(error)}")
    raise error


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
