"""Translate the exceptions of the hub's clients: TransientError if waiting may help, HubError if not.

The clients' exceptions contain the request, and with it the token, so they are never passed on.
"""

from __future__ import annotations

import email.utils
import math
import os
import re
import socket
import ssl
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import huggingface_hub
import urllib3.exceptions
from huggingface_hub import constants, get_token
from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from fineweb_shards.errors import HubError, ShardError
from fineweb_shards.storage.hub_environment import proxy_for
from fineweb_shards.storage.place import TRANSIENT_STATUSES
from fineweb_shards.system.retry import TransientError

# The clients' HTTP library: httpx up to huggingface_hub 1, httpx2 from 2 on. Supporting both lets this package share an
# environment with projects that pin huggingface_hub below 2.0 (OLMo-core) or 1.4 (litgpt).
if TYPE_CHECKING or not huggingface_hub.__version__.startswith("1."):
    import httpx2 as httpx
else:
    import httpx

__all__ = ["httpx"]
# By class of httpx or urllib3; any other error is a broken connection.
_REASONS = {
    "ReadTimeout": "the connection stays silent",
    "ReadTimeoutError": "the connection stays silent",
    "ConnectTimeout": "no answer",
    "ConnectTimeoutError": "no answer",
    "ConnectError": "no connection",
    "NewConnectionError": "no connection",
    "TooManyRedirects": "redirects that go in a circle",
}
_NOT_THE_HUB = ("no answer", "no connection", "redirects that go in a circle")


@contextmanager
def translated_errors(what: str) -> Iterator[None]:
    """Translate the clients' exceptions; `what` names the request. A bug keeps its traceback."""
    try:
        yield
    except (TransientError, ShardError):
        raise
    except BaseException as error:
        translated = _translate(error, short_name(what))
        if translated is None:
            raise
        raise translated from None


def _translate(error: BaseException, what: str) -> TransientError | HubError | None:
    """Return the error to raise instead; None if it is a bug."""
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # a download reports any failed request as a file missing from the cache
    if isinstance(error, OfflineModeIsEnabled):
        hint = "Unset HF_HUB_OFFLINE, or use --input with local files."
        return HubError(f"{what}: HF_HUB_OFFLINE is set, and this is not on the disk.", hint)
    if isinstance(error, HfHubHTTPError):
        kind, response = type(error).__name__, error.response
        status = response.status_code
        if status in TRANSIENT_STATUSES:
            return status_error(str(response.request.url), status, response.headers)
        if kind == "GatedRepoError":
            problem = f"the dataset is gated ({status}): accept its terms on its page, and set HF_TOKEN"
        elif kind == "RepositoryNotFoundError":
            problem = f"no such dataset, or a private one without the right token ({status})"
        else:
            words = {401: "the hub asks for a token", 403: "access is refused", 404: "not found"}
            problem = f"{words[status]} ({status})" if status in words else f"the hub answers {status}"
        return HubError(f"{what}: {problem}.")
    if isinstance(error, httpx.RequestError):
        try:
            url = str(error.request.url)
        except RuntimeError:  # huggingface_hub raises some of httpx's errors without their request
            url = constants.ENDPOINT
        return request_error(url, error)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return TransientError(f"{hub_host()}: the connection broke ({type(error).__name__})")
    if isinstance(error, FileMetadataError):
        return TransientError(f"{hub_host()}: an answer without a file's size or hash")
    # huggingface_hub's error for a body that is too short, and any error of xet. Only the traceback shows that a
    # RuntimeError is xet's: `datasets` also raises one, for a dataset that needs a script.
    is_short = type(error) is OSError and error.errno is None and "Consistency check" in str(error)
    frames = traceback.extract_tb(error.__traceback__) if type(error) is RuntimeError else []
    if is_short or type(error).__module__ == "hf_xet" or any("xet" in frame.name for frame in frames):
        return TransientError(f"{hub_host()}: the transfer broke off")
    return None


def status_error(url: str, status: int, headers: Mapping[str, str]) -> TransientError:
    reason, advice = ("rate limit (429)", what_raises_limit()) if status == 429 else (f"status {status}", "")
    return TransientError(f"{host_of(url)}: {reason}", requested_wait_seconds(headers, status), advice)


def request_error(url: str, error: Exception) -> TransientError | HubError:
    """Make the error for a request with no answer or an incomplete one."""
    if isinstance(error, urllib3.exceptions.MaxRetryError) and isinstance(error.reason, Exception):
        return request_error(url, error.reason)
    host, proxy = host_of(url), host_of(proxy_for(url) or "")
    where = f"{host} (by the proxy {proxy})" if proxy else host
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ssl.SSLCertVerificationError):
            hint = "Check the clock and HF_ENDPOINT; name certificates of a proxy with SSL_CERT_FILE."
            return HubError(f"{where}: its certificate can't be trusted: {cause.verify_message.rstrip('.')}.", hint)
        if isinstance(cause, socket.gaierror):
            return TransientError(f"{where}: no such host, or no network", advice=what_to_check(url))
        seen.add(id(cause))
        # urllib3 wraps some errors without naming them as the cause.
        wrapped = next((item for item in cause.args if isinstance(item, BaseException)), None)
        cause = cause.__cause__ or cause.__context__ or wrapped
    if isinstance(error, (httpx.ProxyError, urllib3.exceptions.ProxyError)) and "407" in str(error):
        return HubError(f"{where}: the proxy asks for a password (407).", "Write it into HTTPS_PROXY.")
    name = type(error).__name__
    reason = _REASONS.get(name, f"the connection broke ({name})")
    advice = what_to_check(url) if reason in _NOT_THE_HUB or proxy else ""
    return TransientError(f"{where}: {reason}", advice=advice)


def what_to_check(url: str) -> str:
    """Return what decides whether a host is reached, with the values of this machine."""
    proxy = f"{urlsplit(url).scheme.upper()}_PROXY ({host_of(proxy_for(url) or '') or 'none is used'})"
    endpoint = f" and HF_ENDPOINT ({host_of(os.environ.get('HF_ENDPOINT', '')) or 'not set'})"
    return f"check the connection, {proxy}{endpoint if is_hub(url) else ''}"


def is_hub(url: str) -> bool:
    """Return whether an address is the hub's own: only these requests carry the token and count towards its limits."""
    ours, theirs = urlsplit(constants.ENDPOINT), urlsplit(url)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)


def host_of(url: str) -> str:
    """Return the host and port of an address, without credentials."""
    return urlsplit(url).netloc.rpartition("@")[2]


def hub_host() -> str:
    return host_of(constants.ENDPOINT)


def short_name(url: str) -> str:
    """Return the path of a URL, without host, query and signature."""
    return re.sub(r"^https?://[^/]+/", "", url).split("?")[0]


# Rate limits in a server's headers
#
# Headers are untrusted text: whatever they contain becomes a number of seconds to wait, or 0.

# The hub's windows last five minutes. A server that requests a longer wait is retried earlier.
LONGEST_REQUESTED_SECONDS = 900.0
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*(\d{1,18})\s*;\s*t\s*=\s*(\d+)')
_POLICY = re.compile(r'"(\w+)"\s*;\s*q\s*=\s*(\d{1,18})\s*;\s*w\s*=\s*(\d{1,18})')


@dataclass(frozen=True, slots=True)
class Limit:
    """One quota, from the headers RateLimit and RateLimit-Policy."""

    kind: str  # "resolvers" or "api"
    left: int  # requests in this window
    reset_seconds: float  # until the next window
    quota: int = 0  # requests in a window; 0: unknown
    window_seconds: float = 0.0


def read_limits(headers: Mapping[str, str]) -> list[Limit]:
    policies = {kind: (int(q), float(w)) for kind, q, w in _POLICY.findall(headers.get("RateLimit-Policy", ""))}
    return [
        Limit(kind, int(left), min(float(reset), LONGEST_REQUESTED_SECONDS), *policies.get(kind, (0, 0.0)))
        for kind, left, reset in _LIMIT.findall(headers.get("RateLimit", ""))
    ]


def requested_wait_seconds(headers: Mapping[str, str], status: int) -> float:
    """Return the wait from Retry-After, a number of seconds or a date, and after a 429 from RateLimit; 0 without."""
    text, seconds = headers.get("Retry-After", ""), 0.0
    try:
        seconds = float(text)
    except ValueError:
        with suppress(ValueError, OverflowError, OSError):  # not a date, or outside the clock's range
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    seconds = max(0.0, seconds) if math.isfinite(seconds) else 0.0
    if status == 429:  # in other answers RateLimit only says when the next window begins
        seconds = max([seconds, *(limit.reset_seconds for limit in read_limits(headers) if not limit.left)])
    return min(seconds, LONGEST_REQUESTED_SECONDS)


def what_raises_limit() -> str:
    return "a PRO account has a higher limit" if get_token() else "with HF_TOKEN the limit is higher"
