"""List the files of a dataset on the hub: once, in the parent, at one pinned commit.

Config and split are resolved by `datasets` itself. Parquet is read by row groups (parquet.py) or downloaded
whole (downloads.py); anything else is streamed front to back (rows.py). Workers get paths, sizes and hashes;
a resume takes them from the manifest (listed_files.py).
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from fineweb_shards.errors import HubError
from fineweb_shards.sources.hub.errors import hub_host, translated_errors
from fineweb_shards.sources.hub.listed_files import ListedFile, Listing
from fineweb_shards.sources.hub.quota import Quota
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.system.retry import Retrier, TransientError

_PATHS_AT_ONCE = 500


def list_dataset(
    dataset: str, name: str, hub_split: str, revision: str, retrier: Retrier, work_folder: Path
) -> Listing:
    """List the files of a config and split."""
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
        return Listing(dataset, commit, (ListedFile(f"{name or dataset}/{hub_split}", 0, ""),))

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
    return Listing(dataset, commit, tuple(_listed_file(infos[path]) for path in paths))


def _listed_file(info: Any) -> ListedFile:
    return ListedFile(info.path, info.size, info.lfs.sha256 if info.lfs else info.blob_id)


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
