"""Keep what the tasks of a run share, in an actor on the driver's node: what to know, and what there is new.

Tasks return their results by themselves. This is for what can't wait until a task ends: that it waits for the
network, or which document it is about to try, which has to be known even if its process dies of it. The
driver has one question open, which is answered when there is something new, so nobody polls.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import fineweb_shards
from fineweb_shards.executors.ray.api import load_ray
from fineweb_shards.executors.ray.messages import News, Shipment
from fineweb_shards.types import Quarantined


class Board:
    """An actor of the run. `shipment` is a pickled Shipment, made by this version of the program."""

    def __init__(self, version: str, shipment: bytes) -> None:
        self._version = version
        self._shipment = shipment
        self._news: list[News] = []
        self._has_news = asyncio.Event()
        self._trying: dict[int, Quarantined] = {}  # by the number of the task

    async def get_shipment(self) -> tuple[str, bytes]:
        """Return what a process needs before its first task, and the version that can unpack it."""
        return self._version, self._shipment

    async def tell(self, news: News) -> None:
        """Receive something new from a task."""
        self._news.append(news)
        self._has_news.set()

    async def take(self) -> list[News]:
        """Return what is new, as soon as there is something."""
        await self._has_news.wait()
        self._has_news.clear()
        news, self._news = self._news, []
        return news

    async def announce(self, task: int, document: Quarantined) -> None:
        """Note the document that a task is about to encode."""
        self._trying[task] = document

    async def take_announced(self, task: int) -> Quarantined | None:
        """Return the document that a task, which is gone, has announced last."""
        return self._trying.pop(task, None)


def start_board(name: str, shipment: Shipment) -> Any:
    """Start the board of a run on the driver's node; return its handle. If it dies, Ray starts it again."""
    ray = load_ray()
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(Board).options(
        name=name, num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
    )
    return actor.remote(fineweb_shards.__version__, pickle.dumps(shipment))
