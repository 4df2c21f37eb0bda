"""Check the environment before the hub's clients are imported, and silence them.

The clients read environment variables on import, and some values crash them. Other mistakes would later look like an
outage and be retried in vain, so they are reported at once. Tokens and proxy passwords are never shown.
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
    """Raise HubError for a token that can't be sent in a header."""
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        hint = "Copy it again from https://huggingface.co/settings/tokens; it begins with hf_."
        raise HubError("HF_TOKEN holds characters that no token has.", hint)


def proxy_for(url: str) -> str | None:
    """Return the proxy's address for a request, with its password; None without a proxy."""
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
    except ValueError:  # a port that is not a number, or an unbalanced bracket
        return False


def quiet_clients() -> None:
    """Turn off the progress bars, log lines and warnings of huggingface_hub, datasets and hf_xet: this program shows
    its own. Log lines that the user has requested (HF_HUB_VERBOSITY, DATASETS_VERBOSITY) stay on."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ[name] = "1"
    for name in ("HF_HUB_VERBOSITY", "DATASETS_VERBOSITY"):
        os.environ.setdefault(name, "critical")
    warnings.filterwarnings("ignore", module=r"(huggingface_hub|datasets)\b")


def is_git_hash(content_hash: str) -> bool:
    """Return whether a hash is git's: then the hub itself serves the file. Large files have a SHA-256 and a CDN."""
    return len(content_hash) == 40
