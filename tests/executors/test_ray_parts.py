"""The driver of a run on Ray, without a cluster: what waits where, which nodes it uses, what is refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fineweb_shards.errors import UsageError, WorkerError
from fineweb_shards.executors.ray import cluster, file_tasks
from fineweb_shards.executors.ray import executor as ray_executor
from fineweb_shards.executors.ray.cluster import LOST, find_address, load_ray
from fineweb_shards.executors.ray.executor import RayExecutor, cut_out
from fineweb_shards.executors.ray.file_tasks import Attempt, Unwritten
from fineweb_shards.executors.scheduled_executor import Waits
from fineweb_shards.output.store import Segment
from fineweb_shards.system.shell_commands import install_command
from fineweb_shards.types import Placement
from tests.support import inline, runs
from tests.support.doubles import Listener
from tests.support.inputs import write_jsonl

RUN = "fineweb-shards-4567"


def placement(path: str, offset: int) -> Placement:
    return Placement(path, np.array([offset]), np.array([[0, 1]]))


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_a_file_gets_what_belongs_before_its_end() -> None:
    """What belongs behind the end of a segment waits for the next one, and a block that is in two files is kept until
    both are written."""
    unwritten, attempt = Unwritten(2), Attempt(1)
    for block in range(3):
        unwritten.receive((0, block), attempt, block, 100)
    assert (unwritten.unplaced_bytes, unwritten.placed_bytes) == (300, 0)
    unwritten.place((0, 0), 100, [placement("a", 0)])
    unwritten.place((0, 1), 100, [placement("a", 10), placement("a", 20), placement("b", 0)])
    assert (unwritten.unplaced_bytes, unwritten.placed_bytes) == (100, 200)
    assert unwritten.fullest() == ("a", 3 * 2)  # what is placed counts, of however large a block
    first = unwritten.take("a", 20)
    assert [share.placement.begin for share in first] == [0, 10]
    rest = [*unwritten.take("a"), *unwritten.take("b")]
    assert [(share.placement.path, share.placement.begin) for share in rest] == [("a", 20), ("b", 0)]
    assert unwritten.fullest() == (None, 0)
    written = [unwritten.note_written(share.block) for share in [*first, *rest]]
    assert written == [True, False, False, True]
    unwritten.forget([(0, 0), (0, 1)])
    assert attempt.keys == {(0, 2)}
    assert unwritten.abandon() == []
    assert (attempt.keys, unwritten.unplaced_bytes, unwritten.placed_bytes) == (set(), 0, 0)


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_lost_tokens_are_waited_for() -> None:
    """A block that was placed waits for another attempt; one that was not is received as a new one. It may be placed
    while its tokens are lost."""
    unwritten, lost, again = Unwritten(2), Attempt(1), Attempt(2)
    for block in range(2):
        unwritten.receive((0, block), lost, block, 100)
    unwritten.place((0, 0), 100, [placement("a", 0)])
    unwritten.lose(lost)
    (share,) = unwritten.take("a")
    assert share.block.attempt is None
    assert (unwritten.unplaced_bytes, unwritten.placed_bytes) == (0, 100)
    late = unwritten.place((0, 1), 100, [placement("a", 10)])
    assert late.attempt is None
    for block in range(2):
        unwritten.receive((0, block), again, 1 - block, 100)
    assert (share.block.attempt, share.block.array) == (again, 1)
    assert (late.attempt, late.array) == (again, 0)
    assert (unwritten.unplaced_bytes, unwritten.placed_bytes) == (0, 200)


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_a_block_that_is_placed_in_several_steps_is_kept_until_the_last() -> None:
    """Of a mix. What was written before its tokens were lost is not written again. Where the stream ends first, nobody
    waits for the rest."""
    unwritten, attempt, again = Unwritten(2), Attempt(1), Attempt(2)
    for block in range(3):
        unwritten.receive((0, block), attempt, block, 100)
        step = unwritten.place((0, block), 100, [placement("a", block)], last=False)
        assert not step.is_written
    assert (unwritten.unplaced_bytes, unwritten.placed_bytes, unwritten.fullest()) == (0, 300, ("a", 6))
    first, second, _ = unwritten.take("a")
    assert not unwritten.note_written(first.block)
    assert not unwritten.note_written(second.block)
    unwritten.lose(attempt)
    assert not attempt.keys
    assert len(unwritten.blocks) == 3
    for block in range(3):
        unwritten.receive((0, block), again, block, 100)
    assert unwritten.fullest() == (None, 0)
    rest = unwritten.place((0, 0), 100, [placement("b", 0)])
    assert not rest.is_written
    (share,) = unwritten.take("b")
    assert (share.block.attempt, share.placement.begin) == (again, 0)
    assert unwritten.note_written(share.block)
    unwritten.forget([(0, 0)])
    (written,) = unwritten.abandon()
    assert (written, unwritten.blocks[0, 2].is_written) == (second.block, False)
    assert unwritten.note_written(unwritten.blocks[0, 2])


def test_of_tokens_in_the_driver_only_what_is_placed_is_stored() -> None:
    """A block with a seam is stored each time that some of it is placed; every token once, but for gaps."""
    tokens = np.arange(100, dtype=np.uint16)
    placements = [
        Placement("a", np.array([0, 8]), np.array([[40, 42], [50, 51]])),
        Placement("b", np.array([0]), np.array([[60, 61]])),
    ]
    stored, moved = cut_out(tokens, placements)
    assert stored.tolist() == [*range(40, 61)]
    for before, after in zip(placements, moved, strict=True):
        assert (before.path, before.offsets.tolist()) == (after.path, after.offsets.tolist())
        for (begin, end), (start, stop) in zip(before.ranges, after.ranges, strict=True):
            assert tokens[begin:end].tolist() == stored[start:stop].tolist()


def test_a_file_task_that_died_goes_to_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node may be gone without Ray knowing it: no other task is started there while there is another node, and one
    line on the screen says so for all that the node took along."""
    monkeypatch.setattr(file_tasks, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(file_tasks, "explain_failure", lambda error: LOST)
    exceptions = SimpleNamespace(RayError=ZeroDivisionError)
    monkeypatch.setattr(file_tasks, "load_ray", lambda: SimpleNamespace(exceptions=exceptions))
    do = SimpleNamespace(remote=lambda *arguments: None)
    processes = file_tasks.NodeTasks
    monkeypatch.setattr(processes, "_start_process", lambda tasks, node: SimpleNamespace(do=do))
    ends: list[Callable[[Future[bytes]], None]] = []
    listener = Listener()
    tasks = file_tasks.NodeTasks(
        RUN,
        lambda reference, end: ends.append(end),
        lambda shares: None,
        lambda attempts: None,
        creates=False,
        observer=listener,
        waits=Waits(listener),
    )
    segment = Segment(Path("a.tmp"), 0, "a", "train", 0, 6, 3, 0, whole=True)
    tasks.set_nodes(["gone", "there"])
    for number in range(4):
        tasks.add(number, segment)
    assert nodes_of(tasks) == {0: "gone", 1: "there", 2: "gone", 3: "there"}
    died: Future[bytes] = Future()
    died.set_exception(ZeroDivisionError())
    ends[0](died)
    ends[2](died)
    tasks.start_all()
    assert nodes_of(tasks) == dict.fromkeys(range(4), "there")
    assert [event.loud for event in listener.events] == [True, False]
    tasks.set_nodes(["gone"])
    tasks.add(4, segment)
    assert nodes_of(tasks)[4] == "gone"


def nodes_of(tasks: file_tasks.NodeTasks) -> dict[int, str]:
    """Where each task runs."""
    return {number: task.node for number, task in tasks._tasks.items() if task.running}


def test_a_change_of_nodes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the singular, where one is left."""
    monkeypatch.setattr("fineweb_shards.executors.ray.executor._LOOK_EVERY_SECONDS", 0.0)
    left = [cluster.Node(name, 1, 0) for name in ("a", "b")]
    listener = Listener()
    spec = runs.spec_of(runs.job_of(tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", ["one"])).source)
    nodes = SimpleNamespace(nodes=lambda: list(left))
    executor = RayExecutor(spec, nodes, window_bytes=1, observer=listener)
    executor._look_at_nodes()
    assert (executor.nodes, executor.workers) == (2, 2)
    left.pop()
    executor._look_at_nodes()
    assert (executor.nodes, executor.workers) == (1, 1)
    assert listener.texts("nodes") == ["the cluster has 1 node; before: 2"]


def test_a_block_of_the_driver_is_dropped_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a mix it is placed in several steps, each of which has its tokens in the object store."""
    monkeypatch.setattr(ray_executor, "load_ray", lambda: SimpleNamespace(put=lambda tokens: tokens))
    spec = runs.spec_of(runs.job_of(tmp_path / "out", write_jsonl(tmp_path / "a.jsonl", ["one"])).source)
    executor = RayExecutor(spec, SimpleNamespace(), window_bytes=1)
    tokens = np.zeros(3, np.uint16)
    executor.place(tokens, [placement("a", 0)], last=False)
    executor.place(tokens, [placement("a", 2)], last=False)
    executor.place(tokens, [], last=True)
    assert executor._unwritten.placed_bytes == 2 * tokens[:1].nbytes
    executor._note_written(executor._unwritten.take("a"))
    assert executor._unwritten.placed_bytes == 0
    assert not executor._unwritten.blocks


def test_a_wait_ends_with_the_last_task_that_waits() -> None:
    """However the task ends."""
    listener = Listener()
    waits = Waits(listener)
    waits.note(1, "network", "no route")
    waits.note(2, "network", "no answer")
    waits.end(1)
    waits.end(3)
    assert listener.waits[-1] == ("network", "no answer")
    waits.end(2)
    assert listener.waits[-1] == ("network", None)


def test_a_client_connection_is_refused() -> None:
    """With the command that does it on the cluster."""
    with pytest.raises(UsageError, match="ray://head:10001: a Ray Client connection") as refused:
        find_address("ray://head:10001")
    assert "ray job submit" in refused.value.hint


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not installed, or has no wheel."""

    def refuse(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(UsageError, match="No module named 'ray'") as missing:
        load_ray()
    assert install_command("ray") in missing.value.hint


def test_an_address_needs_the_executor(tmp_path: Path) -> None:
    """An address that nothing would use is a mistake."""
    with pytest.raises(UsageError, match="--ray-address auto: the executor is local"):
        runs.job_of(tmp_path / "out", __file__, ray_address="auto", format="text")


@pytest.mark.full
def test_ray_that_can_not_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to do, and no traceback; no folder is left."""

    def time_out(**settings: object) -> None:
        raise Exception("The current node timed out during startup.\nand more")  # noqa: TRY002 - as Ray

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ray = SimpleNamespace(is_initialized=lambda: False, init=time_out, shutdown=lambda: None)
    monkeypatch.setattr(cluster, "load_ray", lambda: ray)
    one = cluster.Cluster(cluster.LOCAL, 1, 0, Listener())
    with pytest.raises(WorkerError, match=r"on this machine: The current node timed out during startup\.$") as caught:
        one.connect()
    one.close()
    assert not list(tmp_path.iterdir())
    assert "--executor local" in caught.value.hint


@pytest.mark.full
@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("", "needs the package ray"),
        ("ray://head:10001", "proxy"),
        ("127.0.0.1:1", "nothing answers there"),  # where Ray would wait for minutes
        ("no-such-host.invalid:6379", "nothing answers there"),
        ("127.0.0.1:99999", "nothing answers there"),
    ],
)
def test_what_can_not_be_used_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, word: str
) -> None:
    """A package that is missing, or an address that is refused, is told before anything is written."""
    if not address:
        monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    source = write_jsonl(tmp_path / "a.jsonl", ["one"])
    words = ["--executor", "ray", *(["--ray-address", address] if address else [])]
    done = inline.run_command("build", "--input", source, "--out", tmp_path / "out", *words)
    assert done.returncode == 2
    assert word in done.stderr
    assert not (tmp_path / "out").exists()
