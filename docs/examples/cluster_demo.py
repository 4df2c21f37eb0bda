"""`make cluster-demo`: two Ray nodes and an S3 server on this machine; one node is killed during the build.

The nodes encode the source files of Python's library into shards in a bucket. After a few shards the second node is
killed, and later a new one joins. In the end every shard must equal the one that this machine makes alone, in a folder.
Everything, including Ray's own files, is in a temporary folder that is removed at the end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fineweb_shards.storage.bucket import Bucket

OUT = "s3://demo/shards"
BUILD = ["build", "demo", "--engine", "tiktoken", "--shard-tokens", "600k", "--quiet"]
SERVER = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"
NODE = {"num_cpus": 1, "object_store_memory": 128 * 2**20}


def main() -> None:
    # Socket paths are limited to about a hundred bytes, and macOS has a long path for temporary files.
    short = "/tmp" if sys.platform == "darwin" else None
    made = tempfile.TemporaryDirectory(prefix="cluster-demo-", dir=short, ignore_cleanup_errors=True)
    with made as name, s3_server() as endpoint:
        folder = Path(name)
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": name,
        }
        say(f"an S3 server is listening at {endpoint}")
        run_on_cluster(folder)
        command("verify", OUT)
        say("building the same on this machine alone, into a folder")
        command(*BUILD, "--out", str(folder / "alone"))
        alone = hashes((folder / "alone" / "manifest.json").read_bytes())
        if bucket_hashes() != alone:
            sys.exit("The shards differ.")
        say(f"all {len(alone)} shards are identical, byte for byte")


def run_on_cluster(folder: Path) -> None:
    """Build into the bucket; kill a node after the first shards."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(**NODE)
        second = cluster.add_node(**NODE)
        say("two Ray nodes are up, with one core each")
        where = ["--out", OUT, "--scratch", str(folder / "scratch")]
        cluster_of_nodes = ["--executor", "ray", "--ray-address", cluster.address]
        build = subprocess.Popen([sys.executable, "-m", "fineweb_shards", *BUILD, *where, *cluster_of_nodes])
        wait_for_shards(build, 3)
        cluster.remove_node(second, allow_graceful=False)
        say("killed a node, with all its tokens")
        command("status", OUT, expected=(20,))
        cluster.add_node(**NODE)
        say("a new node has joined")
        if code := build.wait():
            sys.exit(code)
    finally:
        cluster.shutdown()


def wait_for_shards(build: subprocess.Popen[bytes], shards: int) -> None:
    while len(bucket_hashes()) < shards:
        if build.poll() is not None:
            sys.exit(f"The build ended too early, with exit code {build.returncode}.")
        time.sleep(0.1)


def bucket_hashes() -> dict[str, str]:
    """Return the names and hashes of the shards in the bucket's manifest."""
    found = Bucket(OUT).read("manifest.json")
    return hashes(found[0]) if found else {}


def hashes(manifest: bytes) -> dict[str, str]:
    return {shard["name"]: shard["sha256"] for shard in json.loads(manifest)["shards"]}


def command(*words: str, expected: tuple[int, ...] = (0,)) -> None:
    """Run the command as a user does."""
    print(f"$ fineweb-shards {' '.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "fineweb_shards", *words], check=False)
    if done.returncode not in expected:
        sys.exit(done.returncode)


@contextmanager
def s3_server() -> Iterator[str]:
    """A server with a bucket, in a separate process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        while True:
            with suppress(OSError):
                urllib.request.urlopen(urllib.request.Request(f"{endpoint}/demo", method="PUT")).close()
                break
            time.sleep(0.1)
        yield endpoint
    finally:
        server.kill()
        server.wait()


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


if __name__ == "__main__":
    main()
