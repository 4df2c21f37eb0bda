"""Translate the exceptions of the hub's clients: TransientError if waiting may help, HubError if not.

The clients' own exceptions hold the request, and with it the token, so none of them is passed on.
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
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import urllib3.exceptions
from huggingface_hub import constants, get_token
from huggingface_hub.errors import (
    FileMetadataError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from fineweb_shards.errors import HubError, ShardError
from fineweb_shards.storage.hub_environment import proxy_host_for
from fineweb_shards.system.retry import TransientError

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_REASONS = {
    "ReadTimeout": "the connection stays silent",
    "ConnectTimeout": "no answer",
    "ConnectError": "no connection",
    "ReadError": "the connection broke",
    "WriteError": "the connection broke",
    "RemoteProtocolError": "the connection broke",
    "ReadTimeoutError": "the connection stays silent",
    "ConnectTimeoutError": "no answer",
    "NewConnectionError": "no connection",
    "ProtocolError": "the connection broke",
    "IncompleteRead": "the connection broke",
    "TooManyRedirects": "redirects that go in a circle",
}
_NOT_THE_HUB = ("no answer", "no connection", "redirects that go in a circle")


class translated_errors:  # noqa: N801 - used as a with statement, like a function
    """A context manager that translates the clients' exceptions; `what` names what is requested."""

    def __init__(self, what: str) -> None:
        self._what = short_name(what)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, (TransientError, ShardError)):
            return
        cause = error.__cause__
        if isinstance(error, LocalEntryNotFoundError) and isinstance(cause, Exception):
            error = cause  # a download reports any failed request as a file that is not in the cache
        translated = self._translate(error)
        if translated is not None:
            raise translated from None

    def _translate(self, error: BaseException) -> TransientError | HubError | None:
        """Return the error to raise instead; None if it is a bug, which shows a traceback."""
        if isinstance(error, OfflineModeIsEnabled):
            return HubError(
                f"{self._what}: HF_HUB_OFFLINE is set, and this is not on the disk.",
                "Unset HF_HUB_OFFLINE, or use --input with local files.",
            )
        if isinstance(error, HfHubHTTPError):
            if error.response.status_code in TRANSIENT_STATUSES:
                return status_error(error.response)
            return HubError(f"{self._what}: {_refusal(error, error.response.status_code)}.")
        if isinstance(error, httpx2.RequestError):
            return request_error(_url_of(error), error)
        if isinstance(error, (ConnectionError, TimeoutError)):
            return TransientError(f"{hub_host()}: {_reason(error)}")
        if isinstance(error, FileMetadataError):
            return TransientError(f"{hub_host()}: an answer without a file's size or hash")
        if _is_broken_transfer(error):
            return TransientError(f"{hub_host()}: the transfer broke off")
        return None


def status_error(response: httpx2.Response) -> TransientError:
    """Make the error for an answer with a transient status."""
    return status_error_of(str(response.request.url), response.status_code, response.headers)


def check_json(response: httpx2.Response) -> None:
    """Raise TransientError for an answer of the API that is no JSON: a proxy, or a network that wants a login
    first, may have sent it."""
    url = str(response.request.url)
    try:
        response.json()
    except (ValueError, RecursionError):
        reason = f"{host_of(url)}: an answer that is no JSON, so not the hub's"
        raise TransientError(reason, advice=_what_to_check(url)) from None


def status_error_of(url: str, status: int, headers: Mapping[str, str]) -> TransientError:
    """Make the error for an answer with a transient status, by its parts."""
    reason, advice = f"status {status}", ""
    if status == 429:
        kind = next((limit.kind for limit in read_limits(headers)), "resolvers")
        reason, advice = describe_limit(kind, has_token=get_token() is not None)
    return TransientError(f"{host_of(url)}: {reason}", requested_wait_seconds(headers, status), advice)


def request_error(url: str, error: Exception) -> TransientError | HubError:
    """Make the error for a request that got no answer, or only a part of one."""
    if isinstance(error, urllib3.exceptions.MaxRetryError) and isinstance(error.reason, Exception):
        return request_error(url, error.reason)
    parts = urlsplit(url)
    host = host_of(url)
    proxy = proxy_host_for(url)
    where = f"{host} (by the proxy {proxy})" if proxy else host
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return HubError(
                f"{where}: its certificate can't be trusted: {cause.verify_message.rstrip('.')}.",
                "Check the clock and HF_ENDPOINT; where a proxy has certificates of its own, name "
                "them with SSL_CERT_FILE.",
            )
        if isinstance(cause, socket.gaierror):
            return TransientError(f"{where}: no such host, or no network", advice=_what_to_check(url))
    if isinstance(error, httpx2.UnsupportedProtocol):
        return HubError(f"{parts.scheme}://{host}: not an address of the web.", "Check HF_ENDPOINT.")
    if isinstance(error, (httpx2.ProxyError, urllib3.exceptions.ProxyError)) and "407" in str(error):
        return HubError(f"{where}: the proxy asks for a password (407).", "Write it into HTTPS_PROXY.")
    if isinstance(error, httpx2.LocalProtocolError) and "header" in str(error):
        return HubError(f"{where}: the request can't be sent.", "Check HF_TOKEN: it holds odd characters.")
    reason = _reason(error)
    advice = _what_to_check(url) if reason in _NOT_THE_HUB or proxy else ""
    return TransientError(f"{where}: {reason}", advice=advice)


def _what_to_check(url: str) -> str:
    """Return what decides whether a host is reached, with the values of this machine."""
    scheme = urlsplit(url).scheme.upper()
    named = [f"{scheme}_PROXY ({proxy_host_for(url) or 'none is used'})"]
    if is_hub(url):
        endpoint = os.environ.get("HF_ENDPOINT", "")
        named.append(f"HF_ENDPOINT ({host_of(endpoint) or 'not set'})")
    return f"check the connection, {' and '.join(named)}"


def is_hub(url: str) -> bool:
    """Tell whether an address is the hub's own: only there a token may be sent, and requests are counted."""
    ours, theirs = urlsplit(constants.ENDPOINT), urlsplit(url)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)


def host_of(url: str) -> str:
    """Return host and port of an address, without a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def hub_host() -> str:
    """Return the hub's host, for messages about errors that don't name one."""
    return re.sub(r"^https?://", "", constants.ENDPOINT).split("/")[0]


def short_name(url: str) -> str:
    """Return the path of an URL, without host, query and signature."""
    return re.sub(r"^https?://[^/]+/", "", url).split("?")[0]


def _is_broken_transfer(error: BaseException) -> bool:
    """Recognise huggingface_hub's error for a body that is too short, and any error of xet."""
    short_body = type(error) is OSError and error.errno is None and "Consistency check" in str(error)
    return short_body or type(error).__module__ == "hf_xet" or _was_raised_by_xet(error)


def _was_raised_by_xet(error: BaseException) -> bool:
    """Tell by the traceback whether xet raised a RuntimeError: `datasets` raises one, too, for a dataset that
    needs a script, and that is not transient."""
    if type(error) is not RuntimeError:
        return False
    return any("xet" in frame.name for frame in traceback.extract_tb(error.__traceback__))


def _url_of(error: httpx2.RequestError) -> str:
    """Return what was requested; huggingface_hub raises some of httpx's errors without saying that."""
    try:
        return str(error.request.url)
    except RuntimeError:
        return constants.ENDPOINT


def _refusal(error: HfHubHTTPError, status: int) -> str:
    words = {401: "the hub asks for a token (401)", 403: "access is refused (403)", 404: "not found (404)"}
    if type(error).__name__ == "GatedRepoError":
        return f"the dataset is gated ({status}): accept its terms on its page, and set HF_TOKEN"
    if type(error).__name__ == "RepositoryNotFoundError":
        return f"no such dataset, or a private one without the right token ({status})"
    return words.get(status, f"the hub answers {status}")


def _reason(error: BaseException) -> str:
    name = type(error).__name__
    return _REASONS.get(name, f"the connection broke ({name})")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the exceptions that caused it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        # urllib3 wraps some errors without naming them as the cause.
        wrapped = next((item for item in current.args if isinstance(item, BaseException)), None)
        current = current.__cause__ or current.__context__ or wrapped


# Read from a server's headers how long to wait and what is left of a quota, and describe the hub's limits.
#
# Headers are untrusted text: whatever is in them becomes a number of seconds to wait, or 0.

# The hub counts in windows of five minutes. If a server requests a longer wait, it is asked again earlier.
LONGEST_REQUESTED_SECONDS = 900.0
# Requests in five minutes: anonymous, with the token of a free account, of a PRO account.
_QUOTAS = {"api": (500, 1000, 2500), "resolvers": (3000, 5000, 12000)}
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*(\d{1,18})\s*;\s*t\s*=\s*(\d+)')
_POLICY = re.compile(r'"(\w+)"\s*;\s*q\s*=\s*(\d{1,18})\s*;\s*w\s*=\s*(\d{1,18})')


@dataclass(frozen=True, slots=True)
class Limit:
    """What an answer says about one quota: RateLimit and RateLimit-Policy."""

    kind: str  # "resolvers" or "api"
    left: int  # requests in this window
    reset_seconds: float  # until the next window
    quota: int = 0  # requests in a window; 0: not told
    window_seconds: float = 0.0


def read_limits(headers: Mapping[str, str]) -> list[Limit]:
    """Return the limits in the headers of an answer."""
    policies = {
        kind: (int(q), float(w)) for kind, q, w in _POLICY.findall(headers.get("RateLimit-Policy", ""))
    }
    return [
        Limit(kind, int(left), min(float(reset), LONGEST_REQUESTED_SECONDS), *policies.get(kind, (0, 0.0)))
        for kind, left, reset in _LIMIT.findall(headers.get("RateLimit", ""))
    ]


def requested_wait_seconds(headers: Mapping[str, str], status: int) -> float:
    """Return the wait by Retry-After and, after a 429, by RateLimit; 0 if neither says."""
    seconds = _retry_after(headers.get("Retry-After", ""))
    if status == 429:  # in other answers RateLimit only says when the next window begins
        seconds = max([seconds, *(limit.reset_seconds for limit in read_limits(headers) if not limit.left)])
    return min(seconds, LONGEST_REQUESTED_SECONDS)


def address_quota(*, has_token: bool) -> int:
    """Return how often one may ask in a window where a file is, without a token or with a free account's."""
    return _QUOTAS["resolvers"][1 if has_token else 0]


def describe_limit(kind: str, *, has_token: bool) -> tuple[str, str]:
    """Return a text for a quota that is used up, and one that says what would raise it."""
    anonymous, free, pro = _QUOTAS.get(kind, _QUOTAS["resolvers"])
    if has_token:
        return "rate limit (429)", f"a free account has {free:,} requests in 5 minutes, a PRO account {pro:,}"
    return (
        "rate limit (429)",
        f"without HF_TOKEN there are {anonymous:,} requests in 5 minutes, with one of a free account "
        f"{free:,}, of a PRO account {pro:,}",
    )


def _retry_after(text: str) -> float:
    """Parse a number of seconds, whole or not, or a date; 0 for everything else."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text)
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _seconds_until(date: str) -> float:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError, OSError):  # no date, or one outside the range of the clock
        return 0.0
