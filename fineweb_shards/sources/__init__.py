"""Find input files, cut them into batches, and read the documents in them. Start with `open_source`.

May import: the root, `system`, `tokenizers` (for where a long text may be cut).
"""

from __future__ import annotations

from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile, ReadSettings, Source
from fineweb_shards.sources.formats import load_format


def open_source(
    files: tuple[InputFile, ...], settings: ReadSettings, observer: Observer | None = None
) -> Source:
    """Make a source of these files. `observer` is told about waits for the network."""
    formats = {file.format: load_format(file.format)(settings, observer) for file in files}
    return Source(files, formats, settings)
