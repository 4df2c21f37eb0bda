"""Fetch ranges of files over kept connections, several at once.

With urllib3, not with the session of the hub's clients: httpx takes 3.6 s of processor time for a GiB of
body, urllib3 1.2 s, and that is time in which a worker could encode. What may be trusted (certificates) and
which proxy is used is the same as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from urllib.parse import unquote, urlsplit

import httpx2
import urllib3
from urllib3.util import Retry, Timeout, make_headers

from fineweb_shards.errors import HubError
from fineweb_shards.sources.hub.environment import proxy_for
from fineweb_shards.system.shell_commands import install_command

_KEPT_CONNECTIONS = 64  # to one host
_MOST_REDIRECTS = 5


def get(
    url: str, headers: Mapping[str, str], timeout_seconds: float, *, follow_redirects: bool
) -> urllib3.BaseHTTPResponse:
    """Send a GET request and return the answer with its body still to be read. Nothing is tried again."""
    redirects = _MOST_REDIRECTS if follow_redirects else False
    return _connections(proxy_for(url)).request(
        "GET",
        url,
        headers=dict(headers),
        preload_content=False,
        redirect=follow_redirects,
        retries=Retry(total=None, connect=False, read=False, status=False, other=False, redirect=redirects),
        timeout=Timeout(connect=timeout_seconds, read=timeout_seconds),
    )


@cache
def _connections(proxy: str | None) -> urllib3.PoolManager:
    """Return this process's connections by way of a proxy, or without one."""
    trust = httpx2.create_ssl_context()
    if proxy is None:
        return urllib3.PoolManager(maxsize=_KEPT_CONNECTIONS, ssl_context=trust)
    if urlsplit(proxy).scheme.startswith("socks"):
        try:
            from urllib3.contrib.socks import SOCKSProxyManager
        except ImportError:
            raise HubError(
                "The proxy in the environment can't be used: SOCKS needs the package PySocks.",
                f"Install it: {install_command('PySocks')}",
            ) from None
        return SOCKSProxyManager(proxy, maxsize=_KEPT_CONNECTIONS, ssl_context=trust)
    password = unquote(urlsplit(proxy).netloc.rpartition("@")[0])
    return urllib3.ProxyManager(
        proxy,
        maxsize=_KEPT_CONNECTIONS,
        ssl_context=trust,
        proxy_headers=make_headers(proxy_basic_auth=password) if password else None,
    )
