"""The nodes that do a run's tasks: some may go while it runs, others come."""

from __future__ import annotations

import time

from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.ray.cluster import Cluster, Node
from fineweb_shards.units import show_number_of

_LOOK_EVERY_SECONDS = 5.0


class Members:
    """The nodes of a cluster, and what they can do together. `most_tasks` limits the tasks at once."""

    def __init__(
        self, cluster: Cluster, cores_of_task: float, most_tasks: int | None, observer: Observer
    ) -> None:
        self._cluster = cluster
        self._cores_of_task = cores_of_task
        self._most_tasks = most_tasks
        self._observer = observer
        self._next_look = 0.0
        self.nodes: list[Node] = []
        self.tasks = 0  # that can run at once
        self.capacity_bytes = 0  # of tokens that may wait in their object stores

    def look(self) -> bool:
        """Count the nodes, if that was not done a moment ago; return whether it was done now."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY_SECONDS
        before, self.nodes = len(self.nodes), self._cluster.nodes()
        tasks = sum(int(node.cores / self._cores_of_task) for node in self.nodes)
        self.tasks = tasks if self._most_tasks is None else min(tasks, self._most_tasks)
        self.capacity_bytes = sum(node.store_bytes for node in self.nodes) // 2
        if before and before != len(self.nodes):
            text = f"{show_number_of(len(self.nodes), 'node')} of Ray; before: {before}"
            self._observer.tell(Event("nodes", text))
        none = None if self.nodes else "no node of the cluster has a core: waiting for one"
        self._observer.set_wait("nodes", none)
        return True
