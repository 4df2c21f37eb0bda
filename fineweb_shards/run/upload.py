"""`upload`: send finished, verified shards to a dataset on the Hugging Face hub, with a dataset card.

Files are sent one after the other and committed twenty at a time, because the hub allows about a hundred commits per
hour. A file that the hub has already, by its hash, is not sent again, be it committed or only sent by an interrupted
run; so the same command resumes an upload. The manifest and the card come last.

`HfApi.upload_folder` promises no such order, and makes one commit of everything, so that one failure repeats all of it
and --max-outage would count from the first one. `upload_large_folder` retries without end, prints reports of its own,
and writes its state into the folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, DatasetCardData, HfApi, RepoFile, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from fineweb_shards.errors import HubError, InputError, UsageError
from fineweb_shards.layouts.base import tokens_of
from fineweb_shards.storage.hub_errors import translated_errors
from fineweb_shards.storage.hub_session import open_session
from fineweb_shards.store.manifest import FILE_NAME, MOST_BYTES, Manifest
from fineweb_shards.store.shard_files import list_files
from fineweb_shards.system.own_files import read_file
from fineweb_shards.system.retry import Retrier
from fineweb_shards.units import show_bytes, show_number_of

CARD_NAME = "README.md"
_FILES_PER_COMMIT = 20
_LONGEST_CARD_BYTES = 2**20
_DATASET = "dataset"
_ANSWER_SECONDS = 600.0  # the hub checks large files before it answers
Result = TypeVar("Result")
# Marks a card that a later upload may replace; a card without it was written by a person, and is kept.
MARK = "<!-- made by fineweb_shards upload -->"
_LICENCES = {"HuggingFaceFW/fineweb-edu": "odc-by", "HuggingFaceFW/fineweb": "odc-by"}


@dataclass(frozen=True, slots=True)
class CardFile:
    """A file of tokens, or its sidecar, in the card's table."""

    name: str
    split: str
    tokens: int
    documents: int
    size_bytes: int
    sha256: str


class Uploader:
    """Uploads a folder to one dataset."""

    def __init__(self, repo: str, retrier: Retrier, say: Callable[[str], None]) -> None:
        # No retries in the session: a commit whose answer was lost must not be sent again unchanged.
        open_session(None, answer_seconds=_ANSWER_SECONDS)
        if get_token() is None:
            raise HubError(
                f"--repo {repo}: there is no token for the hub.",
                "Set HF_TOKEN to a token with write access, or run `hf auth login`.",
            )
        self._api = HfApi()
        self._repo = repo
        self._retrier = retrier
        self._say = say

    def upload(self, folder: Path, manifest: Manifest, *, private: bool) -> tuple[str, int, int]:
        """Send all files that are not in the dataset yet. The folder must be complete and verified. Return the
        dataset's address, its number of files, and how many were sent now."""
        if not manifest.complete:
            raise InputError(f"{folder}: the build is not finished.", "Finish it first: run its command again.")
        create = partial(self._api.create_repo, self._repo, repo_type=_DATASET, exist_ok=True)
        try:
            # None: the default of the user's organisation.
            url = self._ask(lambda: create(private=private or None))
        except HFValidationError as error:
            raise UsageError(f"--repo {self._repo}: {error}", "Write it as user/name.") from None
        remote = self._list()
        files = [*_describe(folder, manifest)]
        missing = [file for file in files if _large_hash(remote.get(file.name)) != file.sha256]
        for first in range(0, len(missing), _FILES_PER_COMMIT):
            group = missing[first : first + _FILES_PER_COMMIT]
            sent = []
            for number, file in enumerate(group, first + 1):
                self._say(f"{file.name}: {show_bytes(file.size_bytes)} ({number:,} of {len(missing):,})")
                sent.append(self._ask(partial(self._send, folder, file.name)))
            contents: dict[str, Path | bytes] = {file.name: folder / file.name for file in group}
            self._commit(contents, f"Add {show_number_of(len(group), 'file')} of tokens", sent)
        small: dict[str, Path | bytes] = {FILE_NAME: read_file(folder / FILE_NAME, MOST_BYTES, follow_links=True)}
        if self._may_write_card(remote.get(CARD_NAME)):
            small[CARD_NAME] = make_card(self._repo, manifest, files).encode()
        else:
            self._say(f"{CARD_NAME} in {self._repo} is not one of ours and is left alone")
        self._commit(small, "Add manifest and card")
        return str(url), len(files), len(missing)

    def _list(self) -> dict[str, RepoFile]:
        def ask() -> dict[str, RepoFile]:
            entries = self._api.list_repo_tree(self._repo, repo_type=_DATASET, recursive=True)
            return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}

        try:
            return self._ask(ask)
        except HubError:
            if self._ask(lambda: self._api.dataset_info(self._repo)).siblings:
                raise
            return {}  # a dataset without a file has no tree

    def _may_write_card(self, entry: RepoFile | None) -> bool:
        if entry is None or entry.size > _LONGEST_CARD_BYTES:
            return entry is None
        fetch = partial(self._api.hf_hub_download, repo_type=_DATASET, revision="main")
        return MARK.encode() in Path(self._ask(lambda: fetch(self._repo, CARD_NAME))).read_bytes()

    def _send(self, folder: Path, name: str) -> CommitOperationAdd:
        """Send the bytes of one file, unless the hub has them already by its hash."""
        operation = CommitOperationAdd(name, folder / name)
        # Keep the content: the hub may ask for a small file to be sent with the commit itself.
        self._api.preupload_lfs_files(self._repo, [operation], repo_type=_DATASET, free_memory=False)
        return operation

    def _commit(
        self, contents: dict[str, Path | bytes], message: str, sent: list[CommitOperationAdd] | None = None
    ) -> None:
        """Commit files to the dataset; the client leaves out those that it has. `sent` are their operations, if their
        bytes were sent before."""
        ready = [sent] if sent else []

        def commit() -> None:
            # A second try asks the hub anew what it has: the answer to a commit may have been lost.
            operations = ready.pop() if ready else [CommitOperationAdd(*item) for item in contents.items()]
            self._api.create_commit(self._repo, operations, commit_message=message, repo_type=_DATASET)

        self._ask(commit)

    def _ask(self, action: Callable[[], Result]) -> Result:
        """Call the hub with retries; turn a refusal into an error with a next step, without the token."""

        def ask() -> Result:
            with translated_errors(f"dataset {self._repo}"):
                try:
                    return action()
                except HfHubHTTPError as error:
                    if error.response.status_code in (401, 403):
                        raise HubError(
                            f"--repo {self._repo}: the hub does not let this token write there "
                            f"({error.response.status_code}).",
                            "Check the name, and that HF_TOKEN has write access to it.",
                        ) from None
                    raise

        return self._retrier.call(ask)


def _describe(folder: Path, manifest: Manifest) -> Iterator[CardFile]:
    """Yield the files of tokens, and their sidecars, with their hashes."""
    for file in list_files(manifest.shards):
        first, size = file.segments[0], (folder / file.name).stat().st_size
        # The manifest has a file's hash, unless the file grew over several checkpoints.
        is_recorded = (first.offset, first.bytes) == (0, size)
        sha256 = first.sha256 if is_recorded else _hash_file(folder / file.name)
        yield CardFile(file.name, file.split, file.tokens, file.documents, size, sha256)
        for sidecar in manifest.sidecars:
            path = folder / sidecar.name_for(file.name)
            name = path.relative_to(folder).as_posix()
            yield CardFile(name, file.split, 0, file.documents, path.stat().st_size, _hash_file(path))


def _hash_file(path: Path) -> str:
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _large_hash(entry: RepoFile | None) -> str | None:
    large: Any = entry.lfs if entry else None
    return str(large.sha256) if large else None


def make_card(repo: str, manifest: Manifest, files: list[CardFile]) -> str:
    """Return the content of the dataset's README.md."""
    name = repo.rpartition("/")[2]
    layout, vocabulary = manifest.layout, manifest.vocabulary
    title = {"gpt2": "GPT-2"}.get(vocabulary.name, vocabulary.name)  # what people call it
    datasets = list(dict.fromkeys(part.settings["dataset"] for part in manifest.parts))
    licences = {_LICENCES.get(dataset) for dataset in datasets}
    tag = re.sub("[^A-Za-z0-9.]+", "-", vocabulary.name).lower()
    metadata = DatasetCardData(
        tags=[f"{tag}-tokens", "fineweb_shards"],
        source_datasets=[dataset for dataset in datasets if dataset] or None,
        license=licences.pop() if len(licences) == 1 else None,
        viewer=False,
    )
    token_names = [file.name for file in files if file.tokens]  # a sidecar has no tokens
    facts = "\n".join(f"| {what} | {text} |" for what, text in _facts(title, manifest, files))
    loader = "\n".join(f"    {line}" for line in layout.loader_lines(name, token_names, vocabulary))
    table = "\n".join(
        f"| {file.name} | {file.split} | {file.tokens:,} | {file.documents:,} | {file.size_bytes:,} | `{file.sha256}` |"
        for file in files
    )
    return f"""\
---
{metadata.to_yaml()}
---
{MARK}
# {name}

{title} tokens in the layout of {layout.name}, made with `fineweb_shards`.

| | |
|---|---|
{facts}

## How to load

```sh
hf download {repo} --repo-type dataset --local-dir {name}
fineweb-shards verify {name}
```
```python
from fineweb_shards.loader import ShardLoader
loader = ShardLoader("{name}", "train", batch_size=64, seq_len=1024)
x, y = loader.next_batch()
```

With {layout.name} itself:

{loader}

## Files

| file | split | tokens | documents | bytes | SHA-256 |
|---|---|---|---|---|---|
{table}

`manifest.json` holds all of this for programs, with the settings and the source files.
"""


def _facts(title: str, manifest: Manifest, files: list[CardFile]) -> Iterator[tuple[str, str]]:
    for part in manifest.parts:
        if dataset := part.settings["dataset"]:
            which = ", ".join(filter(None, [part.settings["name"], f"split {part.settings['split']}"]))
            yield "source", f"[{dataset}](https://huggingface.co/datasets/{dataset}), {which}"
            yield "commit", f"`{part.commit}`"
        else:
            yield "source", f"{len(part.files):,} local files"
    layout, vocabulary = manifest.layout, manifest.vocabulary
    yield "tokenizer", f"{title}, {vocabulary.size:,} ids; SHA-256 of its file `{vocabulary.sha256}`"
    train, val = tokens_of(manifest.shards, "train"), tokens_of(manifest.shards, "val")
    yield "tokens", f"{manifest.tokens:,}: {train:,} for training, {val:,} for validation"
    position = "before" if layout.eot_first else "after"
    yield "documents", f"{manifest.documents:,}, the EOT token {vocabulary.eot} {position} each"
    dtype = manifest.shard_format.dtype.name
    yield "format", f"{dtype}, little-endian, {layout.header_bytes} bytes of header in front"
    yield "files", f"{len(files):,}, {show_bytes(sum(file.size_bytes for file in files))}"
    versions = sorted(manifest.versions.items())
    yield "made with", ", ".join(f"{name} {version}" for name, version in versions)
