"""Print the tables of docs/cluster.md: what FineWeb-Edu's samples take on machines that are not here.

It is what `plan` computes, with the sizes of the samples in fineweb_edu.py and a Hugging Face token of a free
account: into a folder on one machine, into a bucket or a shared folder on several.

    python benchmarks/cluster_plan.py
"""

from __future__ import annotations

from fineweb_edu import FOOTER_BYTES, SAMPLES, SHARD_TOKENS, Sample

from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.shard_format import ShardFormat
from fineweb_shards.run.budget import COPIES, PARENT_BYTES, process_bytes, useful_window_bytes
from fineweb_shards.run.cluster_plan import (
    CORE_TOKENS_PER_SECOND,
    Footprint,
    Forecast,
    Machines,
    Work,
    forecast,
)
from fineweb_shards.run.cluster_text import forecast_rows, machine_row
from fineweb_shards.run.config import Config
from fineweb_shards.sources.hub.rate_limit import address_quota
from fineweb_shards.store.output import shards_at_once
from fineweb_shards.units import show_bytes, show_count, show_seconds
from fineweb_shards.vocabulary import GPT2

FORMAT = ShardFormat(get_layout("build-nanogpt"), GPT2)
MACHINES = {
    "1 machine, 16 cores, 1 Gbit/s": Machines(1, 16, 1, has_ray=False),
    "1 machine, 64 cores, 10 Gbit/s": Machines(1, 64, 10, has_ray=False),
    "4 nodes, 16 cores, 10 Gbit/s": Machines(4, 16, 10, has_ray=True),
    "10 nodes, 16 cores, 1 Gbit/s": Machines(10, 16, 1, has_ray=True),
    "10 nodes, 16 cores, 10 Gbit/s": Machines(10, 16, 10, has_ray=True),
    "100 nodes, 16 cores, 10 Gbit/s": Machines(100, 16, 10, has_ray=True),
    "10 nodes, shared folder": Machines(10, 16, 10, has_ray=True),
    "100 nodes, shared folder": Machines(100, 16, 10, has_ray=True),
}
TEN_NODES = "10 nodes, 16 cores, 10 Gbit/s"


def work_of(sample: Sample, name: str, shard_tokens: int = SHARD_TOKENS) -> Work:
    """What the machines of this name have to do."""
    shares_folders = name.endswith("shared folder")
    return Work(
        tokens=sample.tokens,
        input_bytes=sample.size_bytes,
        files=sample.files,
        batches=sample.batches,
        footer_bytes=FOOTER_BYTES,
        output_bytes=FORMAT.size_bytes(sample.tokens),
        shard_tokens=shard_tokens,
        shard_bytes=FORMAT.size_bytes(shard_tokens),
        by_requests=True,
        to_bucket=MACHINES[name].has_ray and not shares_folders,
        shares_folders=shares_folders,
        address_quota=address_quota(has_token=True),
    )


def forecast_of(sample: Sample, name: str, shard_tokens: int = SHARD_TOKENS) -> Forecast:
    machines = MACHINES[name]
    footprint = Footprint(
        process_bytes=process_bytes(GPT2),
        driver_bytes=PARENT_BYTES,
        batches_bytes=COPIES * useful_window_bytes(machines.cores, Config.batch_bytes),
        shards_at_once=shards_at_once(machines.workers),
    )
    return forecast(work_of(sample, name, shard_tokens), machines, footprint, CORE_TOKENS_PER_SECOND)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def times_table() -> str:
    """How long, and what sets the time."""
    rows = []
    for name in MACHINES:
        results = [forecast_of(sample, name) for sample in SAMPLES.values()]
        rows.append([name, *(f"{show_seconds(one.seconds)}, {one.binding.resource}" for one in results)])
    return table(["", *SAMPLES], rows)


def limits_table() -> str:
    """How long each resource of ten nodes would take alone."""
    results = [forecast_of(sample, TEN_NODES).limits for sample in SAMPLES.values()]
    seconds = [{limit.resource: limit.seconds for limit in limits} for limits in results]
    rows = [
        [limit.resource, *(show_seconds(one[limit.resource]) if limit.seconds else "0 s" for one in seconds)]
        for limit in results[-1]
    ]
    return table(["", *SAMPLES], rows)


def needs_table() -> str:
    """What ten nodes ask for, move and hold."""
    results = [(work_of(sample, TEN_NODES), forecast_of(sample, TEN_NODES)) for sample in SAMPLES.values()]
    rows = [
        ["shards", *(f"{work.shards:,}" for work, _ in results)],
        ["requests of the hub's API", *(f"{one.requests.api:,}" for _, one in results)],
        ["requests for addresses", *(f"{one.requests.addresses:,}" for _, one in results)],
        ["requests for parts of files", *(f"{one.requests.ranges:,}" for _, one in results)],
        ["requests of the bucket", *(f"{one.requests.bucket:,}" for _, one in results)],
        ["bytes in", *(show_bytes(one.fetched_bytes) for _, one in results)],
        ["bytes out", *(show_bytes(one.written_bytes) for _, one in results)],
        ["bytes between nodes", *(show_bytes(one.moved_bytes) for _, one in results)],
        ["memory of a node", *(show_bytes(one.memory_bytes) for _, one in results)],
        ["of it the object store", *(show_bytes(one.object_store_bytes) for _, one in results)],
        ["scratch of a node", *(show_bytes(one.scratch_bytes) for _, one in results)],
    ]
    return table(["", *SAMPLES], rows)


def example() -> str:
    """What `plan` says of sample-350BT on ten nodes, where it can't try how fast a core is."""
    machines, sample = MACHINES[TEN_NODES], SAMPLES["sample-350BT"]
    speed = f"{show_count(CORE_TOKENS_PER_SECOND)} a core, measured before"
    result = forecast_of(sample, TEN_NODES)
    rows = [machine_row(machines, ()), *forecast_rows(result, machines, sample.tokens, speed)]
    return "\n".join(f"    {name:<10} {text}" for name, text in rows)


def larger_shards() -> str:
    """What larger shards bring, as a part of a sentence."""
    result = forecast_of(SAMPLES["default"], TEN_NODES, 5 * SHARD_TOKENS)
    return f"with `--shard-tokens 500M`, `default` takes {show_seconds(result.seconds)} on ten nodes"


def tables() -> list[str]:
    return [example(), times_table(), limits_table(), needs_table()]


if __name__ == "__main__":
    print("\n\n".join(tables()))
