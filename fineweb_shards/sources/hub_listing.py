"""List the files of a dataset on the hub: once, in the parent, at one pinned commit.

`datasets` resolves config and split. Our readers then read the formats they know; `datasets` streams the others
(hub_rows.py). A path or pattern (hub_files.py) needs no `datasets`. Workers receive paths, sizes and hashes; a resume
takes them from the manifest (hub_files.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import io
import re
from functools import partial
from itertools import takewhile
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile, RepoFolder

from fineweb_shards.errors import HubError
from fineweb_shards.formats.jsonl import is_array
from fineweb_shards.formats.registry import FORMATS, split_suffixes
from fineweb_shards.formats.text_samples import SAMPLE_BYTES
from fineweb_shards.sources.discovery import Search, choose_paths
from fineweb_shards.sources.hub_files import ListedFile, Listing
from fineweb_shards.storage.hub import RemoteFile
from fineweb_shards.storage.hub_session import Quota, hub_host, open_session, translated_errors
from fineweb_shards.storage.streams import DamagedStreamError, GzipUnpacker
from fineweb_shards.system.retry import Retrier, TransientError

_PATHS_AT_ONCE = 500
_CARD = "README.md"  # describes the dataset, so it is not input
# Fields of a config of `datasets` that don't affect how files are read.
_PLAIN_FIELDS = {"name", "version", "data_dir", "data_files", "description", "features"}


def list_dataset(
    dataset: str, name: str, hub_split: str, revision: str, retrier: Retrier, work_folder: Path, search: Search
) -> Listing:
    """List the files of a config and split or, without a split, those of a path or pattern."""
    open_session(retrier, Quota(work_folder, retrier.clock))
    api, translated = HfApi(), translated_errors(f"dataset {dataset}")  # as a decorator
    # First, because its errors are clear: `datasets` reports an outage as a missing file.
    commit = str(retrier.call(translated(partial(api.dataset_info, dataset, revision=revision or None))).sha)
    if not hub_split:
        infos = retrier.call(lambda: _find_files(api, dataset, name, commit))
        chosen = choose_paths(f"hf://datasets/{dataset}/{name}", name, infos, search)
        return Listing(dataset, commit, tuple(_describe(infos[path]) for path in chosen))
    urls, needs_datasets = retrier.call(lambda: _resolve(dataset, name, hub_split, commit))
    paths = [url.removeprefix(f"hf://datasets/{dataset}@{commit}/") for url in urls]
    rows = Listing(dataset, commit, (ListedFile(f"{name or dataset}/{hub_split}", 0, ""),))
    # Our readers decompress only formats that are text.
    kinds = [split_suffixes(path) for path in paths]
    if needs_datasets or any(
        kind is None or (compression is not None and not FORMATS[kind].is_text) for kind, compression in kinds
    ):
        return rows
    infos = {}
    for first in range(0, len(paths), _PATHS_AT_ONCE):
        some = paths[first : first + _PATHS_AT_ONCE]
        describe = partial(api.get_paths_info, dataset, some, repo_type="dataset", revision=commit)
        infos |= {info.path: info for info in retrier.call(translated(describe)) if isinstance(info, RepoFile)}
    missing = [path for path in paths if path not in infos]
    if missing:
        raise HubError(f"dataset {dataset}: {missing[0]} is listed, but does not exist.")
    listing = Listing(dataset, commit, tuple(_describe(infos[path]) for path in paths))
    return rows if _is_one_array(listing, retrier) else listing


def _find_files(api: HfApi, dataset: str, path: str, commit: str) -> dict[str, RepoFile]:
    """Return the file at a path, or all files in the folder of a pattern."""
    folder = "/".join(takewhile(lambda part: not glob.has_magic(part), path.split("/")))
    found: list[RepoFile | RepoFolder] = []
    with translated_errors(f"dataset {dataset}"), contextlib.suppress(EntryNotFoundError):
        found = api.get_paths_info(dataset, [path], repo_type="dataset", revision=commit) if path else []
        if not any(isinstance(one, RepoFile) for one in found):
            tree = api.list_repo_tree(dataset, folder or None, recursive=True, revision=commit, repo_type="dataset")
            found = [one for one in tree if one.path != _CARD]
    return {one.path: one for one in found if isinstance(one, RepoFile)}


def _describe(info: RepoFile) -> ListedFile:
    return ListedFile(info.path, info.size, info.lfs.sha256 if info.lfs else info.blob_id)


def _is_one_array(listing: Listing, retrier: Retrier) -> bool:
    """Return whether the first `.json` file is an array, which only `datasets` can read, not JSON lines."""
    endings = (".json", ".json.gz", ".json.gzip")  # an array with zstd is refused when it is read
    file = next((file for file in listing.files if file.name.lower().endswith(endings)), None)
    if file is None or not file.size_bytes:
        return False
    url = hf_hub_url(listing.dataset, file.name, repo_type="dataset", revision=listing.commit)
    remote = RemoteFile(url, file.size_bytes, file.content_hash, retrier)
    head = bytes(remote.fetch(0, min(SAMPLE_BYTES, file.size_bytes)))
    if split_suffixes(file.name)[1] == "gzip":
        with contextlib.suppress(DamagedStreamError):  # raised again when the file is read
            head = GzipUnpacker(io.BytesIO(head)).read(SAMPLE_BYTES)
    return is_array(head)


def _resolve(dataset: str, name: str, hub_split: str, commit: str) -> tuple[list[str], bool]:
    """Return the addresses of the files of a config and split, and whether its card has options that our readers don't
    support, such as the field of a JSON file, or the separator of a CSV file."""
    import datasets  # heavy, and only needed here

    try:
        with translated_errors(f"dataset {dataset}"):
            builder = datasets.load_dataset_builder(dataset, name=name or None, revision=commit)
    except ValueError as error:  # a misspelt config; the message lists the existing ones
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
    config = builder.config
    settings = [field for field in dataclasses.fields(config) if field.name not in _PLAIN_FIELDS]
    changed = {field.name for field in settings if getattr(config, field.name) != field.default}
    if getattr(config, "sep", None) == "\t":  # set for .tsv by `datasets` itself
        changed.discard("sep")
    return [str(url) for url in found[hub_split]], bool(changed)
