"""What is needed of the hub before its clients are imported: check the environment, and silence them.

The clients read environment variables on import, and some values crash them. Later a mistake would look like an outage
and be waited for, although waiting can't help; so it is reported at once. A token and the password of a proxy are never
shown.
"""

from __future__ import annotations

import os
import urllib.request
import warnings
from urllib.parse import urlsplit

from fineweb_shards.errors import HubError

_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


def check_addresses() -> None:
    """Raise HubError for a variable that can't be the address of a hub or of a proxy."""
    endpoint = os.environ.get("HF_ENDPOINT", "")
    if endpoint and not _is_address(endpoint, ("http", "https")):
        hint = "Write it with its scheme, such as https://huggingface.co, or unset it."
        raise HubError(f"HF_ENDPOINT={endpoint}: not the address of a hub.", hint)
    for name, value in os.environ.items():
        if name.upper() not in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY") or not value:
            continue
        if not _is_address(value if "://" in value else f"http://{value}", _PROXY_SCHEMES):
            hint = f"Write it as http://host:port, or unset {name}."
            raise HubError(f"{name}={value.rpartition('@')[2]}: not the address of a proxy.", hint)


def check_token(token: str | None) -> None:
    """Raise HubError for a text that can't be a token: no request could be sent with it."""
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        hint = "Copy it again from https://huggingface.co/settings/tokens; it begins with hf_."
        raise HubError("HF_TOKEN holds characters that no token has.", hint)


def proxy_for(url: str) -> str | None:
    """Return the address of the proxy for a request, with its password; None if it uses none."""
    proxies, parts = urllib.request.getproxies(), urlsplit(url)
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return found if "://" in found else f"http://{found}"


def _is_address(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0
        return parts.scheme in schemes and named and not any(char.isspace() for char in text)
    except ValueError:  # a port that is no number, or an unbalanced bracket
        return False


def quiet_clients() -> None:
    """Turn off progress bars, log lines and warnings of huggingface_hub, datasets and hf_xet: this program shows
    progress and waits itself. Log lines that the user has asked for (HF_HUB_VERBOSITY, DATASETS_VERBOSITY) stay on."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ[name] = "1"
    for name in ("HF_HUB_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "critical")
    warnings.filterwarnings("ignore", module=r"(huggingface_hub|datasets)\b")


def is_git_hash(content_hash: str) -> bool:
    """Return whether the hash of a file is git's: then the hub keeps it itself, and not in a large store, where files
    are known by their SHA-256."""
    return len(content_hash) == 40
