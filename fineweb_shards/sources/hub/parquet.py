"""A dataset on the Hugging Face hub: which files it is made of, and how they are read.

One process lists, once, at one pinned commit; workers get paths, sizes and hashes. Parquet is read by row
groups inside the workers (`HubParquetFormat`), or downloaded whole a few files ahead
(`DownloadedFormat`). Anything else is streamed front to back with `datasets` (hub_rows.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url

from fineweb_shards.errors import ChangedError, HubError, Interrupted, ShardError
from fineweb_shards.events import Observer
from fineweb_shards.sources.base import HubRef, InputFile, ReadSettings
from fineweb_shards.sources.hub.errors import hub_host, translated_errors
from fineweb_shards.sources.hub.ranges import RangeFile
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.sources.parquet import ParquetFormat
from fineweb_shards.system.background import in_background
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.durable import output_error
from fineweb_shards.system.retry import Retrier, TransientError
from fineweb_shards.types import Batch

_PATHS_AT_ONCE = 500
# Row groups that lie next to each other are fetched with one request, other columns included, where those
# are this small a part of them.
_MOST_OVERHEAD = 1.08
_LARGEST_FETCH_BYTES = 64 * 2**20
_READ_BUFFER_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Listing:
    """What a dataset is at one commit."""

    commit: str
    files: tuple[InputFile, ...]


def list_dataset(
    dataset: str, name: str, hub_split: str, revision: str, retrier: Retrier, *, download: Path | None
) -> Listing:
    """The files of a config and split, resolved by `datasets` itself."""
    open_session(retrier)
    api = HfApi()

    def commit_of() -> str:
        with translated_errors(f"dataset {dataset}"):
            return str(api.dataset_info(dataset, revision=revision or None).sha)

    # First, because its errors are clean: `datasets` tells an outage as a missing file.
    commit = retrier.call(commit_of)
    urls = retrier.call(lambda: _resolve(dataset, name, hub_split, commit))
    prefix = f"hf://datasets/{dataset}@{commit}/"
    paths = [url.removeprefix(prefix) for url in urls]
    if not all(path.endswith(".parquet") for path in paths):
        whole = InputFile(
            0, f"{prefix}{name}/{hub_split}", f"{name or dataset}/{hub_split}", "hub-rows", None, 0, 0, ""
        )
        return Listing(commit, (whole,))

    def describe(some: list[str]) -> list[Any]:
        with translated_errors(f"dataset {dataset}"):
            return list(api.get_paths_info(dataset, some, repo_type="dataset", revision=commit))

    infos: dict[str, Any] = {}
    for first in range(0, len(paths), _PATHS_AT_ONCE):
        some = paths[first : first + _PATHS_AT_ONCE]
        infos |= {info.path: info for info in retrier.call(lambda some=some: describe(some))}  # type: ignore[misc]
    missing = [path for path in paths if path not in infos]
    if missing:
        raise HubError(f"dataset {dataset}: {missing[0]} is listed but not there.")
    files = []
    for index, path in enumerate(paths):
        info = infos[path]
        digest = info.lfs.sha256 if info.lfs else info.blob_id
        location = str(download / path) if download else prefix + path
        form = "hub-download" if download else "hub-parquet"
        files.append(InputFile(index, location, path, form, None, info.size, 0, digest))
    return Listing(commit, tuple(files))


def _resolve(dataset: str, name: str, hub_split: str, commit: str) -> list[str]:
    import datasets  # heavy, and only needed here

    try:
        with translated_errors(f"dataset {dataset}"):
            builder = datasets.load_dataset_builder(dataset, name=name or None, revision=commit)
    except ValueError as error:  # a misspelt config; the message has the names that exist
        names = re.findall(r"'([^']+)'", str(error).partition("Available")[2])
        known = f"Its configs are: {', '.join(names)}." if names else str(error)
        raise HubError(f"dataset {dataset}: there is no config {name!r}.", known) from None
    except RuntimeError as error:  # it needs a script, which is no longer run
        raise HubError(f"dataset {dataset}: {str(error).splitlines()[0]}") from None
    except FileNotFoundError as error:
        if type(error) is FileNotFoundError:  # how `datasets` tells an outage
            raise TransientError(f"{hub_host()}: the listing could not be read") from None
        raise HubError(f"dataset {dataset}: {str(error).splitlines()[0]}") from None
    found = builder.config.data_files or {}
    if hub_split not in found:
        known = ", ".join(map(str, found)) or "none"
        raise HubError(f"dataset {dataset}: there is no split {hub_split!r}.", f"Its splits are: {known}.")
    return [str(url) for url in found[hub_split]]


class HubParquetFormat(ParquetFormat):
    """Row groups straight from the hub."""

    # The hub allows an anonymous user ten requests a second: several row groups with each of them.
    batches_at_once = 2

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        open_session(self.retrier)
        self._open_files: dict[str, tuple[Any, RangeFile]] = {}
        self._nearly_all_text: dict[str, bool] = {}

    def open(self, file: InputFile) -> Any:
        return self._opened(file)[0]

    def _opened(self, file: InputFile) -> tuple[Any, RangeFile]:
        """Two files at most: the one being read and the one being prefetched from."""
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
        """A large row group stays whole: in stripes every worker would fetch all of it."""
        yield Batch(file.index, group, group + 1, size)

    def prefetch(self, file: InputFile, batch: Batch) -> None:
        try:
            parsed, remote = self._opened(file)
        except Interrupted:
            raise
        except ShardError:
            return  # whoever reads the batch meets it again, and reports it
        for start, stop in self._ranges(file, parsed.metadata, batch):
            if stop - start <= _LARGEST_FETCH_BYTES:
                remote.prefetch(start, stop)

    def _ranges(self, file: InputFile, metadata: Any, batch: Batch) -> list[tuple[int, int]]:
        """What to fetch for a batch: all its row groups in one piece, or only the text of each."""
        groups = [_extents(metadata.row_group(i)) for i in range(batch.position, batch.end)]
        texts = [group[self.settings.text_column] for group in groups]
        if self._is_nearly_all_text(file):
            return [(texts[0][0], max(groups[-1][name][1] for name in self.columns(file)))]
        return texts

    def columns(self, file: InputFile) -> list[str]:
        """Without FineWeb's claims where they would cost requests of their own."""
        return super().columns(file) if self._is_nearly_all_text(file) else [self.settings.text_column]

    def _is_nearly_all_text(self, file: InputFile) -> bool:
        """Whether neighbouring row groups are best fetched in one piece, other columns and all."""
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
    """Where the columns of a row group lie in the file."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    return {
        chunk.path_in_schema: (start, start + chunk.total_compressed_size)
        for chunk, start in zip(chunks, starts, strict=True)
    }


class DownloadedFormat(ParquetFormat):
    """Whole files, fetched with huggingface_hub (xet where available) a few ahead, deleted after use."""

    def __init__(self, settings: ReadSettings, observer: Observer | None = None) -> None:
        super().__init__(settings, observer)
        open_session(self.retrier)
        self._downloads: dict[str, Future[None]] = {}

    def expect(self, files: Sequence[InputFile]) -> None:
        for file in files:
            if file.path not in self._downloads:
                self._downloads[file.path] = in_background(partial(self._download, file))

    def open(self, file: InputFile) -> Any:
        self.expect([file])  # where it is there already, nothing happens
        self._downloads[file.path].result()
        return super().open(file)

    def _download(self, file: InputFile) -> None:
        path = Path(file.path)
        if path.exists() and path.stat().st_size == file.size_bytes:
            return
        hub = self.settings.hub
        assert hub is not None
        disk = Disk(path.parent, hub.max_outage_seconds, self.retrier.observer)
        disk.attempt(lambda: self.retrier.call(partial(self._download_once, file, hub)))
        self.retrier.observer.fetch(file.size_bytes)

    def _download_once(self, file: InputFile, hub: HubRef) -> None:
        url = hf_hub_url(hub.dataset, file.name, repo_type="dataset", revision=hub.commit)
        try:
            with translated_errors(file.name):
                now = get_hf_file_metadata(url).etag
                if now != file.content_hash:
                    was = file.content_hash
                    raise ChangedError(f"{file.name}: the file on the hub was {was} and is {now}.")
                hf_hub_download(
                    hub.dataset,
                    file.name,
                    repo_type="dataset",
                    revision=hub.commit,
                    local_dir=hub.download_folder,
                )
        except OSError as error:
            raise output_error(Path(file.path), error) from None

    def release(self, files: Sequence[InputFile]) -> None:
        hub = self.settings.hub
        if hub is None or hub.keep_downloads:
            return
        for file in files:
            if file.format == "hub-download":
                Path(file.path).unlink(missing_ok=True)
