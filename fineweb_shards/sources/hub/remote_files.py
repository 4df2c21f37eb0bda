"""The files of a dataset on the hub that this process reads, each once, with where its bytes are."""

from __future__ import annotations

import threading
from pathlib import Path

from huggingface_hub import hf_hub_url

from fineweb_shards.sources.base import HubRef, InputFile
from fineweb_shards.sources.hub.quota import Quota
from fineweb_shards.sources.hub.remote_file import RemoteFile
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.system.retry import Retrier


class RemoteFiles:
    """Opens the hub for a process. `known` are addresses from before, by the file's path."""

    def __init__(self, hub: HubRef, retrier: Retrier, known: RemoteFiles | None = None) -> None:
        self._hub = hub
        self._retrier = retrier
        self._quota = Quota(Path(hub.work_folder), retrier.clock)
        self._files: dict[str, RemoteFile] = {}
        self._known = {} if known is None else known.addresses
        self._lock = threading.Lock()
        open_session(retrier, self._quota)

    def get(self, file: InputFile, address: str | None = None) -> RemoteFile:
        """Return a file. `address` is where another process has found its bytes."""
        with self._lock:
            if file.path not in self._files:
                url = hf_hub_url(self._hub.dataset, file.name, repo_type="dataset", revision=self._hub.commit)
                found = RemoteFile(url, file.size_bytes, file.content_hash, self._retrier, self._quota)
                self._files[file.path] = found
                address = address or self._known.pop(file.path, None)
            found = self._files[file.path]
        if address is not None:
            found.learn(address)
        return found

    def forget(self, path: str) -> None:
        """Drop a file that will not be read again soon."""
        with self._lock:
            self._files.pop(path, None)

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses that are known now."""
        with self._lock:
            found = {path: file.known_address for path, file in self._files.items()}
        return {path: url for path, url in found.items() if url is not None}
