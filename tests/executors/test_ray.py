"""A Ray cluster gives the bytes of one machine, whatever happens to its nodes, its workers and the driver."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import layout_reference
import pytest
from documents import make_documents
from inputs import write_gzip, write_parquet, write_text
from layout_reference import Wanted
from promises import Tries

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: it has no wheel for this platform", allow_module_level=True)

import runs
from ray_cluster import RayCluster, RayDriver, ray_cluster

from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.reading.verify import verify_folder
from fineweb_shards.store.folder_store import FolderStore

DOCUMENTS = make_documents(90, seed=91)
WANTED = [
    *(Wanted(layout, 1500, val_ratio=Fraction(3, 10), val_seed=4, index=True) for layout in LAYOUTS),
    *(Wanted(layout, 2000) for layout in ("build-nanogpt", "megatron")),
    Wanted("llm.c", 2000, max_tokens=9001),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(1) as started:
        yield started


@pytest.fixture(scope="module")
def driver(cluster: RayCluster) -> Iterator[RayDriver]:
    started = RayDriver(cluster.address)
    yield started
    started.close()


def flags_of(wanted: Wanted) -> list[str]:
    """The settings, as they are typed."""
    words: list[str] = []
    for name, value in wanted.settings().items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


@pytest.mark.promise(34)
def test_every_layout_is_the_reference(tmp_path: Path, driver: RayDriver, cluster: RayCluster) -> None:
    """Every file of every layout, with either kind of split, equals a plain loop's: with 1, 2 and 3 nodes."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    for number, wanted in enumerate(WANTED):
        if number in (1, 3):
            cluster.add_node()
        out = tmp_path / str(number)
        words = flags_of(wanted)
        code, errors = driver.run(
            "build", "--input", path, "--out", out, "--batch-bytes", "3000", *words,
            "--executor", "ray", "--ray-address", cluster.address,
        )  # fmt: skip
        assert code == 0, errors
        assert runs.outputs_in(out) == layout_reference.files(DOCUMENTS, wanted)
        assert verify_folder(FolderStore(out)).damages == []
