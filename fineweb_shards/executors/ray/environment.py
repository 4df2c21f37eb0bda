"""Bring the environment variables to the nodes that say how data is reached: addresses, proxies, credentials.

A process of Ray's has the environment of its node, not of the driver. They are not given to Ray as a runtime
environment, because that stands in its logs and on its dashboard, and some are secrets. For the same reason
only those are sent that this run uses: where its input and its output are decides which. What is set on a
node stays as it is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fineweb_shards.sources.parts import Parts

_HUB = ("HF_", "DATASETS_")
_STORES = {"s3": ("AWS_",), "gs": ("GOOGLE_",), "az": ("AZURE_",)}  # by the scheme of an address
_PLACES = ("_HOME", "_CACHE", "_PATH", "_DIR")  # endings of names that stand for folders of the driver's
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_TOKEN = "HF_TOKEN"


def pack_environment(source: Parts, out: str) -> dict[str, str]:
    """Return the variables that nodes need to read the source and to write to `out`; for the hub with the
    token that was saved on this machine."""
    is_hub = any(part.settings.hub is not None for part in source.parts)
    addresses = [file.path for file in source.files if file.is_remote] + [out]
    prefixes = [name for address in addresses for name in _STORES.get(address.partition("://")[0], ())]
    if is_hub:
        prefixes += _HUB
    found = {name: value for name, value in os.environ.items() if _is_needed(name, tuple(prefixes))}
    if is_hub and _TOKEN not in found:
        from huggingface_hub import get_token

        if token := get_token():
            found[_TOKEN] = token
    return found


def apply_environment(variables: Mapping[str, str]) -> None:
    """Set the variables that are not set here."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _is_needed(name: str, prefixes: tuple[str, ...]) -> bool:
    if name.upper() in _PROXIES:
        return bool(prefixes)
    return name.startswith(prefixes) and not name.endswith(_PLACES)
