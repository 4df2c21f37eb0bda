"""Write `.fineweb-shards/quarantine.jsonl`: the documents that a run had to leave out, one per line.

The file is for people; a resume reads the same documents from the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fineweb_shards.errors import ChangedError
from fineweb_shards.system.durable import WORK_FOLDER, write_file
from fineweb_shards.types import Quarantined

FILE_NAME = "quarantine.jsonl"


def write_quarantine(folder: Path, documents: Sequence[Quarantined], names: Sequence[Sequence[str]]) -> None:
    """Replace the file. `names` are those of each part's files. It is ASCII, so that `cat` is safe."""
    lines = [json.dumps(_to_json(document, names)) + "\n" for document in documents]
    work = folder / WORK_FOLDER
    write_file(work / FILE_NAME, "".join(lines).encode(), work)


def describe_document(document: Quarantined, names: Sequence[Sequence[str]]) -> str:
    """Return a phrase about a quarantined document, for the log."""
    place = f"row {document.row:,}" if document.row is not None else f"position {document.position:,}"
    called = f" ({document.id})" if document.id else ""
    what = "a piece of a document" if document.piece_of_bytes else "a document"
    size = f"{document.text_bytes:,} bytes"
    return f"{names[document.part][document.file]}: {what} of {size} at {place}{called}: {document.cause}"


def check_batch_bytes(documents: Sequence[Quarantined], batch_bytes: int) -> None:
    """Raise ChangedError if pieces of long documents would be cut at other places than when quarantined."""
    for document in documents:
        if document.piece_of_bytes not in (0, batch_bytes):
            raise ChangedError(
                f"--batch-bytes was {document.piece_of_bytes:,} when a piece of a document went to "
                f"quarantine and is {batch_bytes:,} now."
            )


def _to_json(document: Quarantined, names: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {**asdict(document), "file": names[document.part][document.file]}
