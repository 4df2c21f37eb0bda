"""Exchange what the driver, which is the parent of a run, and its tasks on the nodes have to know.

Before its first task a process gets a `Shipment` from the run's board, an actor on the driver's node. It has what a
node lacks: the environment variables that say how data is reached, and the files of the tokenizer.

Tasks return their results by themselves. The board is for what can't wait until a task ends, such as that it waits for
the network. The driver has one question open, which is answered when there is something new, so nobody polls.

No tokens pass here, except those of a block with a seam: they stay in Ray's object store. Messages are pickled here, as
plain bytes; Ray's own way would take several times as long.
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
_PLACES = ("_HOME", "_CACHE", "_PATH", "_DIR")  # endings of names that stand for folders of the driver's
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TOKEN = "HF_TOKEN"
_TOKENIZER_FOLDER = "fineweb-shards-tokenizer-"  # the beginning of its name
_LEFT_AFTER_SECONDS = 3600.0  # loading takes seconds: whoever made an older folder was killed meanwhile


@dataclass(frozen=True)
class Shipment:
    """What a process on a node needs to know of a run, once."""

    spec: bytes  # a pickled WorkerSpec
    current_folder: str  # of the driver: relative paths start there
    vocabulary_files: dict[str, bytes] = field(repr=False)  # by name; GPT-2 has none
    environment: dict[str, str] = field(repr=False)  # variables; some are secrets
    shared: tuple[Path, ...]  # folders that all nodes have to see
    mark: str  # stands in a file of each of them


@dataclass(frozen=True)
class EncodedBatch:
    """The blocks of one batch. The rest of the batch may have an error."""

    blocks: tuple[Encoded, ...]
    error: ShardError | None = None


@dataclass(frozen=True)
class TaskResult:
    """The end of a task that encodes batches, all of them or, if it failed, none."""

    batches: tuple[EncodedBatch, ...] = ()
    death: Death | None = None  # of the attempt, although its process lives: memory was short
    failure: ShardError | None = None  # this process can encode nothing at all
    fetched_bytes: int = 0  # over the network


class Board:
    """An actor of the run. `shipment` is a pickled Shipment, made by this version of the program."""

    def __init__(self, version: str, shipment: bytes) -> None:
        self._version = version
        self._shipment = shipment
        self._news: list[News] = []
        self._has_news = asyncio.Event()

    async def get_shipment(self) -> tuple[str, bytes]:
        """Return what a process needs before its first task, and the version that can unpack it."""
        return self._version, self._shipment

    async def tell(self, news: News) -> None:
        self._news.append(news)
        self._has_news.set()

    async def take(self) -> list[News]:
        """Return what is new, as soon as there is something."""
        await self._has_news.wait()
        self._has_news.clear()
        news, self._news = self._news, []
        return news


def start_board(name: str, shipment: Shipment) -> Any:
    """Start the board of a run on the driver's node; return its handle. If it dies, Ray starts it again."""
    ray = load_ray()
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(Board).options(
        name=name, num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
    )
    return actor.remote(fineweb_shards.__version__, pickle.dumps(shipment))


def pack_environment(source: Parts, out: str) -> dict[str, str]:
    """Return the variables that nodes need to read the source and to write to `out`: addresses, proxies, credentials;
    for the hub with the token that was saved on this machine. A process of Ray's has the environment of its node, not
    of the driver. They are not given to Ray as a runtime environment, because that stands in its logs and on its
    dashboard, and some are secrets. For the same reason only those are sent that this run uses: where its input and its
    output are decides which."""

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
    """Set the variables that are not set on this node."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def pack_vocabulary(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Return the vocabulary's files, by name; GPT-2 needs none."""
    if not vocabulary.folder:
        return {}
    paths = [Path(vocabulary.folder, FILE_NAMES[vocabulary.reference]), engine_file(vocabulary)]
    return {path.name: read_file(path, MOST_BYTES) for path in paths if is_plain_file(path)}


@contextlib.contextmanager
def unpacked(spec: WorkerSpec, files: Mapping[str, bytes]) -> Iterator[WorkerSpec]:
    """Have the vocabulary's files on this machine for a while, and the spec with a vocabulary that finds them there:
    `Vocabulary.folder` is a folder of the driver's. They are there only while an engine loads them, in a folder of this
    process. So nothing stays on the node after a run, and no process believes what another user has put there."""
    if not files:
        yield spec
        return
    for left in Path(tempfile.gettempdir()).glob(f"{_TOKENIZER_FOLDER}*"):  # by processes that were killed
        with contextlib.suppress(OSError):  # somebody else's, or another process removes it now
            if left.lstat().st_mtime < time.time() - _LEFT_AFTER_SECONDS:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_TOKENIZER_FOLDER) as folder:  # nobody else can write there
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        vocabulary = replace(spec.shard_format.vocabulary, folder=folder)
        yield replace(spec, shard_format=replace(spec.shard_format, vocabulary=vocabulary))
