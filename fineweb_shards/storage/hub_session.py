"""The HTTP session for all requests to the hub, those of huggingface_hub and datasets included, and its errors.

By default the clients send requests without a timeout, retry for 23 s (or, after a 429, five times for as long as it
says), and print their own messages. In this session every request has a timeout, our retrier handles transient
failures, and all others are reported at once. The bytes of files are fetched by `send_get` instead. The clients'
exceptions contain the request, and with it the token, so they are never passed on.

The hub limits requests per window of five minutes, separately for `/resolve/` ("resolvers") and its API ("api"). Its
answers say how many are left (`RateLimit`). All processes of a run share these numbers in one small file (`Quota`), so
that they wait together, before a 429 instead of after it.
"""

from __future__ import annotations

import email.utils
import math
import os
import random
import re
import socket
import ssl
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import urllib3
from huggingface_hub import constants, get_token, set_client_factory
from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from urllib3.exceptions import MaxRetryError, ProxyError
from urllib3.util import Retry, Timeout, make_headers

from fineweb_shards.errors import HubError, ShardError
from fineweb_shards.storage.hub_environment import check_token, proxy_for
from fineweb_shards.storage.place import TRANSIENT_STATUSES
from fineweb_shards.system.retry import Clock, Retrier, TransientError
from fineweb_shards.system.shared_memory import SharedValue
from fineweb_shards.system.shell_commands import install_command

# The clients' HTTP library: httpx up to huggingface_hub 1, httpx2 from 2 on. Supporting both lets this package share an
# environment with projects that pin huggingface_hub below 2.0 (OLMo-core) or 1.4 (litgpt).
if TYPE_CHECKING or not huggingface_hub.__version__.startswith("1."):
    import httpx2 as httpx
else:
    import httpx

# Errors: TransientError if waiting may help, HubError if not

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
    if isinstance(error, MaxRetryError) and isinstance(error.reason, Exception):
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
    if isinstance(error, (httpx.ProxyError, ProxyError)) and "407" in str(error):
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


# The quotas that all processes share

QUOTA_FILE_NAME = "hub-quota.json"
# Spreads out the processes' requests after a wait.
_SPREAD_SECONDS = 1.0
_SAME_WINDOW_SECONDS = 5.0


class Quota:
    """What is left of one hub's quotas. The processes share a file in `folder`; None: this process is alone. All of
    them must use the same clock, such as the system's."""

    def __init__(self, folder: Path | None = None, clock: Clock | None = None) -> None:
        self._shared = SharedValue(None if folder is None else folder / QUOTA_FILE_NAME)
        self._clock = clock or Clock()

    def take(self, url: str) -> None:
        """Count a request about to be sent; TransientError if it must wait for the next window."""
        now = self._clock.now()
        with self._shared.changing() as value:
            _, state = _state_of(value, url)
            wait = state["until"] - now
            if 0 < wait <= LONGEST_REQUESTED_SECONDS and state["left"] <= 0:
                seconds = wait + random.uniform(0, min(_SPREAD_SECONDS, wait))
                raise TransientError(f"{host_of(url)}: the rate limit is used up", seconds, what_raises_limit())
            if wait <= 0 and state["quota"]:  # a new window
                state |= {"left": state["quota"], "until": now + state["window"]}
            state["left"] = max(0, state["left"] - 1)

    def learn(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        wait = requested_wait_seconds(headers, status) if status == 429 else 0.0
        limits, now = read_limits(headers), self._clock.now()
        if not limits and not wait:
            return
        with self._shared.changing() as value:
            kind, state = _state_of(value, url)
            for limit in (limit for limit in limits if limit.kind == kind):
                until = now + limit.reset_seconds
                same = abs(until - state["until"]) < _SAME_WINDOW_SECONDS
                # Within a window it only decreases: answers arrive in any order, and other requests are in flight.
                state["left"] = min(state["left"], limit.left) if same else limit.left
                state["until"] = until
                state |= {"quota": limit.quota, "window": limit.window_seconds} if limit.quota else {}
            if wait:
                state |= {"left": 0, "until": now + wait}


def _state_of(value: dict[str, Any], url: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of quota that a request counts towards, and its entry in the shared value."""
    kind = "resolvers" if "/resolve/" in urlsplit(url).path else "api"
    known, unknown = value.get(kind), {"left": 0, "until": 0.0, "quota": 0, "window": 0}
    if not isinstance(known, dict) or known.keys() != unknown.keys():
        known = value[kind] = unknown
    return kind, known


ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 10.0


def open_session(retrier: Retrier, quota: Quota | None = None, answer_seconds: float = ANSWER_SECONDS) -> None:
    """Make this process's requests use our session from now on."""
    check_token(get_token())
    set_client_factory(partial(HubSession, retrier, quota, answer_seconds))


class HubSession(httpx.Client):
    """A session like huggingface_hub's own, but with our timeouts and retries."""

    def __init__(self, retrier: Retrier, quota: Quota | None, answer_seconds: float) -> None:
        self._hub_retrier = retrier
        self._quota = quota
        timeout = httpx.Timeout(answer_seconds, connect=min(answer_seconds, _CONNECT_SECONDS))
        try:
            super().__init__(follow_redirects=True, timeout=timeout)
        except (ValueError, ImportError, httpx.InvalidURL) as error:  # from an unusable proxy
            hint = "Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."
            raise HubError(f"The proxy in the environment can't be used: {error}", hint) from None

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")
        # Our retrier handles requests about files, not the clients' telemetry. Only the client can rewind and resend a
        # streamed body.
        names = ("/resolve/", "/api/datasets/", "/api/models/")
        about_files = options.get("stream") or any(name in request.url.path for name in names)
        if about_files and isinstance(request.stream, httpx.ByteStream):
            return self._hub_retrier.call(partial(self._send_once, request, options))
        return super().send(request, **options)

    def _send_once(self, request: httpx.Request, options: dict[str, Any]) -> httpx.Response:
        url = str(request.url)
        quota = self._quota if is_hub(url) else None
        if quota is not None:
            quota.take(url)
        try:
            response = super().send(request, **options)
        except httpx.RequestError as error:
            raise request_error(url, error) from None
        if quota is not None:  # from the hub's own answer, not from that of a CDN it redirects to
            first = (*response.history, response)[0]
            quota.learn(url, first.status_code, first.headers)
        answered_by = str(response.request.url)
        if response.status_code in TRANSIENT_STATUSES:
            response.close()
            raise status_error(answered_by, response.status_code, response.headers)
        if "/api/" in request.url.path and response.status_code == 200 and not options.get("stream"):
            try:
                response.json()
            except (ValueError, RecursionError):  # from a proxy, or a network's login page
                reason = f"{host_of(answered_by)}: the answer is not JSON, so not the hub's"
                raise TransientError(reason, advice=what_to_check(answered_by)) from None
        return response


# Fetching ranges of files, over pooled connections
#
# With urllib3, not the session of the hub's clients: httpx takes 3.6 s of CPU time for a GiB of body, urllib3 1.2 s,
# and workers need that time for encoding. Certificates and proxies are those of the session.

_KEPT_CONNECTIONS = 64  # to one host
_MOST_REDIRECTS = 5


def send_get(
    url: str, headers: Mapping[str, str], timeout_seconds: float, *, follow_redirects: bool
) -> urllib3.BaseHTTPResponse:
    """Send a GET request, without retries, and return the answer with its body unread."""
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
    trust = httpx.create_ssl_context()
    if proxy is None:
        return urllib3.PoolManager(maxsize=_KEPT_CONNECTIONS, ssl_context=trust)
    parts = urlsplit(proxy)
    if parts.scheme.startswith("socks"):
        try:
            from urllib3.contrib.socks import SOCKSProxyManager
        except ImportError:
            problem = "The proxy in the environment can't be used: SOCKS needs the package PySocks."
            raise HubError(problem, f"Install it: {install_command('PySocks')}") from None
        return SOCKSProxyManager(proxy, maxsize=_KEPT_CONNECTIONS, ssl_context=trust)
    password = unquote(parts.netloc.rpartition("@")[0])
    headers = make_headers(proxy_basic_auth=password) if password else None
    return urllib3.ProxyManager(proxy, maxsize=_KEPT_CONNECTIONS, ssl_context=trust, proxy_headers=headers)
