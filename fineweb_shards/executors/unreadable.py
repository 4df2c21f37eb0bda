"""What stands in the stream for a batch that ends its workers before they come to any document."""

from __future__ import annotations

import numpy as np

from fineweb_shards.errors import WorkerError
from fineweb_shards.executors.death import Death
from fineweb_shards.executors.task import Task
from fineweb_shards.sources.base import Source
from fineweb_shards.stream.borders import NO_PLACES
from fineweb_shards.types import Counts, Cursor, EncodedBlock


def replace_unreadable(source: Source, task: Task, death: Death) -> EncodedBlock | WorkerError:
    """Make the error that ends the run or, with `--on-bad-file skip`, an empty block that says what is left
    out. `death` is that of the last worker."""
    batch, file = task.batch, source.files[task.batch.file]
    sentence = (
        f"{file.path}: the batch at position {batch.position} ended {task.deaths} workers while it was "
        f"read; the last one {death.words}."
    )
    # Only where a resume can begin behind it: it might find the batch readable.
    whole = batch.rows is None and not (
        batch.starts_mid_document or batch.ends_mid_document or batch.seam or task.received
    )
    if task.stuck or not (source.settings.skip_bad and whole):  # a disk may have been away
        return WorkerError(sentence)
    nothing = np.empty(0, source.settings.vocabulary.dtype), NO_PLACES
    start, end = Cursor(batch.file, batch.position), Cursor(batch.file, batch.end)
    note = (f"left out: {sentence}",)
    return EncodedBlock(start, end, *nothing, counts=Counts(bad_parts=1), problems=note)
