"""A Ray cluster gives the bytes of one machine, whatever happens to its nodes, its workers and the driver."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support import inline, layout_reference, reference, runs, shuffle_reference, vocabularies
from tests.support.documents import make_documents
from tests.support.inputs import write_gzip, write_jsonl, write_parquet, write_text
from tests.support.layout_reference import Wanted
from tests.support.promises import Measure, Tries

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: it has no wheel for this platform", allow_module_level=True)

from fineweb_shards.executors.ray.worker import MARK_FILE
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import load_manifest
from fineweb_shards.output.opening import scratch_folder
from fineweb_shards.reading.verify import verify_folder
from tests.conftest import THREE_LAYOUTS
from tests.exactness.test_mixes import Mix, Part, draw_mix, toml_of
from tests.executors import poison
from tests.support import fourteen_files
from tests.support.bucket_server import Door, make_bucket
from tests.support.bucket_view import BucketView
from tests.support.ray_cluster import ENVIRONMENT, RayCluster, RayDriver, ray_cluster
from tests.support.runs import wait_until
from tests.support.standin_hub import StandInHub

pytestmark = pytest.mark.full

DOCUMENTS = make_documents(90, seed=91)
WANTED = [
    *(Wanted(layout, 1500, val_ratio=Fraction(3, 10), val_seed=4, index=True) for layout in LAYOUTS),
    *(Wanted(layout, 2000) for layout in ("build-nanogpt", "megatron")),
    Wanted("llm.c", 2000, max_tokens=9001),
]
TEXTS = [text for text in DOCUMENTS if text.strip() and "<|endoftext|>" not in text]
TEXTS += ["的一是不了人我在有他" * 700, "z" * 9000, "end"]
MANY = [text for text in make_documents(1500, seed=92) if text]
SHARD_TOKENS = 60_000
POISON_DRIVER = Path(__file__).parent / "poison_driver.py"


@pytest.fixture(scope="module")
def kills_left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills left")


@pytest.fixture(scope="module")
def cluster(kills_left: Path) -> Iterator[RayCluster]:
    os.environ[poison.KILLS_LEFT] = str(kills_left)  # the nodes have the environment of this process
    with ray_cluster(1) as started:
        yield started
    del os.environ[poison.KILLS_LEFT]


@pytest.fixture(scope="module")
def driver(cluster: RayCluster) -> Iterator[RayDriver]:
    started = RayDriver(cluster.address)
    yield started
    started.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for a run in which something can happen."""
    return write_parquet(tmp_path_factory.mktemp("many") / "many.parquet", MANY, 5)


@pytest.fixture(scope="module")
def expected() -> dict[str, bytes]:
    return reference.shard_files(reference.stream(MANY), SHARD_TOKENS)


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


def on(cluster: RayCluster) -> list[str]:
    return ["--executor", "ray", "--ray-address", cluster.address]


def has_finished(out: Path, shards: int) -> Callable[[], bool]:
    return lambda: finished(out) >= shards


def ray_folders() -> set[Path]:
    """The folders of clusters that runs have started on this machine."""
    return set(Path(tempfile.gettempdir()).glob("fws-ray-*"))


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def build_many(many: Path, out: Path) -> list[str]:
    """A build of many small batches."""
    return [
        "build", "--input", str(many), "--out", str(out), "--shard-tokens", str(SHARD_TOKENS),
        "--batch-bytes", "2k",
    ]  # fmt: skip


def finished(out: Path) -> int:
    """How many shards the manifest has."""
    try:
        return len(json.loads((out / "manifest.json").read_text())["shards"])
    except FileNotFoundError:
        return 0


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_every_layout_is_the_reference(tmp_path: Path, driver: RayDriver, cluster: RayCluster, soak: bool) -> None:
    """Every file, with either kind of split, equals a plain loop's: with 1, 2 and 3 nodes. Every third layout is enough
    for every day: what differs between them is the same for every executor."""
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS, 13)
    for number, wanted in enumerate(WANTED if soak else WANTED[::3]):
        if number in (1, 3):
            cluster.add_node()
        out = tmp_path / str(number)
        words = ["build", "--input", str(path), "--out", str(out), "--batch-bytes", "3000", *flags_of(wanted)]
        code, errors = driver.run(*words, *on(cluster))
        assert code == 0, errors
        assert runs.outputs_in(out) == layout_reference.files(DOCUMENTS, wanted)
        assert verify_folder(FolderStore(out)).damages == []
    assert wait_until(lambda: driver.used_store_bytes() == 0)


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
@pytest.mark.parametrize("form", ["text", "gzip", pytest.param("jsonl", marks=pytest.mark.soak)])
def test_other_inputs_are_the_reference(tmp_path: Path, driver: RayDriver, cluster: RayCluster, form: str) -> None:
    """JSON lines and text by ranges, with documents that have no safe place to cut; and a stream, whose bytes go to the
    nodes."""
    wanted = Wanted("plain", 3000, val_documents=7)
    path = tmp_path / "a.txt"
    if form == "jsonl":
        path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    else:
        write_text(path, TEXTS)
    if form == "gzip":
        path = write_gzip(tmp_path / "a.txt.gz", path.read_bytes())
    out = tmp_path / "out"
    words = ["build", "--input", str(path), "--out", str(out), "--batch-bytes", "2k", *flags_of(wanted)]
    code, errors = driver.run(*words, *on(cluster))
    assert code == 0, errors
    assert runs.outputs_in(out) == layout_reference.files(TEXTS, wanted)


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_another_tokenizer_is_its_own_reference(tmp_path: Path, driver: RayDriver, cluster: RayCluster) -> None:
    """Its files are brought to the nodes, which don't see the folder where the driver keeps them; nothing stays
    there."""
    tokenizer = vocabularies.MAKERS[0](tmp_path)
    path = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    out = tmp_path / "out"
    words = ["build", "--input", str(path), "--out", str(out), *map(str, tokenizer.flags)]
    code, errors = driver.run(*words, "--val-tokens", "0", *on(cluster))
    assert code == 0, errors
    (shard,) = out.glob("*.npy")
    assert np.load(shard).tolist() == tokenizer.stream(DOCUMENTS)
    node_files = Path(os.environ["TMPDIR"])
    assert wait_until(lambda: not list(node_files.glob("fineweb-shards-*")))  # one may still be loading


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_a_dataset_of_the_hub_is_the_reference(tmp_path: Path, cluster: RayCluster) -> None:
    """Nodes fetch for themselves; they are told where the hub is, because only the driver's process knows."""
    with StandInHub([fourteen_files.sample_repository()]) as hub:
        environment = fourteen_files.environment(hub, tmp_path / "home", **ENVIRONMENT)
        done = runs.run_command(
            "build", *fourteen_files.DATASET, "--out", tmp_path / "out", *fourteen_files.FLAGS, *on(cluster),
            **environment,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(tmp_path / "out") == fourteen_files.expected_shards()


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_a_node_that_is_lost_costs_only_time(
    tmp_path: Path, driver: RayDriver, cluster: RayCluster, many: Path, expected: dict[str, bytes], tries: Tries
) -> None:
    """A node is killed at a random moment of a run: same bytes, and nothing stays in the object stores."""
    for number in tries(2, 20):
        cluster.add_node()
        out = tmp_path / str(number)
        driver.start(*build_many(many, out), *on(cluster))
        after = 1 + random.Random(number).randrange(len(expected) - 1)
        assert wait_until(has_finished(out, after), 300)
        cluster.remove_node()
        code, errors = driver.wait()
        assert code == 0, errors
        assert runs.shards_in(out) == expected
        assert wait_until(lambda: driver.used_store_bytes() == 0)


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_workers_that_are_killed_cost_only_time(
    tmp_path: Path, driver: RayDriver, cluster: RayCluster, many: Path, expected: dict[str, bytes], tries: Tries
) -> None:
    """All processes with a task are killed at random moments of a run: same bytes."""
    for number in tries(1, 10):
        out = tmp_path / str(number)
        driver.start(*build_many(many, out), *on(cluster))
        for after in sorted(random.Random(number).sample(range(1, len(expected)), 2)):
            assert wait_until(has_finished(out, after), 300)
            for process in cluster.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        code, errors = driver.wait()
        assert code == 0, errors
        assert runs.shards_in(out) == expected


@pytest.mark.promise("a mix is that of a plain loop", "Ray gives the same bytes; a lost node or driver costs time")
def test_random_mixes_are_the_reference(
    tmp_path: Path, driver: RayDriver, cluster: RayCluster, tries: Tries, soak: bool
) -> None:
    """Parts of any form, weights, epochs, lengths, validation and layout."""
    for number in tries(4, 30):
        one, folder = draw_mix(3000 + number, [*LAYOUTS] if soak else THREE_LAYOUTS), tmp_path / str(number)
        settings, out = one.settings(folder), folder / "out"
        (folder / "mix.toml").write_text(toml_of(settings))
        batch_bytes = random.Random(number).choice([2000, 20_000])
        code, errors = driver.run(
            "build", folder / "mix.toml", "--out", out, "--engine", "tiktoken", "--batch-bytes", batch_bytes,
            *on(cluster),
        )  # fmt: skip
        expected = one.expected()
        assert code == (0 if expected else 3), errors
        assert runs.outputs_in(out) == expected
    assert wait_until(lambda: driver.used_store_bytes() == 0)


@pytest.mark.promise("a mix is that of a plain loop", "Ray gives the same bytes; a lost node or driver costs time")
@pytest.mark.parametrize("lost", ["node", "workers"])
def test_a_mix_survives_a_loss(tmp_path: Path, driver: RayDriver, cluster: RayCluster, tries: Tries, lost: str) -> None:
    """A node, or all processes with a task, are killed at a random moment: same bytes, also of parts that are far ahead
    or behind by then."""
    kinds = (("parquet", 7), ("jsonl", 2), ("gz", 1))
    parts = [Part(form, (tuple(MANY[number::3]),), weight) for number, (form, weight) in enumerate(kinds)]
    one = Mix(tuple(parts), "all-exhausted", Wanted("build-nanogpt", SHARD_TOKENS))
    settings, expected = one.settings(tmp_path / "mix"), one.expected()
    (tmp_path / "mix.toml").write_text(toml_of(settings))
    for number in tries(1, 10):
        cluster.add_node()
        out = tmp_path / str(number)
        driver.start("build", tmp_path / "mix.toml", "--out", out, "--batch-bytes", "4k", *on(cluster))
        assert wait_until(has_finished(out, 1 + random.Random(number).randrange(len(expected) - 1)), 300)
        if lost == "workers":
            for process in cluster.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        cluster.remove_node()
        code, errors = driver.wait()
        assert code == 0, errors
        assert runs.outputs_in(out) == expected
        assert wait_until(lambda: driver.used_store_bytes() == 0)


@pytest.mark.promise("a shuffle is a plain sort", "Ray gives the same bytes; a lost node or driver costs time")
@pytest.mark.parametrize(("moment", "lost"), [("first pass", "workers"), ("second pass", "node")])
def test_a_shuffle_survives_a_loss(
    tmp_path: Path, driver: RayDriver, cluster: RayCluster, many: Path, tries: Tries, moment: str, lost: str
) -> None:
    """A node, or all processes with a task, are killed in either pass: same bytes."""
    expected = reference.shard_files(reference.stream(shuffle_reference.shuffled(MANY, 8)), SHARD_TOKENS)

    def has_piles(out: Path) -> bool:
        manifest = load_manifest(out)
        return bool(manifest and manifest.piles and any(manifest.piles.tokens))

    for number in tries(1, 10):
        cluster.add_node()
        out = tmp_path / str(number)
        more = ["--scratch", tmp_path / "scratch"] if lost == "node" else []
        driver.start(*build_many(many, out), "--shuffle", 8, "--batch-bytes", "16k", *more, *on(cluster))
        after = random.Random(number).randrange(1, len(expected) - 1)
        reached = partial(has_piles, out) if moment == "first pass" else has_finished(out, after)
        assert wait_until(reached, 300)
        if lost == "workers":
            for process in cluster.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        cluster.remove_node()
        code, errors = driver.wait()
        assert code == 0, errors
        assert runs.shards_in(out) == expected
        assert not [*tmp_path.rglob("piles"), *tmp_path.rglob(MARK_FILE)]


@pytest.mark.promise("a shuffle is a plain sort", "Ray gives the same bytes; a lost node or driver costs time")
@pytest.mark.parametrize(("uploaded", "most"), [("/piles/", 9), ("edufineweb_train", 3)])
def test_piles_in_a_bucket_outlive_the_driver(
    tmp_path: Path,
    cluster: RayCluster,
    many: Path,
    bucket_environment: str,
    door: Door,
    tries: Tries,
    uploaded: str,
    most: int,
) -> None:
    """With an output in a bucket the piles and their list are there, too. If the driver is killed in either pass,
    another machine goes on, and repeats nothing that was recorded. A damaged pile is noticed, and made again. In the
    end nothing is left."""
    expected = reference.shard_files(reference.stream(shuffle_reference.shuffled(MANY, 8)), SHARD_TOKENS)
    for number in tries(1, 10):
        url, chooser = make_bucket(bucket_environment), random.Random(number)
        view, first, second = BucketView(bucket_environment, url), tmp_path / f"{number}-1", tmp_path / f"{number}-2"
        words = ["build", "--input", many, "--out", url, "--shard-tokens", SHARD_TOKENS, "--shuffle", 8]
        words += ["--batch-bytes", "16k"]
        killed = RayDriver(cluster.address)
        left = iter(range(chooser.randint(1, most), 0, -1))

        def kill(method: str, path: str, left: Iterator[int] = left, killed: RayDriver = killed) -> None:
            if method == "PUT" and uploaded in path and next(left, 0) == 1:
                killed.kill()

        door.on_request = kill
        with pytest.raises(json.JSONDecodeError):  # it gives no answer
            killed.run(*words, *on(cluster), "--scratch", first)
        door.on_request = lambda method, path: None
        killed.close()
        assert wait_until(lambda: not cluster.processes())
        view.delete(".fineweb-shards/lock.json")  # else another machine waits for a minute
        begun = json.loads(view.read("manifest.json"))

        done = inline.run_command(*words, "--scratch", second)
        assert done.returncode == 4, done.stderr
        assert "the piles of this shuffle are in the bucket" in done.stderr
        with contextlib.closing(RayDriver(cluster.address)) as driver:
            if begun["piles"]["ended"]:
                found = [name for name in view.names() if "/piles/" in name and not name.endswith(".documents")]
                damaged = chooser.choice([name for name in found if view.read(name)])
                view.write(damaged, bytes(len(view.read(damaged))))
                code, errors = driver.run(*words, *on(cluster), "--scratch", second)
                assert code == 7, errors
                assert f"{damaged}: this file of the shuffle has changed" in errors
            code, errors = driver.run(*words, *on(cluster), "--scratch", second)
        assert code == 0, errors
        assert view.outputs() == expected
        assert not [name for name in view.names() if "/piles/" in name]
        assert not [path for path in second.rglob("*") if path.name == "piles" or path.suffix == ".tmp"]
        log = (scratch_folder(url, str(second)) / ".fineweb-shards/log.txt").read_text()
        assert ("the first pass of the shuffle is repeated" in log) == begun["piles"]["ended"]
        recorded = sum(begun["piles"]["tokens"])
        assert begun["piles"]["ended"] or not recorded or f"after {recorded:,} tokens" in log


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_a_driver_that_is_killed_is_run_again(
    tmp_path: Path, cluster: RayCluster, many: Path, expected: dict[str, bytes], tries: Tries
) -> None:
    """Its tasks go with it. The same command goes on, on the cluster or with processes on one machine."""
    for number in tries(1, 10):
        out = tmp_path / str(number)
        words = runs.command(*build_many(many, out), *on(cluster))
        with subprocess.Popen(words, env={**os.environ, **ENVIRONMENT}) as killed:
            after = 1 + random.Random(number).randrange(len(expected) - 1)
            assert wait_until(has_finished(out, after), 300)
            killed.kill()
        assert wait_until(lambda: not cluster.processes())
        assert finished(out)
        words = build_many(many, out) + (on(cluster) if number % 2 else [])
        done = runs.run_command(*words, **ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        assert runs.shards_in(out) == expected


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_poison_is_narrowed_down_to_its_document(tmp_path: Path, cluster: RayCluster, kills_left: Path) -> None:
    """A document that crashes its processes is left out and counted; one whose processes are killed from outside is
    not."""
    documents = [text for text in make_documents(60, seed=51) if text]
    documents[17:17] = [poison.DEADLY]
    documents[30:30] = [poison.KILLED]
    for number in range(5):
        (kills_left / str(number)).touch()
    path = write_parquet(tmp_path / "a.parquet", documents, 10)
    words = ["build", "--input", str(path), "--out", str(tmp_path / "out"), "--shard-tokens", "4000"]
    done = subprocess.run(
        [sys.executable, str(POISON_DRIVER), *words, "--engine", "tiktoken", *on(cluster)],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 11, done.stderr
    healthy = [text for text in documents if text != poison.DEADLY]
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(healthy), 4000)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [one["row"] for one in manifest["quarantined"]] == [17]
    assert not list(kills_left.iterdir())


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_cluster_of_its_own_goes_with_the_run(
    tmp_path: Path, many: Path, number: signal.Signals, within: Measure, soak: bool
) -> None:
    """A run that starts Ray on this machine leaves no process behind, whether it is stopped or killed, and no file in
    the home folder: a token there would switch authentication on in the next `ray start --head`. It stops with the
    command to resume, and that gives the same bytes. Two agents of Ray's own need a minute to notice that they were
    left alone."""
    out, home = tmp_path / "out", tmp_path / "home"
    home.mkdir()
    build = [*build_many(many, out), "--epochs", "20"]  # so that it is not at its end when the signal comes
    words = runs.command(*build, "--executor", "ray", "--ray-address", "local")
    environment = {**os.environ, **ENVIRONMENT, "HOME": str(home)}
    before = ray_folders()
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert wait_until(has_finished(out, 1), 300)
        started = psutil.Process(run.pid).children(recursive=True)
        assert any("raylet" in process.name() for process in started)
        if number == signal.SIGKILL and not soak:
            started = [process for process in started if not process.name().endswith("Agent")]
        with within(10.0):
            run.send_signal(number)
            _, errors = run.communicate()
    assert wait_until(lambda: not any(map(is_alive, started)), 180)
    assert not list(home.rglob("auth_token"))
    # Sockets and logs stay if it is killed, and if Ray's own agents were only just starting.
    for folder in ray_folders() - before:
        shutil.rmtree(folder)
    if number == signal.SIGTERM:
        assert run.returncode == 143
        assert "resume with: " in errors
        assert "ray" not in errors.partition("resume with: ")[0].lower().replace(str(tmp_path).lower(), "")
    done = runs.run_command(*build)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == reference.shard_files(np.tile(reference.stream(MANY), 20), SHARD_TOKENS)


def test_a_node_without_the_package_is_named(tmp_path: Path, cluster: RayCluster, many: Path) -> None:
    """Rerunning the same command would not help, so the exit code is that of a mistake; the message has the node's name
    and address, and what to install."""
    (tmp_path / "fineweb_shards.py").write_text("raise ModuleNotFoundError('No module named fineweb_shards')")
    cluster.add_node(env_vars={"PYTHONPATH": str(tmp_path)})
    # Ray has nodes look for modules where the driver was started, too: so that is another folder.
    words = [*build_many(many, tmp_path / "out"), *on(cluster)]
    done = runs.run_command(*words, cwd=tmp_path.parent, **ENVIRONMENT)
    cluster.remove_node()
    assert done.returncode == 2, done.stderr
    assert f"Node {socket.gethostname()} ({cluster.address.partition(':')[0]})" in done.stderr
    assert "fineweb_shards[ray]" in done.stderr
    assert "same command" not in done.stderr


@pytest.mark.parametrize("home", ["head", "nobody"])
def test_a_cluster_that_wants_a_token_is_named(tmp_path: Path, many: Path, home: str) -> None:
    """A cluster with Ray's token authentication refuses a run that does not send its token: the message says so, with
    the variable to set, at once and before anything is written. With the token it works, and without any it is refused
    as well."""
    out, token = tmp_path / "out", tmp_path / "head" / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("7" * 64)
    environment = {**os.environ, **ENVIRONMENT, "HOME": str(tmp_path / home)}
    with cluster_with_token(token) as address:
        words = [*build_many(many, out), "--executor", "ray", "--ray-address", address]
        mode = {} if home == "head" else {"RAY_AUTH_MODE": "token"}
        refused = subprocess.run(
            runs.command(*words), env=environment | mode, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 2, refused.stderr
        assert f"--ray-address {address}: " in refused.stderr
        assert "authentication" in refused.stderr
        assert "RAY_AUTH_MODE=token" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert not out.exists() or home == "nobody"
        if home == "head":
            done = runs.run_command(*words, **environment, RAY_AUTH_MODE="token")
            assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_the_demo_leaves_nothing() -> None:
    """Neither in the folder for temporary files nor at home."""
    demo = Path(__file__).parents[2] / "docs" / "examples" / "cluster_demo.py"
    with tempfile.TemporaryDirectory(prefix="fws-") as home:
        environment = {**os.environ, **ENVIRONMENT, "HOME": home, "TMPDIR": home}
        subprocess.run([sys.executable, demo], env=environment, capture_output=True, check=True)
        assert not list(Path(home).iterdir())


@contextlib.contextmanager
def cluster_with_token(token: Path) -> Iterator[str]:
    """The address of a cluster that wants the token in this file, in a process of its own."""
    script = (
        "from tests.support.ray_cluster import ray_cluster\n"
        "with ray_cluster(1) as one: print(one.address, flush=True); input()"
    )
    environment = {**os.environ, **ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    pipe, words = subprocess.PIPE, [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment) as held:
        assert held.stdout is not None
        try:
            yield held.stdout.readline().strip()
        finally:
            held.communicate("\n")


@pytest.mark.promise("Ray gives the same bytes; a lost node or driver costs time")
def test_shards_in_a_bucket(cluster: RayCluster, bucket_environment: str, bucket_url: str, tmp_path: Path) -> None:
    """They are made on the disk of a node and uploaded from there, also those of which a file grows; nothing is left on
    the disk."""
    source = write_jsonl(tmp_path / "a.jsonl", DOCUMENTS)
    with contextlib.closing(RayDriver(cluster.address)) as driver:
        for wanted in (Wanted("build-nanogpt", 2000), Wanted("megatron", 1500, val_ratio=Fraction(3, 10))):
            url = f"{bucket_url}/{wanted.layout}"
            words = ["--input", source, "--out", url, "--scratch", tmp_path / "scratch", *flags_of(wanted)]
            code, errors = driver.run("build", *words, *on(cluster))
            assert code == 0, errors
            expected = layout_reference.files(DOCUMENTS, wanted)
            assert BucketView(bucket_environment, url).outputs() == expected
    assert not list((tmp_path / "scratch").rglob("*.tmp"))
