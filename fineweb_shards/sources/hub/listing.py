"""List the files of a dataset on the hub: once, in the parent, at one pinned commit.

Workers get paths, sizes and hashes. Config and split are resolved by `datasets` itself. Parquet is read by
row groups (parquet.py) or downloaded whole (downloads.py); anything else is streamed front to back (rows.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from fineweb_shards.errors import HubError
from fineweb_shards.sources.base import InputFile
from fineweb_shards.sources.hub.errors import hub_host, translated_errors
from fineweb_shards.sources.hub.quota import Quota
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.system.retry import Retrier, TransientError

DOWNLOAD_FOLDER = "downloads"  # in the work folder
_PATHS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a dataset at one commit."""

    commit: str
    files: tuple[InputFile, ...]


def list_dataset(
    dataset: str,
    name: str,
    hub_split: str,
    revision: str,
    retrier: Retrier,
    *,
    work_folder: Path,
    download: bool,
) -> Listing:
    """List the files of a config and split; with `download` they will be read from the disk."""
    open_session(retrier, Quota(work_folder, retrier.clock))
    api = HfApi()

    def commit_of() -> str:
        with translated_errors(f"dataset {dataset}"):
            return str(api.dataset_info(dataset, revision=revision or None).sha)

    # First, because its errors are clear: `datasets` reports an outage as a missing file.
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
        infos |= {info.path: info for info in retrier.call(partial(describe, some))}
    missing = [path for path in paths if path not in infos]
    if missing:
        raise HubError(f"dataset {dataset}: {missing[0]} is listed but not there.")
    files = []
    for index, path in enumerate(paths):
        info = infos[path]
        digest = info.lfs.sha256 if info.lfs else info.blob_id
        location = str(work_folder / DOWNLOAD_FOLDER / path) if download else prefix + path
        form = "download-parquet" if download else "hub-parquet"
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
    except RuntimeError as error:  # the dataset needs a script, which `datasets` no longer runs
        raise HubError(f"dataset {dataset}: {str(error).splitlines()[0]}") from None
    except FileNotFoundError as error:
        if type(error) is FileNotFoundError:  # this is how `datasets` reports an outage
            raise TransientError(f"{hub_host()}: the listing could not be read") from None
        raise HubError(f"dataset {dataset}: {str(error).splitlines()[0]}") from None
    found = builder.config.data_files or {}
    if hub_split not in found:
        known = ", ".join(map(str, found)) or "none"
        raise HubError(f"dataset {dataset}: there is no split {hub_split!r}.", f"Its splits are: {known}.")
    return [str(url) for url in found[hub_split]]
