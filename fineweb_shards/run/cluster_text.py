"""Format a forecast for other machines as rows of text, for `plan`."""

from __future__ import annotations

from fineweb_shards.run.cluster_plan import Forecast, Limit, Machines, Requests
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds


def machine_row(machines: Machines, assumed: tuple[str, ...]) -> tuple[str, str]:
    """Say what the forecast is for, and which flags would say otherwise."""
    cores = f"{show_number_of(machines.cores, 'core')} and {machines.gbit:g} Gbit/s"
    which = f"{show_number_of(machines.nodes, 'node')} of Ray with {cores}" if machines.has_ray else cores
    which += " each" if machines.nodes > 1 else ""
    return "for", which + (f" ({', '.join(assumed)}: assumed)" if assumed else "")


def forecast_rows(result: Forecast, machines: Machines, tokens: int, speed: str) -> list[tuple[str, str]]:
    """Return name and text of each line; `speed` says where the speed of a core comes from."""
    rate = f"{show_count(tokens / result.seconds)} tokens/s"
    rows = [("time", f"{show_seconds(result.seconds)}, set by {result.binding.resource}: {rate} ({speed})")]
    rows.append(("alone", ", ".join(map(describe_limit, result.limits[1:]))))
    if requests := describe_requests(result.requests):
        rows.append(("requests", requests))
    rows.append(("bytes", describe_bytes(result)))
    rows.append(("memory", describe_memory(result, machines)))
    if result.scratch_bytes:
        rows.append(("scratch", f"{show_bytes(result.scratch_bytes)}{_a_node(machines)}"))
    return rows


def describe_limit(limit: Limit) -> str:
    """Say how long a resource would take if it were alone; a quota that is not used up takes none."""
    return f"{limit.resource} {show_seconds(limit.seconds) if limit.seconds else '0 s'}"


def describe_requests(requests: Requests) -> str:
    """Say how often the hub, its CDN and a bucket are asked; empty if nobody is."""
    parts = (
        (requests.api, "of the hub's API"),
        (requests.addresses, "for addresses of files"),
        (requests.ranges, "for parts of files"),
        (requests.bucket, "to write"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in parts if count)


def describe_bytes(result: Forecast) -> str:
    """Say what is fetched, what is written and what moves between nodes."""
    parts = (
        (result.fetched_bytes, "in"),
        (result.written_bytes, "out"),
        (result.moved_bytes, "between nodes"),
    )
    return ", ".join(f"{show_bytes(count)} {what}" for count, what in parts if count)


def describe_memory(result: Forecast, machines: Machines) -> str:
    """Say what a machine needs, and what of it is Ray's object store."""
    store = f", {show_bytes(result.object_store_bytes)} of it in the object store" if machines.has_ray else ""
    return f"up to {show_bytes(result.memory_bytes)}{_a_node(machines)}{store}"


def _a_node(machines: Machines) -> str:
    return " a node" if machines.nodes > 1 else ""
