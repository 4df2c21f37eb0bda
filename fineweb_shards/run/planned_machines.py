"""Turn a plan, made on this machine, into one for others: what there is to do, and what they are like."""

from __future__ import annotations

from dataclasses import dataclass

from fineweb_shards.errors import UsageError
from fineweb_shards.run.budget import COPIES, PARENT_BYTES, process_bytes, useful_window_bytes
from fineweb_shards.run.cluster_plan import (
    CORE_TOKENS_PER_SECOND,
    Footprint,
    Forecast,
    Machines,
    Work,
    forecast,
)
from fineweb_shards.run.config import Config
from fineweb_shards.run.plan import PARALLEL_EFFICIENCY, Plan
from fineweb_shards.sources.hub.rate_limit import address_quota
from fineweb_shards.store.output import shards_at_once
from fineweb_shards.system.machine import usable_cores

_NODES = 1
_HOME_GBIT = 1.0
_NODE_GBIT = 10.0
_HELP = "See `fineweb-shards plan --help`."
_MOST = {"--nodes": 100_000, "--cores": 10_000, "--gbit": 10_000}


@dataclass(frozen=True, slots=True)
class MachineFlags:
    """What the flags of `plan` say about machines; None: nothing."""

    nodes: int | None = None
    cores: int | None = None  # of a node
    gbit: float | None = None  # of a node, a second
    write_bytes_per_second: int | None = None

    @property
    def are_given(self) -> bool:
        return any(value is not None for value in self._values().values())

    def assumed(self, machines: Machines) -> tuple[str, ...]:
        """Return the flags that are not given, and would say what these machines are like."""
        asked = ("--nodes", "--cores", "--gbit") if machines.has_ray else ("--cores", "--gbit")
        return tuple(flag for flag in asked if self._values()[flag] is None)

    def _values(self) -> dict[str, float | None]:
        return {
            "--nodes": self.nodes,
            "--cores": self.cores,
            "--gbit": self.gbit,
            "--write-rate": self.write_bytes_per_second,
        }

    def check(self, config: Config) -> None:
        """Raise UsageError for machines that can't be."""
        for flag, value in self._values().items():
            if value is not None and value <= 0:
                raise UsageError(f"{flag} {value:,}: must be more than 0.", _HELP)
            if value is not None and value > _MOST.get(flag, value):
                raise UsageError(f"{flag} {value:,}: must be at most {_MOST[flag]:,}.", _HELP)
        if config.executor == "local" and (self.nodes or 1) > 1:
            raise UsageError(
                f"--nodes {self.nodes:,}: with --executor local there is one machine.",
                "Add --executor ray, or leave --nodes out.",
            )

    def machines(self, config: Config) -> Machines:
        """Return the machines, with what is not said as it is likely to be: one node like this one."""
        has_ray = config.executor == "ray"
        return Machines(
            nodes=self.nodes or _NODES,
            cores=self.cores or usable_cores(),
            gbit=self.gbit or (_NODE_GBIT if has_ray else _HOME_GBIT),
            has_ray=has_ray,
            write_bytes_per_second=self.write_bytes_per_second,
        )


def core_speed(plan: Plan) -> float:
    """Return the tokens per second of a core: by the trial, or as it was measured elsewhere. Without the time
    that the trial took to fetch its sample from the hub, because the line is a resource of its own."""
    trial = plan.trial_speed
    if trial is None:
        return CORE_TOKENS_PER_SECOND
    seconds = trial.encode_seconds + (0.0 if plan.job.source.is_remote else trial.read_seconds)
    return PARALLEL_EFFICIENCY / seconds if seconds else CORE_TOKENS_PER_SECOND


def forecast_plan(plan: Plan, machines: Machines) -> Forecast | None:
    """Return what the rest of a build takes on such machines; None if its tokens are unknown."""
    if not plan.tokens_left:
        return None
    return forecast(_work_of(plan, machines), machines, _footprint_of(plan, machines), core_speed(plan))


def _work_of(plan: Plan, machines: Machines) -> Work:
    job, tokens = plan.job, plan.tokens_left
    assert tokens is not None
    return Work(
        tokens=tokens,
        input_bytes=plan.read_bytes,
        files=max(1, round(plan.read_share * len(job.source.files))),
        batches=max(1, round(plan.read_share * plan.extent.batches)),
        footer_bytes=plan.extent.footer_bytes,
        output_bytes=job.output.shard_format.size_bytes(tokens),
        shard_tokens=job.output.shard_tokens,
        shard_bytes=job.output.shard_format.size_bytes(job.output.shard_tokens),
        by_requests=job.source.is_remote,
        to_bucket=job.output.store.is_remote,
        shares_folders=machines.nodes > 1,
        address_quota=_address_quota() if job.commit else None,
    )


def _address_quota() -> int:
    from huggingface_hub import get_token  # only here: what is not on the hub does without its client

    return address_quota(has_token=get_token() is not None)


def _footprint_of(plan: Plan, machines: Machines) -> Footprint:
    job = plan.job
    return Footprint(
        process_bytes=process_bytes(job.vocabulary),
        driver_bytes=PARENT_BYTES,
        batches_bytes=COPIES * useful_window_bytes(machines.cores, job.config.batch_bytes),
        shards_at_once=shards_at_once(machines.workers),
    )
