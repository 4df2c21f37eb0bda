"""Translate obstore's exceptions: TransientError if waiting may help, an error in our own words if not.

obstore's messages quote addresses, headers and responses, which may contain signatures and keys. So they are never
passed on: only a status, the store's error code and a host name are extracted.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from fineweb_shards.errors import LockedError, ShardError
from fineweb_shards.storage.bucket_address import WEB_SCHEMES, BucketAddress
from fineweb_shards.storage.bucket_credentials import SETTINGS, forget_stores, has_answered
from fineweb_shards.storage.place import TRANSIENT_STATUSES
from fineweb_shards.system.retry import TransientError

# Two writers at the same moment: a retry shows who was first. Or an upload that somebody else has ended, or that we
# have, without receiving the answer.
_RACE_CODES = ("ConditionalRequestConflict", "OperationAborted", "NoSuchUpload")
_BUSY_CODES = ("InternalError", "RequestTimeout", "ServerBusy", "ServiceUnavailable", "SlowDown")
_TRANSIENT_CODES = (*_RACE_CODES, *_BUSY_CODES, "Throttling", "ThrottlingException")
_EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_BAD_KEY_CODES = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity", "AuthenticationFailed"}
)
_REGION_CODES = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_NO_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound", "InvalidBucketName")
# Credentials in a process's environment can't be renewed while it runs.
_FIXED = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_BEARER_TOKEN", "az": "AZURE_STORAGE_SAS_TOKEN"}
_METADATA_HOSTS = ("169.254.", "metadata.google.internal", "[fd00:ec2::254]", "metadata:")
_CERTIFICATE = "certificate"
_NOT_PARTIAL = "a range is answered with status 200, not 206"
# For a request without an answer: part of obstore's message, and our text.
_BROKEN = {
    "certificate": _CERTIFICATE,
    "dns error": "no such host, or no network",
    "ConnectionRefused": "the connection is refused",
    "TimedOut": "no answer",
    "timed out": "no answer",
    "timeout": "no answer",
}


class ConflictError(LockedError):
    """Somebody else has written the object."""

    hint = "Another run writes to the same place. Wait for it, or choose another."


class AnswerError(Exception):
    """A refusal that some methods expect; `refusal` is the error that the others raise."""

    def __init__(self, refusal: ShardError) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class MissingError(AnswerError):
    """There is no such object."""


class UnconditionalError(AnswerError):
    """The store does not support conditional writes."""


class PreconditionError(AnswerError):
    """The object does not meet the request's condition."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The parts of obstore's message that are safe to show."""

    kind: str  # the name of obstore's class
    status: int
    code: str
    host: str
    broken: str  # why the answer is missing or incomplete; empty if it is complete, or unknown

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        text = str(error)
        status = re.search(r"status code: (\d{3})\b", text)
        code = re.search(r"<Code>([A-Za-z]{1,60})</Code>", text)
        host = re.search(r"https?://([A-Za-z0-9.:\[\]_-]+)", text)
        number, broken = int(status[1]) if status else 0, ""
        if not status and "BareRedirect" in text:
            number = 301
        elif not status and "NotPartial" in text:
            broken = _NOT_PARTIAL
        elif not status and "HttpError" in text and "builder error" not in text:
            broken = next((ours for theirs, ours in _BROKEN.items() if theirs in text), "the connection broke")
        return cls(type(error).__name__, number, code[1] if code else "", host[1] if host else "", broken)

    @property
    def shown(self) -> str:
        """Status and code, in brackets."""
        words = " ".join(part for part in (str(self.status or ""), self.code) if part)
        return f" ({words})" if words else ""


def translate(error: Exception, address: BucketAddress, name: str, kind: type[ShardError]) -> Exception:
    """Return the error to raise instead of obstore's; `kind` is the class for a permanent one."""
    found, scheme = Refusal.of(error), address.scheme
    where, at_metadata = found.host or str(address), found.host.startswith(_METADATA_HOSTS)
    if at_metadata and not has_answered(address):  # this machine has no metadata service, hence no credentials
        public = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
        hint = f"{SETTINGS[scheme]} A public bucket is read with {public}_SKIP_SIGNATURE=true."
        return kind(f"{address}: no credentials were found.", hint)
    if found.broken == _NOT_PARTIAL:  # a proxy may do this once, some servers always do; obstore rejects it
        last = kind(
            f"{address}: the store answers a request for a range of an object with status 200, not 206.",
            "`rclone serve s3` and some proxies do that. Use another server; or a folder on this machine, and copy "
            "it with the store's own program.",
        )
        return TransientError(f"{where}: {found.broken}", error=last)
    if found.broken and found.broken != _CERTIFICATE:
        return TransientError(f"{where}: {found.broken}")
    if found.status in TRANSIENT_STATUSES or found.code in _TRANSIENT_CODES or at_metadata:
        return TransientError(f"{where}: status {found.status} {found.code}".rstrip())
    if found.code in _EXPIRED_CODES:
        expired = f"{address}: the credentials have expired"
        if os.environ.get(_FIXED.get(scheme, "")):
            return kind(f"{expired}.", "Renew them, and run the same command again.")
        forget_stores(address)
        return TransientError(expired, advice="the build continues when they are renewed")
    refusal = _refuse(found, address, str(address.child(name) if name else address), kind)
    if found.code in _NO_BUCKET_CODES:
        return refusal
    if found.status == 404:
        return MissingError(refusal)
    ends_early = found.status == 416 and scheme in WEB_SCHEMES
    if ends_early or found.status in (409, 412) or found.kind in ("AlreadyExistsError", "PreconditionError"):
        return PreconditionError(refusal)
    if found.status == 501 or found.kind == "NotSupportedError":
        return UnconditionalError(refusal)
    return refusal


def _refuse(found: Refusal, address: BucketAddress, url: str, kind: type[ShardError]) -> ShardError:
    """Return the error for a request that no retry would change."""
    settings, is_web = SETTINGS[address.scheme], address.scheme in WEB_SCHEMES
    place = f"{address.scheme}://{address.bucket}"
    if found.code in _BAD_KEY_CODES or found.status == 401:
        return kind(f"{address}: the credentials are refused{found.shown}.", settings)
    if found.code == "RequestTimeTooSkewed":
        return kind(f"{address}: the store says that this machine's clock is wrong.", "Set the clock.")
    if found.code in _NO_BUCKET_CODES:
        at = f" at {found.host}" if found.host else ""
        return kind(f"{place}: there is no such bucket{at}.", f"Check the name, or make the bucket first. {settings}")
    if found.broken == _CERTIFICATE:
        hint = "Check the clock and the endpoint; name certificates of your own with SSL_CERT_FILE."
        return kind(f"{found.host}: its certificate can't be trusted.", hint)
    if is_web and not found.status:
        return kind(f"{url}: the server does not give this file's size, or can't send a part of it.", settings)
    if found.code in _REGION_CODES or found.status == 301:
        return kind(f"{place}: the bucket is in another region.", "Set AWS_REGION to the bucket's region.")
    if found.status == 403 and not is_web:
        hint = "These credentials need the right to list and read, and for --out also to write and delete."
        return kind(f"{url}: access is denied{found.shown}.", hint)
    if found.kind == "InvalidPathError":
        return kind(f"{url}: an object below has a name that no folder could hold (//, . or ..).", "Rename it.")
    if found.status == 404:
        return kind(f"{url}: there is no such object.", "Check the address.")
    what = f"the store refuses{found.shown}" if found.status else f"the request can't be sent ({found.kind})"
    return kind(f"{url}: {what}.", settings)
