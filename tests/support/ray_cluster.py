"""A Ray cluster of several nodes on this machine, and processes that build on it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

DRIVER = Path(__file__).parent / "ray_driver.py"
STORE_BYTES = 96 * 2**20
# A node that is gone is noticed in a second and a half, and no test waits for others on the machine.
SYSTEM = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
ENVIRONMENT = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}

TITLES = ("encode_batches", "FileProcess", "Board", "fineweb-shards")


def start_patiently(start: Callable[[], Any]) -> Any:
    """What starts a node, again if it fails: other tests may keep Ray's processes waiting for too long."""
    for _ in range(2):
        try:
            return start()
        except Exception as error:
            # Ray has no handle of a node that could not start: only the frame in which it failed knows it.
            selves = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
            nodes: list[Any] = [one for one in selves if hasattr(one, "kill_all_processes")]
            for node in nodes:
                node.kill_all_processes(check_alive=False, allow_graceful=False)
    return start()


class RayCluster:
    """Nodes with one core each. The first one stays: a driver is on it."""

    def __init__(self, nodes: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ray.cluster_utils import Cluster

            self._cluster = Cluster()
            self._nodes: list[Any] = []
            for _ in range(nodes):
                self.add_node()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self, **more: Any) -> None:
        first = {} if self._nodes else {"_system_config": SYSTEM, "include_dashboard": False}
        start = partial(self._cluster.add_node, num_cpus=1, object_store_memory=STORE_BYTES, **first, **more)
        self._nodes.append(start_patiently(start))

    def remove_node(self) -> None:
        """Kill the last node: its raylet, and with it all that runs there."""
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)

    def processes(self) -> list[psutil.Process]:
        """The processes that have a task or an actor of a run now."""
        found = []
        for node in self._nodes:
            for raylet in node.all_processes["raylet"]:
                for process in psutil.Process(raylet.process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        title = " ".join(process.cmdline())
                        if any(name in title for name in TITLES):
                            found.append(process)
        return found

    def shutdown(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_cluster(nodes: int) -> Iterator[RayCluster]:
    folder = tempfile.mkdtemp(prefix="fws-")  # short: the names of sockets are limited
    variables = {**ENVIRONMENT, "RAY_TMPDIR": folder, "TMPDIR": folder}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    cluster = RayCluster(nodes)
    try:
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)  # Ray's last processes may still write some of it
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class RayDriver:
    """A process that is connected to a cluster, and builds what it is told to."""

    def __init__(self, address: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT, **environment},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, *words: object) -> None:
        """Begin to run a command."""
        assert self._process.stdin is not None
        print(json.dumps([str(word) for word in words]), file=self._process.stdin, flush=True)

    def wait(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it has written to standard error."""
        assert self._process.stdout is not None
        code, errors = json.loads(self._process.stdout.readline())
        return code, errors

    def run(self, *words: object) -> tuple[int, str]:
        self.start(*words)
        return self.wait()

    def used_store_bytes(self) -> int:
        """What is in the object stores of the cluster."""
        return self.run("used-store-bytes")[0]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
