"""Choose who does a run's work: processes on this machine, or tasks on a Ray cluster (`--executor`)."""

from __future__ import annotations

from fineweb_shards.events import Observer
from fineweb_shards.executors.base import Executor
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.system.memory_guard import MemoryGuard

# Of a cluster that a run starts on this machine, for each byte of text that may be in flight: tokens that are
# not written yet may fill half of it.
_STORE_COPIES = 2


def check_executor(config: Config) -> None:
    """Raise UsageError if the executor can't be had, before anything is written."""
    if config.executor == "ray":
        from fineweb_shards.executors.ray.cluster import check_reachable, find_address, load_ray

        load_ray()
        check_reachable(find_address(config.ray_address))


def make_executor(job: Job, spec: WorkerSpec, manifest: Manifest, observer: Observer) -> Executor:
    """Return the executor of a job, which is not started yet."""
    budget = job.budget
    if job.config.executor == "local":
        guard = MemoryGuard(budget.worker_bytes)
        return LocalExecutor(spec, budget.workers, budget.window_bytes, guard, manifest.quarantined, observer)
    # Here, because Ray's part is an extra.
    from fineweb_shards.executors.ray.cluster import Cluster
    from fineweb_shards.executors.ray.executor import RayExecutor

    store_bytes = _STORE_COPIES * budget.window_bytes
    return RayExecutor(
        spec,
        Cluster(job.config.ray_address, budget.workers, store_bytes, observer),
        out=job.output.store.location,
        shared_folder=job.output.store.grows_in_place,
        window_bytes=budget.window_bytes,
        most_tasks=job.config.workers,
        quarantined=manifest.quarantined,
        observer=observer,
    )
