"""Tasks of the Ray executor, simulated: they answer at once. The executor, its schedule and Ray are real.

The driver believes in a cluster of many nodes, and keeps as many tasks under way as those would need. The tasks are
done by a small cluster on this machine, and take next to no time: they read, encode and write nothing. So the driver's
processor time is that of the real thing, Ray's own threads included.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from simulated_workers import SHA256, encoded_block

from fineweb_shards.events import Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.messages import Encoded, FileResult
from fineweb_shards.executors.ray import executor as ray_executor
from fineweb_shards.executors.ray import file_tasks
from fineweb_shards.executors.ray.board import EncodedBatch, TaskResult
from fineweb_shards.executors.ray.cluster import LOCAL, Cluster, Node
from fineweb_shards.executors.ray.executor import RayExecutor

_REAL_CORES = 2
_REAL_STORE_BYTES = 512 * 2**20
_NODE_STORE_BYTES = 16 * 2**30
# Larger than what Ray sends along with an answer: like real tokens they are in its object store.
_TOKENS = np.zeros(100_000, np.uint16)


class SimulatedCluster(Cluster):
    """A cluster on this machine that says it has many nodes."""

    def __init__(self, nodes: int, cores: int) -> None:
        super().__init__(LOCAL, _REAL_CORES, _REAL_STORE_BYTES, Observer())
        self._nodes, self._node_cores = nodes, cores

    def nodes(self) -> list[Node]:
        (real,) = super().nodes()
        return [Node(real.id, self._node_cores, _NODE_STORE_BYTES)] * self._nodes


@contextlib.contextmanager
def simulated_ray(spec: WorkerSpec, nodes: int, cores: int) -> Iterator[tuple[RayExecutor, Callable[[], int]]]:
    """A RayExecutor whose tasks take no time, and a function that counts them."""
    here = str(Path(__file__).parent)  # Ray's processes have to find this file, too
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    ray_executor.encode_batches = encode_at_once
    file_tasks.FileProcess = PromptFileProcess  # type: ignore[misc, assignment]
    with RayExecutor(spec, SimulatedCluster(nodes, cores), window_bytes=2**30) as executor:
        yield executor, lambda: executor._numbers


def encode_at_once(run: str, task: int, orders: bytes) -> tuple[bytes, list[Any]]:
    """Answer as `encode_batches` would."""
    batches = tuple(
        EncodedBatch((Encoded(0, encoded_block(order.batch, order.number)),)) for order in pickle.loads(orders)
    )
    return pickle.dumps(TaskResult(batches)), [_TOKENS]


class PromptFileProcess:
    """Answers as a FileProcess would that seals a file."""

    def __init__(self, run: str) -> None:
        pass

    def do(self, objects: Sequence[Any], order: bytes) -> bytes:
        return pickle.dumps(FileResult(pickle.loads(order).number, SHA256))
