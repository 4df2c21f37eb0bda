"""Bring the environment variables to the nodes that say how data is reached: addresses, proxies, credentials.

A process of Ray's has the environment of its node, not of the driver. They are not given to Ray as a runtime
environment, because that stands in its logs and on its dashboard, and some are secrets. What is set on a node
stays as it is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fineweb_shards.sources.base import Source

_PREFIXES = ("HF_", "DATASETS_", "AWS_", "GOOGLE_", "AZURE_")
_PLACES = ("_HOME", "_CACHE", "_PATH", "_DIR")  # endings of names that stand for folders of the driver's
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TOKEN = "HF_TOKEN"


def pack_environment(source: Source) -> dict[str, str]:
    """Return the variables that nodes need; for the hub with the token that was saved on this machine."""
    found = {name: value for name, value in os.environ.items() if _is_needed(name)}
    if source.settings.hub is not None and _TOKEN not in found:
        from huggingface_hub import get_token

        if token := get_token():
            found[_TOKEN] = token
    return found


def apply_environment(variables: Mapping[str, str]) -> None:
    """Set the variables that are not set here."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _is_needed(name: str) -> bool:
    if name.upper() in _PROXIES:
        return True
    return name.startswith(_PREFIXES) and not name.endswith(_PLACES)
