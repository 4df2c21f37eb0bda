"""The files of a dataset on the hub that this process reads, each once, with where its bytes are."""

from __future__ import annotations

import threading
from pathlib import Path

from huggingface_hub import hf_hub_url

from fineweb_shards.sources.base import HubRef, InputFile
from fineweb_shards.sources.hub.quota import Quota
from fineweb_shards.sources.hub.remote_file import AddressBook, RemoteFile
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.system.retry import Retrier


class RemoteFiles:
    """Opens the hub for a process. What is known from `before`, where files are, is shared."""

    def __init__(self, hub: HubRef, retrier: Retrier, before: RemoteFiles | None = None) -> None:
        self._hub = hub
        self._retrier = retrier
        self._quota = Quota(Path(hub.work_folder), retrier.clock)
        self._files: dict[str, RemoteFile] = {}
        self._book: AddressBook = {} if before is None else before._book
        self._lock = threading.Lock()
        open_session(retrier, self._quota)

    def get(self, file: InputFile, address: str | None = None) -> RemoteFile:
        """Return a file. `address` is where another process has found its bytes."""
        with self._lock:
            if file.path not in self._files:
                url = hf_hub_url(self._hub.dataset, file.name, repo_type="dataset", revision=self._hub.commit)
                self._files[file.path] = RemoteFile(
                    url, file.size_bytes, file.content_hash, self._retrier, self._quota, self._book
                )
            found = self._files[file.path]
        if address is not None:
            found.learn(address)
        return found

    def forget(self, path: str) -> None:
        """Drop a file that will not be read again soon."""
        with self._lock:
            self._files.pop(path, None)
