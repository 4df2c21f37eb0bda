"""Define what passes between the driver, which is the parent of a run, and its tasks on the nodes.

No tokens, except those of a block with a seam: they stay in Ray's object store. Messages are pickled here, as
plain bytes; Ray's own way would take several times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fineweb_shards.errors import ShardError
from fineweb_shards.events import Event
from fineweb_shards.executors.exit_cause import Death
from fineweb_shards.types import EncodedBlock


@dataclass(frozen=True)
class Shipment:
    """What a process on a node needs to know of a run, once."""

    spec: bytes  # a pickled WorkerSpec
    current_folder: str  # of the driver: relative paths start there
    vocabulary_files: dict[str, bytes] = field(repr=False)  # by name; GPT-2 has none
    environment: dict[str, str] = field(repr=False)  # variables; some are secrets
    mark: str | None  # stands in a file of the output folder, if all nodes have to see that folder


@dataclass(frozen=True)
class EncodedBatch:
    """The blocks of one batch, each with its number in it. The rest of the batch may have an error."""

    blocks: tuple[tuple[int, EncodedBlock], ...]
    error: ShardError | None = None


@dataclass(frozen=True)
class Encoded:
    """The end of a task that encodes batches, all of them or, if a process died or failed, none."""

    batches: tuple[EncodedBatch, ...] = ()
    death: Death | None = None  # of the process that tried the documents one by one
    failure: ShardError | None = None  # this process can encode nothing at all
    process: str = ""  # where it ran
    memory_bytes: int = 0  # of that process
    fetched_bytes: int = 0  # over the network
    waited_seconds: float = 0.0  # for those bytes


@dataclass(frozen=True)
class Waiting:
    """A task waits for the network or the disk (`cause`), for this reason; None: no longer."""

    cause: str
    reason: str | None


News = tuple[int, Event | Waiting]  # with the number of the task
