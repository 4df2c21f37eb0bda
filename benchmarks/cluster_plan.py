"""Print the table of docs/cluster.md: how long FineWeb-Edu's samples take by the size of a cluster.

Each resource (cores, the line in, the line out, the driver) would need a time of its own for all of the work. They work
at the same time, so the longest of these times is that of the build. What is measured and what is assumed:
docs/cluster.md. From the hub, into a folder on one machine, into a bucket or a shared folder from several.

    python benchmarks/cluster_plan.py
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fineweb_edu import FOOTER_BYTES, SAMPLES, SHARD_TOKENS, Sample

from fineweb_shards.units import show_seconds
from fineweb_shards.writing.placement import checkpoints_at_once

# Measured: a core that reads and encodes, what is left of it with Ray, and the driver's processor time for each batch,
# and for each record or file in a manifest that it saves (benchmarks/control_plane.py).
CORE_TOKENS_PER_SECOND = 20e6
RAY_EFFICIENCY = 0.9
LOCAL_BATCH_SECONDS, RAY_BATCH_SECONDS = 330e-6, 660e-6
MANIFEST_ITEM_SECONDS, MANIFEST_ITEM_BYTES = 3.5e-6, 490
# Assumed, as it is usual for S3: how long a small object takes, and how fast a single connection is.
BUCKET_WRITE_SECONDS = 0.15
BUCKET_CONNECTION_BYTES_PER_SECOND = 85e6
# How the Ray executor divides the work from a hub (executors/ray/executor.py).
RAY_TASKS_PER_CORE, RAY_BATCHES_PER_TASK = 2, 8
TOKEN_BYTES = 2


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines of one kind. Without Ray it is a single one; with it, shards leave the node."""

    nodes: int
    cores: int  # of a node
    gbit: float  # of a node's line, per second, in each direction
    has_ray: bool = True
    shares_folders: bool = False


MACHINES = {
    "1 machine, 16 cores, 1 Gbit/s": Machines(1, 16, 1, has_ray=False),
    "1 machine, 64 cores, 10 Gbit/s": Machines(1, 64, 10, has_ray=False),
    "4 nodes, 16 cores, 10 Gbit/s": Machines(4, 16, 10),
    "10 nodes, 16 cores, 1 Gbit/s": Machines(10, 16, 1),
    "10 nodes, 16 cores, 10 Gbit/s": Machines(10, 16, 10),
    "100 nodes, 16 cores, 10 Gbit/s": Machines(100, 16, 10),
    "10 nodes, shared folder": Machines(10, 16, 10, shares_folders=True),
    "100 nodes, shared folder": Machines(100, 16, 10, shares_folders=True),
}


def seconds_by_resource(sample: Sample, machines: Machines) -> dict[str, float]:
    """How long each resource would take for all of the work."""
    workers = machines.nodes * machines.cores
    line_bytes_per_second = machines.nodes * machines.gbit * 1e9 / 8
    tasks = RAY_TASKS_PER_CORE if machines.has_ray else 1
    parts_per_file = ceil(sample.batches_a_file / (RAY_BATCHES_PER_TASK if machines.has_ray else 1))
    # The driver reads the footer of each file, and so does every process that has a part of it.
    fetched = sample.size_bytes + sample.files * (1 + min(workers * tasks, parts_per_file)) * FOOTER_BYTES
    output_bytes = sample.tokens * TOKEN_BYTES
    moved = output_bytes * (1 - 1 / machines.nodes)  # few blocks are on the node that writes them
    step = checkpoints_at_once(workers)
    saves = [sample.files + min(sample.shards, first + step) for first in range(0, sample.shards, step)]
    driver = sample.batches * (RAY_BATCH_SECONDS if machines.has_ray else LOCAL_BATCH_SECONDS)
    driver += sum(saves) * MANIFEST_ITEM_SECONDS
    if machines.has_ray and not machines.shares_folders:
        driver += len(saves) * BUCKET_WRITE_SECONDS
        driver += sum(saves) * MANIFEST_ITEM_BYTES / BUCKET_CONNECTION_BYTES_PER_SECOND
    written = output_bytes + sum(saves) * MANIFEST_ITEM_BYTES if machines.has_ray else 0
    efficiency = RAY_EFFICIENCY if machines.has_ray else 1.0
    return {
        "the cores": sample.tokens / (workers * efficiency * CORE_TOKENS_PER_SECOND),
        "the network in": (fetched + moved) / line_bytes_per_second,
        "the network out": (written + moved) / line_bytes_per_second,
        "the driver": driver,
    }


def main() -> None:
    print(f"| {SHARD_TOKENS // 10**6}M tokens per shard | {' | '.join(SAMPLES)} |")
    print("|---" * (1 + len(SAMPLES)) + "|")
    for name, machines in MACHINES.items():
        cells = []
        for sample in SAMPLES.values():
            times = seconds_by_resource(sample, machines)
            seconds, resource = max((value, key) for key, value in times.items())
            cells.append(f"{show_seconds(seconds)}, {resource}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
