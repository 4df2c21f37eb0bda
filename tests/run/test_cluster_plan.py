"""A plan for other machines is arithmetic: every figure here is computed by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from bucket_server import Door

from fineweb_shards.buckets.bucket import Bucket
from fineweb_shards.run import cluster_plan
from fineweb_shards.run.cluster_plan import Footprint, Forecast, Machines, Work, forecast

FOOTPRINT = Footprint(
    process_bytes=250_000_000, driver_bytes=200_000_000, batches_bytes=800_000_000, shards_at_once=11
)
# A tenth of a billion tokens in each of 10 files and 10 shards: 50 batches a file.
HUB = Work(
    tokens=1_000_000_000,
    input_bytes=3_000_000_000,
    files=10,
    batches=500,
    footer_bytes=3_000_000,
    output_bytes=2_000_000_000,
    shard_tokens=100_000_000,
    shard_bytes=200_000_000,
    by_requests=True,
    to_bucket=False,
    shares_folders=False,
    address_quota=3000,
)
BUCKET = dataclasses.replace(HUB, to_bucket=True)
CORE = 10_000_000.0


@pytest.fixture(autouse=True)
def _round_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured may change; the arithmetic is tested with figures that are easy to multiply."""
    monkeypatch.setattr(cluster_plan, "LOCAL_BATCH_SECONDS", 0.001)
    monkeypatch.setattr(cluster_plan, "RAY_BATCH_SECONDS", 0.002)
    monkeypatch.setattr(cluster_plan, "MANIFEST_ITEM_SECONDS", 1e-5)
    monkeypatch.setattr(cluster_plan, "MANIFEST_ITEM_BYTES", 500)
    monkeypatch.setattr(cluster_plan, "BUCKET_WRITE_SECONDS", 0.1)
    monkeypatch.setattr(cluster_plan, "BUCKET_CONNECTION_BYTES_PER_SECOND", 100e6)
    monkeypatch.setattr(cluster_plan, "RAY_EFFICIENCY", 0.5)


def plan(work: Work, machines: Machines) -> Forecast:
    return forecast(work, machines, FOOTPRINT, CORE)


def alone(result: Forecast) -> dict[str, float]:
    """How long each resource would take."""
    return {limit.resource: limit.seconds for limit in result.limits}


def test_one_core_takes_its_time() -> None:
    """1 node with 1 core: 1 billion tokens at 10 million a second. The driver and one worker read a footer of
    each file: 20 footers, of 3 MB, with 2 requests each."""
    result = plan(HUB, Machines(1, 1, 1, has_ray=False))
    assert result.binding.resource == "the cores"
    assert result.seconds == pytest.approx(100)
    assert result.fetched_bytes == 3_000_000_000 + 20 * 3_000_000
    assert result.requests.ranges == 500 + 20 * 2
    assert result.moved_bytes == 0
    # With one worker two shards may be saved together: 5 saves, of 10 files each, and of 2, 4 … 10 records.
    assert result.written_bytes == 2_000_000_000 + (50 + 30) * 500
    assert alone(result) == pytest.approx(
        {
            "the cores": 100,
            "the network in": 3.06e9 / 125e6,
            "the network out": 0,
            "the driver": 500 * 0.001 + 80 * 1e-5,
            "the hub's quota": 0,
        }
    )
    assert result.memory_bytes == 200_000_000 + 250_000_000 + 800_000_000
    assert (result.object_store_bytes, result.scratch_bytes) == (0, 0)


def test_a_slow_line_binds() -> None:
    """16 cores need 6.25 s; 3 GB and 17 footers of each file take 28 s at 1 Gbit/s."""
    result = plan(HUB, Machines(1, 16, 1, has_ray=False))
    assert result.binding.resource == "the network in"
    assert result.fetched_bytes == 3_000_000_000 + 10 * 17 * 3_000_000
    assert result.seconds == pytest.approx(3.51e9 / 125e6)


def test_ray_moves_tokens_between_nodes() -> None:
    """4 nodes of 2 cores: three quarters of the tokens are written elsewhere than they were made. A task has
    8 neighbouring batches, so that 7 of them read each file, and the driver."""
    result = plan(BUCKET, Machines(4, 2, 1, has_ray=True))
    assert result.moved_bytes == 1_500_000_000
    assert result.fetched_bytes == 3_000_000_000 + 10 * 8 * 3_000_000
    manifests = (2 * 10 + 9 + 10) * 500  # two saves: 9 shards may be saved together
    assert alone(result) == pytest.approx(
        {
            "the cores": 1e9 / (8 * 0.5 * CORE),
            "the network in": (3.24e9 + 1.5e9) / (4 * 125e6),
            "the network out": (2e9 + manifests + 1.5e9) / (4 * 125e6),
            "the driver": 500 * 0.002 + 39 * 1e-5 + 2 * 0.1 + manifests / 100e6,
            "the hub's quota": 0,
        }
    )
    assert result.binding.resource == "the cores"
    # 2 cores with 2 tasks each, and as many that wait, of 8 batches of 4 MB of tokens; 11 shards, twice.
    assert result.object_store_bytes == 8 * 8 * 4_000_000 + 2 * 11 * 200_000_000 // 4
    fetched_ahead = 4 * 8 * 6_000_000
    processes = 200_000_000 + 4 * 250_000_000 + fetched_ahead
    assert result.memory_bytes == processes + result.object_store_bytes
    assert result.scratch_bytes == 11 * 200_000_000


def test_the_driver_binds_a_thousand_nodes() -> None:
    """More nodes do not help: one process orders all batches, in 1 s, and saves the manifest for every nine
    shards. If these are small, saving takes longer than ordering; in a folder it does not."""
    small = dataclasses.replace(BUCKET, shard_tokens=1_000_000, shard_bytes=2_000_000)
    many, more = (plan(small, Machines(nodes, 16, 10, has_ray=True)) for nodes in (1000, 10_000))
    assert many.binding.resource == more.binding.resource == "the driver's saves"
    items = 112 * 10 + sum(range(9, 1000, 9)) + 1000
    assert many.seconds == more.seconds == pytest.approx(1 + items * 1e-5 + 11.2 + items * 500 / 100e6)
    folder = plan(dataclasses.replace(HUB, shares_folders=True), Machines(1000, 16, 10, has_ray=True))
    assert folder.binding.resource == "the driver"
    assert folder.seconds == pytest.approx(1 + 39 * 1e-5)


def test_the_quota_binds_where_files_are_many() -> None:
    """9,001 files and 5 requests for the card are 4 windows of 3,000 requests: three times 5 minutes pass
    before the last one begins. With 12,000 requests in a window nobody waits."""
    many = dataclasses.replace(HUB, files=9001, batches=9001, footer_bytes=0)
    machines = Machines(1000, 16, 10, has_ray=True)
    result = plan(many, machines)
    assert result.requests.addresses == 9006
    assert (result.binding.resource, result.seconds) == ("the hub's quota", 900)
    assert result.requests.api == 7 + 19
    rich = plan(dataclasses.replace(many, address_quota=12_000), machines)
    assert alone(rich)["the hub's quota"] == 0


def test_an_address_is_renewed_when_it_expires() -> None:
    """10 hours for 4 files are 2.5 hours for each: it is asked for three times."""
    slow = dataclasses.replace(HUB, files=4, tokens=10 * 3600, footer_bytes=0)
    result = forecast(slow, Machines(1, 1, 1, has_ray=False), FOOTPRINT, 1.0)
    assert result.seconds == 36_000
    assert result.requests.addresses == 5 + 4 * 3


def test_slow_writes_bind() -> None:
    """2 GB at 10 MB a second."""
    result = plan(HUB, Machines(1, 16, 10, has_ray=False, write_bytes_per_second=10e6))
    assert result.binding.resource == "the writes"
    assert result.seconds == pytest.approx((2e9 + 39 * 500) / 10e6)


def test_local_files_ask_nobody() -> None:
    """On one machine they use no line. With several nodes folders are shared, over the line, but there are no
    requests to count, and a task has 4 batches."""
    files = dataclasses.replace(HUB, by_requests=False, address_quota=None)
    here = plan(files, Machines(1, 4, 1, has_ray=False))
    assert dataclasses.astuple(here.requests) == (0, 0, 0, 0)
    assert alone(here)["the network in"] == alone(here)["the network out"] == 0
    assert "the hub's quota" not in alone(here)
    shared = plan(dataclasses.replace(files, shares_folders=True), Machines(2, 4, 1, has_ray=True))
    assert dataclasses.astuple(shared.requests) == (0, 0, 0, 0)
    assert shared.fetched_bytes == 3_000_000_000 + 10 * (1 + 8) * 3_000_000
    assert alone(shared)["the network out"] == pytest.approx((2e9 + 39 * 500 + 1e9) / (2 * 125e6))


@pytest.mark.parametrize(("size_bytes", "requests"), [(200_000_000, 24 + 3 + 1), (1_000_000, 2 + 1)])
def test_requests_of_a_shard(size_bytes: int, requests: int) -> None:
    """200 MB are 24 parts of 8 MiB, which are begun, completed and looked at; a small one is put at once and
    looked at; then the manifest is saved."""
    small = dataclasses.replace(BUCKET, shard_bytes=size_bytes)
    assert plan(small, Machines(1, 1, 1, has_ray=False)).requests.bucket == 10 * requests


@pytest.mark.parametrize("size_bytes", [20_000_000, 1_000_000])
def test_an_upload_takes_so_many_requests(
    bucket_url: str, door: Door, tmp_path: Path, size_bytes: int
) -> None:
    """Those that a server counts, without the manifest's."""
    (tmp_path / "shard.npy").write_bytes(bytes(size_bytes))
    bucket = Bucket(f"{bucket_url}/out", 0)
    bucket.head("nothing")  # who is asked, and where, is found out before
    door.requests.clear()
    bucket.upload(tmp_path / "shard.npy", "shard.npy")
    work = dataclasses.replace(BUCKET, shard_bytes=size_bytes, tokens=BUCKET.shard_tokens)
    assert plan(work, Machines(1, 1, 1, has_ray=False)).requests.bucket == len(door.requests) + 1


def test_it_knows_how_ray_is_used() -> None:
    """The figures are those of the executor."""
    pytest.importorskip("ray")
    from fineweb_shards.executors.ray import executor

    assert cluster_plan.RAY_REMOTE_TASKS_PER_CORE == executor._REMOTE_TASKS_PER_CORE
    assert cluster_plan.RAY_BATCHES == executor._BATCHES
    assert cluster_plan.RAY_REMOTE_BATCHES == executor._REMOTE_BATCHES
