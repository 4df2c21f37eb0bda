"""The stand-in hub's CDN: a second server under another name, with signed addresses that expire."""

from __future__ import annotations

import calendar
import hashlib
import hmac
import math
import secrets
import time
from email.utils import formatdate
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tests.support.standin_http import Answer, Handler, RefusedError

Style = Literal["cloudfront", "s3", "opaque"]
CDN_HOST = "localhost"  # and not 127.0.0.1, which is the hub: two hosts for every client
LOGIN_PAGE = b"<html><title>Welcome</title>Please accept our terms to use this network.</html>"


class Signer:
    """Makes addresses that hold for a while, and judges them.

    The styles: CloudFront's, S3's, and one from whose text no expiry can be read. The clock of the server may differ
    from the client's by `clock_ahead_seconds`; its Date header tells it.
    """

    def __init__(self, style: Style, seconds: float, refusal_status: int, clock_ahead_seconds: float) -> None:
        self.style = style
        self.seconds = seconds
        self.refusal_status = refusal_status
        self.clock_ahead_seconds = clock_ahead_seconds
        self._key = secrets.token_bytes(16)
        self._revoked: set[str] = set()

    def now(self) -> float:
        return time.time() + self.clock_ahead_seconds

    def sign(self, path: str) -> str:
        """Return path and query of an address that holds for `seconds`, rounded up to a whole one."""
        expires = math.ceil(self.now() + self.seconds)
        nonce = secrets.token_hex(8)  # every resolve gives another address
        signature = self._signature(path, expires, nonce)
        begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(math.floor(self.now())))
        fields: dict[str, dict[str, object]] = {
            "cloudfront": {"Expires": expires, "Policy": nonce, "Signature": signature, "Key-Pair-Id": "K2STANDIN"},
            "s3": {
                "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
                "X-Amz-Credential": nonce,
                "X-Amz-Date": begun,
                "X-Amz-Expires": expires - math.floor(self.now()),
                "X-Amz-Signature": signature,
            },
            "opaque": {"ticket": f"{nonce}.{expires:x}.{signature}"},
        }
        return f"{path}?{urlencode(fields[self.style])}"

    def check(self, address: str) -> None:
        """Raise RefusedError for an address that has expired, was revoked, or is none of ours."""
        url = urlsplit(address)
        expires, nonce, signature = self._parse(dict(parse_qsl(url.query)))
        genuine = hmac.compare_digest(signature, self._signature(url.path, expires, nonce))
        if not genuine or self.now() >= expires or address in self._revoked:
            raise RefusedError(self.refusal_status, "", "AccessDenied: this address has expired")

    def revoke(self, address: str) -> None:
        """Let an address expire now."""
        self._revoked.add(address)

    def _parse(self, fields: dict[str, str]) -> tuple[int, str, str]:
        try:
            match self.style:
                case "cloudfront":
                    return int(fields["Expires"]), fields["Policy"], fields["Signature"]
                case "s3":
                    begun = calendar.timegm(time.strptime(fields["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
                    expires = begun + int(fields["X-Amz-Expires"])
                    return expires, fields["X-Amz-Credential"], fields["X-Amz-Signature"]
                case "opaque":
                    nonce, expires_hex, signature = fields["ticket"].split(".")
                    return int(expires_hex, 16), nonce, signature
        except (KeyError, ValueError):
            raise RefusedError(403, "", "AccessDenied: not a signed address") from None

    def _signature(self, path: str, expires: int, nonce: str) -> str:
        return hmac.digest(self._key, f"{path} {expires} {nonce}".encode(), hashlib.sha256).hex()


class CdnHandler(Handler):
    """Serves any range of a signed address. It knows no commits and no tokens, and has its own ETags."""

    kind = "cdn"

    def setup(self) -> None:
        super().setup()
        self.paces = self.server.hub.line.open_connection()

    def answer(self) -> Answer:
        self.server.hub.signer.check(self.path)
        _, _, owner, name, commit, *path = unquote(urlsplit(self.path).path).split("/")
        file = self.server.hub.repositories[f"{owner}/{name}"].commits[commit]["/".join(path)]
        headers = {"ETag": f'"cdn-{file.etag}"', "Accept-Ranges": "bytes", "Server": "StandInCDN"}
        return Answer.of_file(file, self.range, headers)

    def expire_address(self) -> None:
        self.server.hub.signer.revoke(self.path)

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The Date header, by the clock that signs."""
        return formatdate(self.server.hub.signer.now(), usegmt=True)


class ForeignHandler(Handler):
    """Answers whatever it is asked with its own page, as a network does that wants a login first."""

    kind = "foreign"

    def answer(self) -> Answer:
        return Answer.of_bytes(200, LOGIN_PAGE, {"Content-Type": "text/html"})


def cdn_path(repo_id: str, commit: str, path: str) -> str:
    return quote(f"/cdn/{repo_id}/{commit}/{path}")
