"""Read row groups of parquet files on the hub: the workers fetch them by range requests."""

from __future__ import annotations

from typing import Any

from huggingface_hub import hf_hub_url

from fineweb_shards.errors import Interrupted, ShardError
from fineweb_shards.events import Observer
from fineweb_shards.sources.base import InputFile, ReadSettings
from fineweb_shards.sources.hub.ranges import RangeFile
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.types import Batch

# Neighbouring row groups are fetched with one request, including the columns that are not needed, if that is
# at most so much more than the text.
_MOST_OVERHEAD = 1.08
_LARGEST_FETCH_BYTES = 64 * 2**20
_READ_BUFFER_BYTES = 8 * 2**20


class HubParquetFormat(ParquetFormat):
    """Parquet files on the hub, read by range requests."""

    # Larger batches, because the hub allows an anonymous user only ten requests a second.
    batches_at_once = 2

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        open_session(self.retrier)
        self._open_files: dict[str, tuple[Any, RangeFile]] = {}
        self._nearly_all_text: dict[str, bool] = {}

    def open(self, file: InputFile) -> Any:
        return self._opened(file)[0]

    def _opened(self, file: InputFile) -> tuple[Any, RangeFile]:
        """Open a file. At most two stay open: the one being read and the one being prefetched."""
        if file.path not in self._open_files:
            remote = self._remote(file)
            parsed = self.parse(file, remote, _READ_BUFFER_BYTES)
            for old in list(self._open_files)[:-1]:
                self._open_files.pop(old)[1].close()
            self._open_files[file.path] = (parsed, remote)
        return self._open_files[file.path]

    def _remote(self, file: InputFile) -> RangeFile:
        hub = self.settings.hub
        assert hub is not None
        url = hf_hub_url(hub.dataset, file.name, repo_type="dataset", revision=hub.commit)
        return RangeFile(url, file.size_bytes, file.content_hash, self.retrier)

    def _stripes(self, file: InputFile, group: int, rows: int, size: int) -> Any:
        """Keep a large row group in one batch: if it were divided, every worker would fetch all of it."""
        yield Batch(file.index, group, group + 1, size)

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        try:
            parsed, remote = self._opened(file)
        except Interrupted:
            raise
        except ShardError:
            return  # reading the batch will raise it again, and then it is reported
        for start, stop in self._ranges(file, parsed.metadata, batch):
            if stop - start <= _LARGEST_FETCH_BYTES:
                remote.prefetch(start, stop)

    def _ranges(self, file: InputFile, metadata: Any, batch: Batch) -> list[tuple[int, int]]:
        """Return the ranges to fetch for a batch, in their order: all its row groups as one, or of each
        only the columns that are read."""
        groups = [_extents(metadata.row_group(i)) for i in range(batch.position, batch.end)]
        columns = self.columns(file)
        if self._is_nearly_all_text(file):
            first = min(groups[0][name][0] for name in columns)
            return [(first, max(groups[-1][name][1] for name in columns))]
        return sorted(group[name] for group in groups for name in columns)

    def columns(self, file: InputFile) -> list[str]:
        """Return the columns to read; not FineWeb's token counts if those would need extra requests."""
        return (
            super().columns(file) if self._is_nearly_all_text(file) else [*self.footer(file).needed_columns]
        )

    def _is_nearly_all_text(self, file: InputFile) -> bool:
        """Tell whether the other columns are small enough to fetch neighbouring row groups as one range."""
        if file.path not in self._nearly_all_text:
            metadata = self.open(file).metadata
            groups = [_extents(metadata.row_group(i)) for i in range(metadata.num_row_groups)]
            texts = [group[self.settings.text_column] for group in groups]
            everything = sum(stop - start for group in groups for start, stop in group.values())
            only_text = sum(stop - start for start, stop in texts)
            self._nearly_all_text[file.path] = everything <= _MOST_OVERHEAD * only_text
        return self._nearly_all_text[file.path]

    def chunks(self, file: InputFile, batch: Batch) -> Any:
        parsed, remote = self._opened(file)
        remote.forget_before(self._ranges(file, parsed.metadata, batch)[0][0])
        return super().chunks(file, batch)

    def close(self) -> None:
        for _, remote in self._open_files.values():
            remote.close()
        self._open_files.clear()
        super().close()


def _extents(group: Any) -> dict[str, tuple[int, int]]:
    """Return the byte range of each column of a row group in the file."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    return {
        chunk.path_in_schema: (start, start + chunk.total_compressed_size)
        for chunk, start in zip(chunks, starts, strict=True)
    }
