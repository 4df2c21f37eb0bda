"""Exchange data between the driver, which is the parent of a run, and its tasks on the nodes.

Before its first task a process gets a `Shipment` from the run's board, an actor on the driver's node. It contains what
the node lacks: environment variables with addresses and credentials, and the files of the tokenizer.

Results come back from the tasks themselves. The board carries news that can't wait until a task ends, such as a wait
for the network. Nobody polls: the driver keeps one request open, which the board answers as soon as there is news.

Tokens stay in Ray's object store; only those of a block with a seam are sent. Messages are pickled to bytes here,
because Ray's own serialization takes several times as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fineweb_shards
from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.messages import Encoded, Waiting
from fineweb_shards.executors.ray.cluster import load_ray
from fineweb_shards.executors.task import Death
from fineweb_shards.sources.source import Parts
from fineweb_shards.system.own_files import is_plain_file, read_file
from fineweb_shards.tokenizers.vocabulary_files import FILE_NAMES, MOST_BYTES, engine_file
from fineweb_shards.vocabulary import Vocabulary

News = tuple[int, Event | Waiting]  # with the number of the task

_HUB = ("HF_", "DATASETS_")
_STORES = {"s3": ("AWS_",), "gs": ("GOOGLE_",), "az": ("AZURE_",)}  # by the scheme of an address
_PLACES = ("_HOME", "_CACHE", "_PATH", "_DIR")  # endings of variables that name folders of the driver
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TOKEN = "HF_TOKEN"
_TOKENIZER_FOLDER = "fineweb-shards-tokenizer-"  # the beginning of its name
_LEFT_AFTER_SECONDS = 3600.0  # loading takes seconds: an older folder is a killed process's


@dataclass(frozen=True)
class Shipment:
    """The settings of a run, sent once to each process on a node."""

    spec: bytes  # a pickled WorkerSpec
    current_folder: str  # of the driver: relative paths start there
    vocabulary_files: dict[str, bytes] = field(repr=False)  # by name; GPT-2 has none
    environment: dict[str, str] = field(repr=False)  # variables; some are secrets
    shared: tuple[Path, ...]  # folders that all nodes must see
    mark: str  # the content of a file in each of them


@dataclass(frozen=True)
class EncodedBatch:
    """The blocks of one batch, and the error that ended it, if any."""

    blocks: tuple[Encoded, ...]
    error: ShardError | None = None


@dataclass(frozen=True)
class TaskResult:
    """The outcome of a task that encodes batches: all of them or, if it failed, none."""

    batches: tuple[EncodedBatch, ...] = ()
    death: Death | None = None  # of the attempt, for lack of memory; its process survives
    failure: ShardError | None = None  # this process can't encode anything
    fetched_bytes: int = 0  # over the network


class Board:
    """The run's actor. `shipment` is a Shipment pickled by this version of the program."""

    def __init__(self, version: str, shipment: bytes) -> None:
        self._version = version
        self._shipment = shipment
        self._news: list[News] = []
        self._has_news = asyncio.Event()

    async def get_shipment(self) -> tuple[str, bytes]:
        """Return the version that pickled the shipment, and the shipment."""
        return self._version, self._shipment

    async def tell(self, news: News) -> None:
        self._news.append(news)
        self._has_news.set()

    async def take(self) -> list[News]:
        """Wait for news and return it."""
        await self._has_news.wait()
        self._has_news.clear()
        news, self._news = self._news, []
        return news


def start_board(name: str, shipment: Shipment) -> Any:
    """Start the board of a run on the driver's node and return its handle. Ray restarts it if it dies."""
    ray = load_ray()
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(Board).options(
        name=name, num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
    )
    return actor.remote(fineweb_shards.__version__, pickle.dumps(shipment))


def pack_environment(source: Parts, out: str) -> dict[str, str]:
    """Return the variables that nodes need to read the source and write to `out`: addresses, proxies, credentials and,
    for the hub, the token saved on this machine. Ray's processes have the environment of their node, not the driver's.
    A runtime environment of Ray's would show the secrets in its logs and on its dashboard. Only variables that this
    run's input and output use are sent."""

    def is_needed(name: str) -> bool:
        if name.upper() in _PROXIES:
            return bool(prefixes or source.is_remote)
        return name.startswith(tuple(prefixes)) and not name.endswith(_PLACES)

    addresses = [file.path for file in source.files if file.is_remote] + [out]
    prefixes = [name for address in addresses for name in _STORES.get(address.partition("://")[0], ())]
    is_hub = any(part.settings.hub is not None for part in source.parts)
    if is_hub:
        prefixes += _HUB
    found = {name: value for name, value in os.environ.items() if is_needed(name)}
    if is_hub and _TOKEN not in found:
        from huggingface_hub import get_token

        if token := get_token():
            found[_TOKEN] = token
    return found


def apply_environment(variables: Mapping[str, str]) -> None:
    """Set the variables that this node does not set itself."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def pack_vocabulary(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return the vocabulary's files by name; GPT-2 needs none."""
    if not vocabulary.folder:
        return {}
    paths = [Path(vocabulary.folder, FILE_NAMES[vocabulary.reference]), engine_file(vocabulary)]
    return {path.name: read_file(path, MOST_BYTES) for path in paths if is_plain_file(path)}


@contextlib.contextmanager
def unpacked(spec: WorkerSpec, files: Mapping[str, bytes]) -> Iterator[WorkerSpec]:
    """Unpack the vocabulary's files while an engine loads them, and yield the spec with a vocabulary in that folder:
    the original `Vocabulary.folder` exists on the driver only. The folder is private to this process, so nothing stays
    on the node after a run, and no process trusts files that another user has put there."""
    if not files:
        yield spec
        return
    for left in Path(tempfile.gettempdir()).glob(f"{_TOKENIZER_FOLDER}*"):  # by killed processes
        with contextlib.suppress(OSError):  # another user's, or another process is removing it
            if left.lstat().st_mtime < time.time() - _LEFT_AFTER_SECONDS:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_TOKENIZER_FOLDER) as folder:  # writable only for this user
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        vocabulary = replace(spec.shard_format.vocabulary, folder=folder)
        yield replace(spec, shard_format=replace(spec.shard_format, vocabulary=vocabulary))
