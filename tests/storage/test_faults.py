"""Faults between us and a store: what passes is waited for, the rest is a sentence without secrets."""

from __future__ import annotations

import pickle
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from fineweb_shards.errors import InputError, NetworkError, ShardError, UsageError
from fineweb_shards.storage import bucket as bucket_module
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.storage.bucket_client import ConflictError
from fineweb_shards.system.background import in_background
from fineweb_shards.system.retry import Clock
from tests.support.bucket_server import KEY, SECRET, TOKEN, Door, Fault, forget_everything, free_port
from tests.support.doubles import Listener


@pytest.fixture
def bucket(bucket_url: str, door: Door) -> Bucket:
    return Bucket(f"{bucket_url}/folder", 60)


PASSING = [
    Fault(status=500, code="InternalError", times=3),
    Fault(status=503, code="SlowDown", times=3),
    Fault(status=429, times=2),
    Fault(resets=True, times=3),
    Fault(after=True, times=2),
    Fault(method="GET", cut=True, times=3),
    Fault(status=400, code="RequestTimeout"),
]


@pytest.mark.full(but=["503SlowDown", "0_1", "400RequestTimeout"])
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.status}{fault.code}")
def test_what_passes_is_survived_by_every_method(
    bucket: Bucket, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """Each method gives the same as without the fault."""
    monkeypatch.setattr(Clock, "sleep", lambda clock, seconds: None)
    data = random.Random(1).randbytes(9_000_000)
    (tmp_path / "file").write_bytes(data)

    def again() -> None:
        door.faults[:] = [replace(fault)]

    assert bucket.has_conditional_writes
    again()
    bucket.upload(tmp_path / "file", "file")
    again()
    version = bucket.write("small", b"1", replaces=None)
    again()
    bucket.write("small", b"2", replaces=version)
    again()
    found = bucket.read("small")
    assert found is not None
    assert found[0] == b"2"
    again()
    bucket.overwrite("other", b"3")
    again()
    assert sorted(one.name for one in bucket.list()) == ["file", "other", "small"]
    again()
    assert len(bucket.list_folder()) == 3
    again()
    assert bucket.read_range("file", 1000, 5_000_000) == data[1000:5_000_000]
    again()
    with bucket.open("file") as file:
        assert file.read() == data
    again()
    bucket.delete(["other"])
    door.faults.clear()
    assert bucket.head("other") is None


def test_a_lost_answer_is_no_conflict(bucket: Bucket, door: Door) -> None:
    """A write whose answer is lost is found done, and not taken for somebody else's."""
    assert bucket.has_conditional_writes
    door.faults.append(Fault(method="PUT", after=True))
    version = bucket.write("manifest", b"mine", replaces=None)
    door.faults.append(Fault(method="PUT", after=True))
    version = bucket.write("manifest", b"mine, longer", replaces=version)
    assert bucket.read("manifest") == (b"mine, longer", version)


def test_a_lost_answer_hides_no_conflict(bucket: Bucket, door: Door) -> None:
    """If somebody else has written, a retry does not make it ours."""
    assert bucket.has_conditional_writes
    bucket.overwrite("manifest", b"theirs")
    door.faults.append(Fault(method="PUT", resets=True))
    with pytest.raises(ConflictError):
        bucket.write("manifest", b"mine", replaces=None)
    assert (bucket.read("manifest") or [None])[0] == b"theirs"


@pytest.mark.parametrize("ignores", [False, True])
def test_a_store_without_conditions_is_noticed(
    bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch, ignores: bool
) -> None:
    """Whether it refuses conditions or ignores them, a write looks first, and a second writer is refused."""
    if ignores:
        door.ignored_headers = ("if-match", "if-none-match")
    else:
        door.faults.append(Fault(method="PUT", path="probe", status=501, code="NotImplemented"))
    bucket = Bucket(bucket_url)
    assert not bucket.has_conditional_writes
    version = bucket.write("manifest", b"1", replaces=None)
    with pytest.raises(ConflictError):
        bucket.write("manifest", b"2", replaces=None)
    bucket.write("manifest", b"2", replaces=version)
    with pytest.raises(ConflictError):
        bucket.write("manifest", b"3", replaces=version)
    assert [one.name for one in bucket.list()] == ["manifest"]


def test_conditions_without_quotes_are_sent_to_a_store_that_wants_them(bucket_url: str, door: Door) -> None:
    """Ceph's RGW: what holds is written, and a second writer is refused."""
    door.compares_unquoted = True
    bucket = Bucket(bucket_url)
    assert bucket.has_conditional_writes
    for writer in (bucket, pickle.loads(pickle.dumps(bucket)), bucket.reopened(None), bucket.hurried(9, 9)):
        version = writer.write("manifest", b"1", replaces=None)
        with pytest.raises(ConflictError):
            writer.write("manifest", b"2", replaces=None)
        writer.write("manifest", b"2", replaces=version)
        with pytest.raises(ConflictError):
            writer.write("manifest", b"3", replaces=version)
        bucket.delete(["manifest"])
    assert list(bucket.list()) == []


@pytest.mark.parametrize("refused", ["create", "replace"])
def test_a_store_that_refuses_conditions_that_hold_is_one_without(
    bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """It looks as if somebody else had always been quicker; so a write looks first, without a condition."""
    really_put = obstore.put

    def put(*arguments: Any, mode: Any = None, **options: Any) -> Any:
        if mode == "create" if refused == "create" else isinstance(mode, dict):
            raise obstore.exceptions.PreconditionError("status code: 412")
        return really_put(*arguments, mode=mode, **options)

    monkeypatch.setattr(obstore, "put", put)
    bucket = Bucket(bucket_url)
    assert not bucket.has_conditional_writes
    version = bucket.write("manifest", b"1", replaces=None)
    bucket.write("manifest", b"2", replaces=version)
    with pytest.raises(ConflictError):
        bucket.write("manifest", b"3", replaces=version)
    assert [one.name for one in bucket.list()] == ["manifest"]


def test_a_lost_answer_to_the_probe_hides_no_conditions(
    bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that was done under a condition that held is no refusal when it is tried again."""
    monkeypatch.setattr(Clock, "sleep", lambda clock, seconds: None)
    for skip in range(5):
        door.faults[:] = [Fault(method="PUT", path="probe", after=True, skip=skip)]
        bucket = Bucket(bucket_url)
        assert bucket.has_conditional_writes, skip
    assert list(bucket.list()) == []


def test_ranges_with_status_200_are_an_error_of_the_store(bucket: Bucket, door: Door) -> None:
    """After a few tries, not after an outage's hour; once in between it passes, as any fault does."""
    bucket.overwrite("x", b"0123456789")
    door.ranges_status = 200
    with pytest.raises(InputError, match="status 200") as caught:
        bucket.read_range("x", 2, 5)
    assert "rclone serve s3" in caught.value.hint
    assert len(door.reads) == 4

    def mend(method: str, path: str) -> None:
        door.ranges_status = 206 if len(door.reads) > 4 else 200

    door.on_answer = mend
    assert bucket.read_range("x", 2, 5) == b"234"
    assert len(door.reads) == 6


def check_no_secret(error: BaseException) -> None:
    shown = "".join(traceback.format_exception(error)) + repr(error) + getattr(error, "hint", "")
    for secret in (KEY, SECRET, TOKEN, "Signature=", "Credential="):
        assert secret not in shown


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "AccessDenied", "access is denied"),
        (403, "InvalidAccessKeyId", "the credentials are refused"),
        (403, "SignatureDoesNotMatch", "the credentials are refused"),
        (400, "ExpiredToken", "the credentials have expired"),
        (403, "RequestTimeTooSkewed", "clock"),
        (301, "PermanentRedirect", "another region"),
        (400, "AuthorizationHeaderMalformed", "another region"),
        (404, "NoSuchBucket", "no such bucket"),
        (400, "SomethingNew", "400 SomethingNew"),
    ],
)
def test_a_refusal_is_a_sentence_without_secrets(
    bucket: Bucket, door: Door, monkeypatch: pytest.MonkeyPatch, status: int, code: str, words: str
) -> None:
    """Listing, reading and writing end with the reason, the address and the next step, at once."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    forget_everything(monkeypatch)
    door.faults.append(Fault(status=status, code=code, times=99))
    for action in (
        lambda: list(bucket.list()),
        lambda: bucket.read("x"),
        lambda: bucket.read_range("x", 0, 1),
        lambda: bucket.overwrite("x", b""),
    ):
        before = len(door.requests)
        with pytest.raises(InputError) as caught:
            action()
        assert words in caught.value.message
        assert str(bucket.address)[:10] in caught.value.message
        assert caught.value.hint
        assert len(door.requests) == before + 1
        check_no_secret(caught.value)


@pytest.mark.parametrize("status", [409, 412, 501])
def test_an_answer_that_makes_no_sense_is_a_refusal(bucket: Bucket, door: Door, status: int) -> None:
    """Of a method that did not ask for it: an error for a user, never a bug."""
    door.faults.append(Fault(status=status, times=99))
    for action in (lambda: bucket.delete(["x"]), lambda: bucket.head("x"), lambda: bucket.read("x")):
        with pytest.raises(InputError, match=f"the store refuses .{status}"):
            action()


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.01)


def test_an_upload_that_does_not_go_on_is_told(
    bucket: Bucket, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wait for the network, until it goes on; then all of it is there."""
    monkeypatch.setattr(bucket_module, "_SILENT_SECONDS", 0.2)
    monkeypatch.setattr(bucket_module, "_LOOK_SECONDS", 0.05)
    path, listener = tmp_path / "file", Listener()
    path.write_bytes(bytes(9_000_000))

    def hold(method: str, request: str) -> None:
        if method == "PUT":
            wait_until(lambda: bool(listener.waits))

    door.on_request = hold
    bucket.reopened(listener).upload(path, "x")
    assert "makes no progress" in str(listener.waits[0][1])
    assert listener.waits[-1] == ("network", None)
    assert bucket.read_range("x", 0, 9_000_000) == path.read_bytes()


def test_somebody_in_a_hurry_does_not_wait_for_silence(bucket: Bucket, door: Door) -> None:
    """One try, in the main thread and in another; for everybody else silence is an outage."""
    door.faults.append(Fault(stall_seconds=600, times=2))
    hurried = bucket.hurried(60, longest_answer_seconds=1.0)
    with pytest.raises(NetworkError, match="no answer within 1 s"):
        hurried.overwrite("x", b"")
    with pytest.raises(NetworkError, match="no answer within 1 s"):
        in_background(lambda: hurried.read("x")).result()
    assert len(door.requests) <= 2


def test_no_bucket_is_said(bucket_environment: str) -> None:
    """A bucket that is not there is named, with the server that was asked."""
    with pytest.raises(InputError, match=r"s3://nobody-has-this: there is no such bucket at 127\.0\.0\.1") as caught:
        list(Bucket("s3://nobody-has-this/folder").list())
    check_no_secret(caught.value)


def test_no_endpoint_is_an_outage(bucket_environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not there is waited for as long as an outage may last, and then named."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    forget_everything(monkeypatch)
    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:\d+: the connection is refused") as caught:
        Bucket("s3://bucket", 0.3).read("x")
    check_no_secret(caught.value)


def test_an_unusable_endpoint_is_a_mistake(bucket_environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that is no address ends at once, and names the variable."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:1")
    forget_everything(monkeypatch)
    with pytest.raises(ShardError) as caught:
        Bucket("s3://bucket", 60).read("x")
    assert "AWS_ENDPOINT_URL" in caught.value.message


def test_no_credentials_are_said(bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are none, the sentence says so and where they are looked for."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.0.1:1")
    monkeypatch.setattr("fineweb_shards.storage.bucket_client.CONNECT_SECONDS", 1)
    forget_everything(monkeypatch)
    with pytest.raises(InputError, match="no credentials were found") as caught:
        Bucket(bucket_url, 60).read("x")
    assert "AWS_PROFILE" in caught.value.hint


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_a_pair_of_keys_is_refused(bucket_url: str, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """At once, and both variables are named."""
    monkeypatch.delenv(missing)
    forget_everything(monkeypatch)
    with pytest.raises(UsageError, match="the settings in the environment can't be used") as caught:
        Bucket(bucket_url).head("a")
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in caught.value.hint


def write_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, credentials: str, config: str = "") -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    for name, text in (("AWS_SHARED_CREDENTIALS_FILE", credentials), ("AWS_CONFIG_FILE", config)):
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setenv(name, str(path))
    forget_everything(monkeypatch)


def test_a_profile_with_keys_is_read(
    bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Keys, region and endpoint of AWS_PROFILE are used, as the AWS tools do."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    keys = "[work]\naws_access_key_id = PROFILEKEY\naws_secret_access_key = b\naws_session_token = t\n"
    write_profile(monkeypatch, tmp_path, keys, f"[profile work]\nregion = eu-west-9\nendpoint_url = {door.url}\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    Bucket(bucket_url).overwrite("x", b"1")
    assert "PROFILEKEY" in door.authorizations[-1]
    assert "eu-west-9" in door.authorizations[-1]


def test_expired_credentials_of_a_profile_are_waited_for(
    bucket_url: str, door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When the file has new ones, the run goes on with them."""
    write_profile(monkeypatch, tmp_path, "[default]\naws_access_key_id = OLDKEY\naws_secret_access_key = b\n")
    bucket = Bucket(bucket_url, 60)
    bucket.overwrite("x", b"1")
    door.faults.append(Fault(status=400, code="ExpiredToken", times=2))

    def renew(clock: Clock, seconds: float) -> None:
        (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text(
            "[default]\naws_access_key_id = NEWKEY\naws_secret_access_key = b\n"
        )

    monkeypatch.setattr(Clock, "sleep", renew)
    bucket.overwrite("x", b"2")
    assert "OLDKEY" in door.authorizations[0]
    assert "NEWKEY" in door.authorizations[-1]


@pytest.mark.parametrize("line", ["sso_start_url = https://example.invalid", "credential_process = keys"])
def test_a_profile_that_needs_a_login_is_left_to_the_aws_tools(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    """The next step is the command that puts its keys into the environment."""
    write_profile(monkeypatch, tmp_path, "", f"[default]\n{line}\n")
    with pytest.raises(UsageError, match="profile default needs a login") as caught:
        Bucket(bucket_url).read("x")
    assert "aws configure export-credentials --profile default" in caught.value.hint


def test_a_missing_or_broken_profile_is_said(bucket_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A profile that is not there is named; of a broken file nothing is quoted."""
    write_profile(monkeypatch, tmp_path, "[default]\n")
    monkeypatch.setenv("AWS_PROFILE", "typo")
    with pytest.raises(UsageError, match="AWS_PROFILE is typo"):
        Bucket(bucket_url).read("x")
    (tmp_path / "AWS_SHARED_CREDENTIALS_FILE").write_text(f"{SECRET} without a section\n")
    with pytest.raises(UsageError, match="can't be read") as caught:
        Bucket(bucket_url).read("x")
    check_no_secret(caught.value)
