"""Fetch a small file of a model on the hub, such as its tokenizer, through the clients' own cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from fineweb_shards.errors import HubError
from fineweb_shards.sources.hub.errors import translated_errors
from fineweb_shards.sources.hub.session import open_session
from fineweb_shards.system.retry import Retrier


def fetch_model_file(
    repository: str, revision: str, names: Sequence[str], retrier: Retrier
) -> tuple[bytes, str]:
    """Return the first file that a model has of `names`, and the commit that it is from."""
    open_session(retrier)
    for name in names:

        def fetch(name: str = name) -> Path | None:
            with translated_errors(f"model {repository}"):
                try:
                    return Path(hf_hub_download(repository, name, revision=revision or None))
                except LocalEntryNotFoundError:  # an outage: a kind of EntryNotFoundError, too
                    raise
                except EntryNotFoundError:
                    return None

        path = retrier.call(fetch)
        if path is not None:
            commit = str(path).removesuffix(name).rstrip("/\\").replace("\\", "/").rpartition("/")[2]
            return path.read_bytes(), commit
    raise HubError(
        f"model {repository}: it has no tokenizer that is known here.",
        f"Looked for: {', '.join(names)}. Download another file of it, and name that with --tokenizer.",
    )
