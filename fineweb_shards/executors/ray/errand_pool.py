"""Keep processes on nodes that do errands: they write and seal files, each several at once.

Actors and not tasks: Ray ends processes that had nothing to do for a second, and starting one takes a
second of processor time, which a shard every few seconds would cost each time. They take no core of
their node's, so an errand never waits for batches. If one dies Ray starts it again. A node gets one when all
others have something to do.

Ray takes 15 seconds to notice that a node is gone. So where an errand has died no other is started for a
while, if there is any other node.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fineweb_shards.executors.ray.api import load_ray
from fineweb_shards.executors.ray.worker import ErrandProcess

_AT_ONCE = 4  # on a node
_AVOID_SECONDS = 60.0


class ErrandPool:
    """The processes for the errands of a run. `run` is the name of the run's board."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._nodes: list[str] = []
        self._actors: dict[str, Any] = {}  # by node; those that have had an errand
        self._busy: Counter[str] = Counter()  # errands, by node
        self._avoided: dict[str, float] = {}  # nodes where an errand died, and until when

    def set_nodes(self, nodes: Iterable[str]) -> None:
        """Have errands done on these nodes, and on no other."""
        self._nodes = list(dict.fromkeys(nodes))
        self._actors = {node: self._actors[node] for node in self._nodes if node in self._actors}

    def start(self, task: int, objects: Sequence[Any], errand: bytes) -> tuple[str, Any]:
        """Have an errand done on the node with the fewest; return the node, and the reference to a pickled
        Returned. There has to be a node."""
        now = time.monotonic()
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        node = min(
            self._nodes,
            key=lambda one: (one in self._avoided, self._busy[one], one not in self._actors),
        )
        self._busy[node] += 1
        if node not in self._actors:
            self._actors[node] = self._start_process(node)
        return node, self._actors[node].do.remote(task, objects, errand)

    def finish(self, node: str) -> None:
        """Note that an errand has ended."""
        self._busy[node] -= 1

    def avoid(self, node: str) -> bool:
        """Start no errand on a node for a while, because one has died there; return whether that is new."""
        is_new = node not in self._avoided
        self._avoided[node] = time.monotonic() + _AVOID_SECONDS
        return is_new

    @property
    def is_empty(self) -> bool:
        """Whether there is no node."""
        return not self._nodes

    def close(self) -> None:
        """End all processes."""
        for actor in self._actors.values():
            load_ray().kill(actor)

    def _start_process(self, node: str) -> Any:
        ray = load_ray()
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(ErrandProcess).options(
            num_cpus=0, max_restarts=-1, max_concurrency=_AT_ONCE, scheduling_strategy=there
        )
        return actor.remote(self._run)
