"""obstore as this program's client for buckets: open them with credentials and settings, and translate its exceptions.

obstore sends each request once: system/retry.py does the retrying, so that waits are shown. obstore itself retries only
the parts of an upload, because it can't resume one after a failed part.

obstore's messages quote addresses, headers and responses, which may contain signatures and keys. So they are never
passed on: only a status, the store's error code and a host name are extracted.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fineweb_shards.errors import LockedError, ShardError, UsageError
from fineweb_shards.storage.bucket_address import WEB_SCHEMES, BucketAddress
from fineweb_shards.storage.place import TRANSIENT_STATUSES
from fineweb_shards.system.retry import TransientError

if TYPE_CHECKING:
    from obstore.store import ObjectStore


CONNECT_SECONDS = 10
STALL_SECONDS = 30  # silence in the middle of an answer
ANSWER_SECONDS = 300  # for a whole range or part, in case a connection trickles
_PART_RETRIES = 6

_stores: dict[tuple[str, str, bool], ObjectStore] = {}
_answered: set[tuple[str, str]] = set()  # buckets that have answered, which proves that credentials were found
_lock = threading.Lock()
_process: int | None = None  # the first to use obstore; a forked process inherits the value


def get_store(address: BucketAddress, *, for_upload: bool = False) -> ObjectStore:
    global _process
    check_not_forked(address)
    key = (address.scheme, address.bucket, for_upload)
    with _lock:
        _process = os.getpid()
        if key not in _stores:
            _stores[key] = _open(address, for_upload)
        return _stores[key]


def check_not_forked(address: object) -> None:
    """Raise UsageError in a process forked from one that has used obstore: a fork lacks obstore's threads, so requests
    would hang. The message includes the next step, because a torch DataLoader shows only its workers' messages."""
    if _process not in (None, os.getpid()):
        raise UsageError(
            f"{address}: this process was forked from one that has used an object store, and would hang; it "
            'must be spawned, as by DataLoader(…, multiprocessing_context="spawn").',
            'Pass multiprocessing_context="spawn" to the DataLoader.',
        )


def note_answer(address: BucketAddress) -> None:
    _answered.add((address.scheme, address.bucket))


def _open(address: BucketAddress, for_upload: bool) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import HTTPStore, from_url

    client: dict[str, Any] = {
        "allow_http": True,  # only if the endpoint says http
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{ANSWER_SECONDS}s",
    }
    if not for_upload:  # for uploads it would include the time to send a part
        client["read_timeout"] = f"{STALL_SECONDS}s"
    retries = {"max_retries": _PART_RETRIES if for_upload else 0}
    options: dict[str, Any] = {"client_options": client, "retry_config": retries}
    url = f"{address.scheme}://{address.bucket}"
    if address.scheme in WEB_SCHEMES:  # `from_url` would take some hosts for a bucket, and want credentials
        return HTTPStore.from_url(url, **options)
    if address.scheme == "s3":
        options |= _aws_options() | {"disable_bulk_delete": True}  # not every S3-compatible store supports it
    if address.scheme == "az":  # variables of the Azure tools
        account, key = os.environ.get("AZURE_STORAGE_ACCOUNT"), os.environ.get("AZURE_STORAGE_KEY")
        options |= _unless_set(("AZURE_STORAGE_ACCOUNT_NAME",), "account_name", account)
        options |= _unless_set(("AZURE_STORAGE_ACCOUNT_KEY",), "account_key", key)
    # obstore panics on an endpoint that is not a web address.
    endpoints = {name: os.environ.get(name) for name in (*_AWS_ENDPOINTS, *_AZURE_ENDPOINTS)}
    endpoints["endpoint_url of the AWS profile"] = options.get("endpoint")
    for name, value in endpoints.items():
        if value and not re.match(r"https?://[^/@\s]+(/|$)", value):
            raise UsageError(f"{name} is not a web address.", "Write it like https://host or http://host:port.")
    try:
        return from_url(url, **options)
    except (BaseError, ValueError):  # its message may quote the environment
        problem = "the settings in the environment can't be used"
        raise UsageError(f"{address}: {problem}.", SETTINGS[address.scheme]) from None


# Where the settings of each store come from.
SETTINGS = {
    "s3": "Check AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    "gs": "Check GOOGLE_APPLICATION_CREDENTIALS: it names the JSON file of a service account or of "
    "`gcloud auth application-default login`.",
    "az": "Check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN).",
} | dict.fromkeys(WEB_SCHEMES, "Download it first (curl -LO ADDRESS), and name the file.")


# Credentials and settings that obstore does not find.
#
# obstore reads the environment (AWS_*, GOOGLE_*, AZURE_*), Google's application default credentials, and the roles of
# instances, containers and pods. It ignores AWS profiles (~/.aws/credentials and ~/.aws/config) and two of the Azure
# tools' variables. Profiles with keys are read here; for one that needs a login, a role or a program, the user exports
# the keys to the environment with the AWS CLI.
#
# Nothing here is cached, printed or pickled: every process looks for itself.

_AWS_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
# A profile with one of these gets its keys from a login, a role or a program.
_MADE_ELSEWHERE = (
    "sso_session", "sso_start_url", "login_session", "role_arn", "web_identity_token_file", "credential_process",
)  # fmt: skip


def _aws_options() -> dict[str, Any]:
    """Read a profile for settings that the environment lacks: from both files, of which `credentials` takes precedence,
    as in the AWS tools."""
    asked = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    name = asked or "default"
    config = os.path.expanduser(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"))
    credentials = os.path.expanduser(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
    parser = configparser.RawConfigParser()
    try:
        parser.read([config, credentials])
    except (OSError, UnicodeDecodeError, configparser.Error):
        # The parser's own message quotes lines of the file, which hold keys.
        raise UsageError(f"{config} or {credentials}: the AWS profiles can't be read.", "Repair the file.") from None
    sections = [section for section in (f"profile {name}", name) if parser.has_section(section)]
    if asked and not sections:
        raise UsageError(f"AWS_PROFILE is {name}, but there is no such profile.", f"Look into {config}.")
    profile = {key: value for section in sections for key, value in parser.items(section)}
    options = _unless_set(("AWS_REGION", "AWS_DEFAULT_REGION"), "region", profile.get("region"))
    options |= _unless_set(_AWS_ENDPOINTS, "endpoint", profile.get("endpoint_url"))
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return options
    if "aws_access_key_id" in profile and "role_arn" not in profile:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        return options | {name.removeprefix("aws_"): profile[name] for name in names if name in profile}
    if any(key in profile for key in _MADE_ELSEWHERE):
        raise UsageError(
            f"The AWS profile {name} needs a login, a role or a program for its keys.",
            f'Run: eval "$(aws configure export-credentials --profile {shlex.quote(name)} --format env)"',
        )
    return options


def _unless_set(variables: Sequence[str], option: str, value: str | None) -> dict[str, Any]:
    """Return an option, unless it has no value, or the environment, which obstore reads, has one."""
    return {option: value} if value and not any(map(os.environ.get, variables)) else {}


# Errors: TransientError if waiting may help, an error in our own words if not

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
    if (
        at_metadata and (scheme, address.bucket) not in _answered
    ):  # this machine has no metadata service, hence no credentials
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
        with _lock:  # the next attempt looks for new ones
            for for_upload in (False, True):
                _stores.pop((scheme, address.bucket, for_upload), None)
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
