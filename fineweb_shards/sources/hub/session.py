"""The HTTP session through which all of the hub comes, whoever asks: we, huggingface_hub or datasets.

Left alone the clients ask without a timeout, try again on their own for 23 s (or as long as a 429 says, five
times), and tell it on the screen in their own words. In this session every request has a timeout, what may
pass is waited out by our retrier, and what can't is told at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx2
from huggingface_hub import constants, get_token, set_client_factory
from huggingface_hub.errors import OfflineModeIsEnabled

from fineweb_shards.errors import HubError
from fineweb_shards.sources.hub.environment import check_token
from fineweb_shards.sources.hub.errors import PASSING_STATUSES, request_error, status_error
from fineweb_shards.system.retry import Retrier

ANSWER_SECONDS = 30.0


def open_session(retrier: Retrier | None, answer_seconds: float = ANSWER_SECONDS) -> None:
    """From now on all requests of this process go through a session of ours. Without a retrier a failure is
    raised at once: for those who must not ask the same thing twice."""
    check_token(get_token())
    set_client_factory(partial(_make_session, retrier, answer_seconds))


def _make_session(retrier: Retrier | None, answer_seconds: float) -> HubSession:
    try:
        return HubSession(retrier, answer_seconds)
    except (ValueError, ImportError, httpx2.InvalidURL) as error:  # a proxy that it can't use
        raise HubError(
            f"The proxy in the environment can't be used: {error}",
            "Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.",
        ) from None


class HubSession(httpx2.Client):
    """A session as huggingface_hub would make it, but for timeouts and retries."""

    def __init__(self, retrier: Retrier | None, answer_seconds: float) -> None:
        super().__init__(
            event_hooks={"request": [_respect_offline_mode]}, follow_redirects=True, timeout=answer_seconds
        )
        self._hub_retrier = retrier

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if not _is_ours(request, streamed=bool(options.get("stream"))):
            return super().send(request, **options)
        if self._hub_retrier is None:
            return self._send_once(request, options)
        return self._hub_retrier.call(partial(self._send_once, request, options))

    def _send_once(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        try:
            response = super().send(request, **options)
        except httpx2.RequestError as error:
            raise request_error(error) from None
        if response.status_code in PASSING_STATUSES:
            response.close()
            raise status_error(response)
        return response


def _respect_offline_mode(request: httpx2.Request) -> None:
    if constants.is_offline_mode():
        raise OfflineModeIsEnabled("HF_HUB_OFFLINE is set")


def _is_ours(request: httpx2.Request, *, streamed: bool) -> bool:
    """Whether we wait for it: for a dataset, not for what the clients count and report on the side. A body
    that can be read only once is left to the client, which knows how to rewind it."""
    path = request.url.path
    about_a_dataset = streamed or "/resolve/" in path or "/api/datasets/" in path
    return about_a_dataset and isinstance(request.stream, httpx2.ByteStream)
