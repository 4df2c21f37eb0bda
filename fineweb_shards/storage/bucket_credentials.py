"""Open buckets for this process: one obstore store per bucket and use, with credentials and settings.

obstore sends each request once: system/retry.py does the retrying, so that waits are shown. obstore itself retries only
the parts of an upload, because it can't resume one after a failed part.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fineweb_shards.errors import UsageError
from fineweb_shards.storage.bucket_address import WEB_SCHEMES, BucketAddress

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


def forget_stores(address: BucketAddress) -> None:
    """Drop a bucket's stores, so that its credentials are looked up again."""
    with _lock:
        for for_upload in (False, True):
            _stores.pop((address.scheme, address.bucket, for_upload), None)


def note_answer(address: BucketAddress) -> None:
    _answered.add((address.scheme, address.bucket))


def has_answered(address: BucketAddress) -> bool:
    return (address.scheme, address.bucket) in _answered


def _open(address: BucketAddress, for_upload: bool) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    client: dict[str, Any] = {
        "allow_http": True,  # only if the endpoint says http
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{ANSWER_SECONDS}s",
    }
    if not for_upload:  # for uploads it would include the time to send a part
        client["read_timeout"] = f"{STALL_SECONDS}s"
    retries = {"max_retries": _PART_RETRIES if for_upload else 0}
    options: dict[str, Any] = {"client_options": client, "retry_config": retries}
    if address.scheme in WEB_SCHEMES:
        return HTTPStore.from_url(str(address), **options)
    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
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
        store: ObjectStore = kinds[address.scheme](address.bucket, **options)
    except (BaseError, ValueError):  # its message may quote the environment
        problem = "the settings in the environment can't be used"
        raise UsageError(f"{address}: {problem}.", SETTINGS[address.scheme]) from None
    return store


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
    in_config = name if name == "default" else f"profile {name}"
    found: list[dict[str, str]] = []
    for path, section in ((config, in_config), (credentials, name)):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (OSError, UnicodeDecodeError, configparser.Error):
            # The parser's own message quotes lines of the file, which hold keys.
            raise UsageError(f"{path}: these AWS profiles can't be read.", "Repair the file.") from None
        if parser.has_section(section):
            found.append(dict(parser.items(section)))
    if asked and not found:
        raise UsageError(f"AWS_PROFILE is {name}, but there is no such profile.", f"Look into {config}.")
    profile = {key: value for settings in found for key, value in settings.items()}
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
