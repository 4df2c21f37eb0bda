"""Compute what a build takes on machines that are not here: requests, bytes, hours, memory, and what binds.

Pure arithmetic. A resource (cores, the line in, the line out, the driver, the hub's quota, where the shards
are written) would need a time of its own for all of the work. They work at the same time, so the longest of
these times is that of the build, and its resource is the one that binds.

What is measured and what is assumed: docs/cluster.md. Not counted: start and end of a run, waits and retries,
and lines that all nodes share.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fineweb_shards.buckets.upload_file import part_bytes_for
from fineweb_shards.store.output import checkpoints_at_once

# The time of the driver's processor, measured by benchmarks/control_plane.py: for each batch that it gives
# out and orders, and for each record or file in a manifest that it saves.
LOCAL_BATCH_SECONDS = 330e-6
RAY_BATCH_SECONDS = 660e-6
MANIFEST_ITEM_SECONDS = 3.5e-6
MANIFEST_ITEM_BYTES = 490
# How long a small object takes, and how fast a single connection is: assumed, as it is usual for S3. The
# driver waits for each manifest.
BUCKET_WRITE_SECONDS = 0.15
BUCKET_CONNECTION_BYTES_PER_SECOND = 85e6
# What is left, with Ray, of the speed of the local executor on the same cores: measured by make bench-ray on
# one machine, 91 % by processor time.
RAY_EFFICIENCY = 0.9
# The speed of a core, reading and encoding, from a hub on the same two cores (docs/architecture.md).
CORE_TOKENS_PER_SECOND = 20e6

# How the Ray executor divides the work (executors/ray/executor.py).
RAY_REMOTE_TASKS_PER_CORE = 2
RAY_BATCHES = 4  # in a task, where input is read from a disk
RAY_REMOTE_BATCHES = 8
_RAY_QUEUE = 2  # tasks that run or wait, for each that can run

QUOTA_WINDOW_SECONDS = 300
ADDRESS_SECONDS = 3600  # a signed address holds for about an hour
_FILES_A_LISTING = 500
_API_REQUESTS = 7  # besides the listings
_CARD_REQUESTS = 5  # for the dataset's card, and what may stand beside it
_FOOTER_REQUESTS = 2
_UPLOAD_REQUESTS = 3  # begin, complete, look at it
_BITS = 8


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines of one kind. Without Ray it is a single one."""

    nodes: int
    cores: int  # of a node
    gbit: float  # of a node's line, a second, in each direction
    has_ray: bool
    write_bytes_per_second: float | None = None  # that a disk, shared folder or bucket takes; None: as many

    @property
    def workers(self) -> int:
        return self.nodes * self.cores

    @property
    def line_bytes_per_second(self) -> float:
        """What the lines of all nodes bring together."""
        return self.nodes * self.gbit * 1e9 / _BITS


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be read and written."""

    tokens: int
    input_bytes: int
    files: int
    batches: int
    footer_bytes: int  # of one file; every process that reads a file reads its footer
    output_bytes: int
    shard_tokens: int
    shard_bytes: int
    by_requests: bool  # the input is fetched from the hub or a bucket
    to_bucket: bool
    shares_folders: bool  # all nodes see folders that are on another machine
    address_quota: int | None  # requests that the hub allows in five minutes; None: it is not on the hub

    @property
    def shards(self) -> int:
        return -(-self.tokens // self.shard_tokens)

    @property
    def from_network(self) -> bool:
        return self.by_requests or self.shares_folders

    @property
    def to_network(self) -> bool:
        return self.to_bucket or self.shares_folders


@dataclass(frozen=True, slots=True)
class Footprint:
    """What processes take of a machine, as it is planned for a run (budget.py, output.py)."""

    process_bytes: int  # one that encodes, without the batches that it has
    driver_bytes: int
    batches_bytes: int  # of the batches in flight, on a machine of its own without Ray
    shards_at_once: int  # that are being made


@dataclass(frozen=True, slots=True)
class Requests:
    """How often somebody is asked for something."""

    api: int  # of the hub
    addresses: int  # of the hub: where a file is
    ranges: int  # of the hub's CDN, or of a bucket
    bucket: int  # to write


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource, and the time that it needs for all of the work."""

    resource: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a build takes."""

    requests: Requests
    fetched_bytes: int  # footers included
    moved_bytes: int  # between nodes
    written_bytes: int  # the manifests included
    limits: tuple[Limit, ...]  # the longest first
    memory_bytes: int  # of a node, the object store included
    object_store_bytes: int  # of a node
    scratch_bytes: int  # of a node: for the shards that are being made for a bucket

    @property
    def binding(self) -> Limit:
        return self.limits[0]

    @property
    def seconds(self) -> float:
        return self.binding.seconds


def forecast(work: Work, machines: Machines, footprint: Footprint, core_tokens_per_second: float) -> Forecast:
    """Return what a build takes. `core_tokens_per_second` is for a core with the local executor."""
    footers = _footers_read(work, machines)
    fetched = work.input_bytes + footers * work.footer_bytes if work.from_network else 0
    moved = round(work.output_bytes * (1 - 1 / machines.nodes))  # few blocks are on the node that writes them
    written = work.output_bytes + sum(_save_sizes(work, machines)) * MANIFEST_ITEM_BYTES
    efficiency = RAY_EFFICIENCY if machines.has_ray else 1.0
    line = machines.line_bytes_per_second
    limits = [
        Limit("the cores", work.tokens / (machines.workers * efficiency * core_tokens_per_second)),
        Limit("the network in", (fetched + moved) / line),
        Limit("the network out", ((written if work.to_network else 0) + moved) / line),
        _driver_limit(work, machines),
    ]
    if machines.write_bytes_per_second is not None:
        limits.append(Limit("the writes", written / machines.write_bytes_per_second))
    addresses = 0
    if work.address_quota is not None:
        addresses = _address_requests(work, max(limit.seconds for limit in limits))
        limits.append(Limit("the hub's quota", _quota_seconds(addresses, work.address_quota)))
    object_store_bytes = _object_store_bytes(work, machines, footprint)
    return Forecast(
        Requests(
            api=0 if work.address_quota is None else _API_REQUESTS + ceil(work.files / _FILES_A_LISTING),
            addresses=addresses,
            ranges=work.batches + _FOOTER_REQUESTS * footers if work.by_requests else 0,
            bucket=work.shards * _requests_a_shard(work) if work.to_bucket else 0,
        ),
        fetched_bytes=fetched,
        moved_bytes=moved,
        written_bytes=written,
        limits=tuple(sorted(limits, key=lambda limit: -limit.seconds)),
        memory_bytes=_processes_bytes(work, machines, footprint) + object_store_bytes,
        object_store_bytes=object_store_bytes,
        scratch_bytes=footprint.shards_at_once * work.shard_bytes if work.to_bucket else 0,
    )


def _processes_a_core(work: Work, machines: Machines) -> int:
    return RAY_REMOTE_TASKS_PER_CORE if machines.has_ray and work.by_requests else 1


def _batches_a_task(work: Work, machines: Machines) -> int:
    """Return how many neighbouring batches a process does."""
    if not machines.has_ray:
        return 1
    return RAY_REMOTE_BATCHES if work.by_requests else RAY_BATCHES


def _footers_read(work: Work, machines: Machines) -> int:
    """Return how many footers are read: of each file by the driver, and by each process that has a part."""
    if not work.footer_bytes:
        return 0
    parts_a_file = ceil(work.batches / work.files / _batches_a_task(work, machines))
    processes = machines.workers * _processes_a_core(work, machines)
    return work.files * (1 + min(processes, parts_a_file))


def _save_sizes(work: Work, machines: Machines) -> list[int]:
    """Return how many records and files each saved manifest has. Shards that are finished while one is being
    saved are recorded together by the next, so if saving is what takes long, there are few."""
    step = checkpoints_at_once(machines.workers)
    return [work.files + min(work.shards, first + step) for first in range(0, work.shards, step)]


def _driver_limit(work: Work, machines: Machines) -> Limit:
    """Return how long the driver takes, named after what it does for longer: it orders the batches, and it
    saves manifests, one thing after the other."""
    order_seconds = work.batches * (RAY_BATCH_SECONDS if machines.has_ray else LOCAL_BATCH_SECONDS)
    saves = _save_sizes(work, machines)
    items = sum(saves)
    save_seconds = items * MANIFEST_ITEM_SECONDS
    if work.to_bucket:
        save_seconds += len(saves) * BUCKET_WRITE_SECONDS
        save_seconds += items * MANIFEST_ITEM_BYTES / BUCKET_CONNECTION_BYTES_PER_SECOND
    name = "the driver's saves" if save_seconds > order_seconds else "the driver"
    return Limit(name, order_seconds + save_seconds)


def _address_requests(work: Work, seconds: float) -> int:
    """Return how often the hub is asked where a file is: once, and again when the address has expired."""
    renewals = int(seconds / max(1, work.files) / ADDRESS_SECONDS)
    return _CARD_REQUESTS + work.files * (1 + renewals)


def _quota_seconds(requests: int, quota: int) -> float:
    """Return how long the hub makes one wait: until the window begins that allows the last request."""
    return (ceil(requests / quota) - 1) * QUOTA_WINDOW_SECONDS


def _requests_a_shard(work: Work) -> int:
    """Return how many requests the upload of a shard takes, and its record in the manifest."""
    parts = -(-work.shard_bytes // part_bytes_for(work.shard_bytes))
    upload = parts + _UPLOAD_REQUESTS if parts > 1 else 2
    return upload + 1


def _processes_bytes(work: Work, machines: Machines, footprint: Footprint) -> int:
    """Return what the processes of a node take, if the driver is there, too."""
    processes = machines.cores * _processes_a_core(work, machines)
    in_flight = footprint.batches_bytes
    if machines.has_ray:  # a task fetches all its batches at once
        in_flight = processes * _batches_a_task(work, machines) * work.input_bytes // max(1, work.batches)
    return footprint.driver_bytes + processes * footprint.process_bytes + in_flight


def _object_store_bytes(work: Work, machines: Machines, footprint: Footprint) -> int:
    """Return what a node's part of Ray's object store holds at the most: the tokens of all tasks that may be
    done before the first one is, and those of the shards that are being written, there and where they were
    made. If half of the store is less than that, the executor waits instead."""
    if not machines.has_ray:
        return 0
    tasks = _RAY_QUEUE * machines.cores * _processes_a_core(work, machines)
    blocks_bytes = tasks * _batches_a_task(work, machines) * work.output_bytes // max(1, work.batches)
    shards_bytes = 2 * footprint.shards_at_once * work.shard_bytes // machines.nodes
    return min(blocks_bytes, work.output_bytes) + min(shards_bytes, work.output_bytes)
