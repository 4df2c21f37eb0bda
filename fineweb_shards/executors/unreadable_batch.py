"""Replace a batch on which workers die while they read it, before they reach a document."""

from __future__ import annotations

import numpy as np

from fineweb_shards.errors import WorkerError
from fineweb_shards.executors.exit_cause import Death
from fineweb_shards.executors.task import Task
from fineweb_shards.sources.parts import Parts
from fineweb_shards.stream.boundaries import NO_POSITIONS
from fineweb_shards.types import Counts, Cursor, EncodedBlock


def replace_unreadable(source: Parts, task: Task, death: Death) -> EncodedBlock | WorkerError:
    """Return the error that ends the run or, with `--on-bad-file skip`, an empty block that reports it.

    `death` is that of the last worker.
    """
    batch, file = task.batch, source.file_of(task.batch)
    settings = source.of(batch).settings
    sentence = (
        f"{file.path}: {task.deaths} workers died while they read the batch at position {batch.position}; "
        f"the last one {death.description}."
    )
    # Skip it only if a resume can start after it; otherwise a resume might find the batch readable.
    whole = batch.rows is None and not (
        batch.starts_mid_document or batch.ends_mid_document or batch.starts_at_seam or task.received
    )
    if task.stuck or not (settings.skip_bad and whole):  # stuck: a disk may have been away for a while
        return WorkerError(sentence)
    nothing = np.empty(0, settings.vocabulary.dtype), NO_POSITIONS
    start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
    note = (f"left out: {sentence}",)
    return EncodedBlock(start, end, *nothing, counts=Counts(bad_parts=1), problems=note, part=batch.part)
