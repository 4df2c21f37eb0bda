"""Google's and Azure's stores: what they answer is understood. A server here gives answers on a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fineweb_shards.errors import ChangedError, InputError, NetworkError, UsageError
from fineweb_shards.storage.bucket import Bucket, parse_address
from fineweb_shards.storage.bucket_client import ConflictError, get_store
from fineweb_shards.storage.bucket_requests import Version
from tests.support.bucket_server import forget_everything

SECRETS = ("canary-token", "Y2FuYXJ5Y2FuYXJ5")  # the second one is a key in base64


class Script:
    """What the server answers, and what it was asked."""

    status, code = 200, ""
    requests: list[str]
    url = ""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A server to which the environment of both stores leads."""
    script = Script()
    script.requests = []

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            conditions = [f"{k}: {v}" for k, v in self.headers.items() if "if-" in k.lower()]
            script.requests.append(" ".join([self.command, self.path, *conditions]))
            body = f"<Error><Code>{script.code}</Code><Message>{SECRETS[0]}</Message></Error>".encode()
            self.send_response(script.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = handle_any  # noqa: N815 - the names that the base class calls

        def log_message(self, *words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("GOOGLE_BASE_URL", script.url)
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", SECRETS[0])
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", script.url)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
        monkeypatch.setenv("AZURE_STORAGE_KEY", SECRETS[1])
        forget_everything(monkeypatch)
        yield script
        server.shutdown()


@pytest.mark.parametrize("scheme", ["gs", "az"])
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "NoSuchBucket", "there is no such bucket"),
        (404, "ContainerNotFound", "there is no such bucket"),
        (403, "AuthorizationFailure", "access is denied"),
        (403, "AuthenticationFailed", "the credentials are refused"),
        (401, "NoAuthenticationInformation", "the credentials are refused"),
        (400, "InvalidArgument", "the store refuses"),
    ],
)
def test_a_refusal_is_a_sentence(script: Script, scheme: str, status: int, code: str, words: str) -> None:
    """Their errors end at once, with the address and the next step, and without keys."""
    script.status, script.code = status, code
    bucket = Bucket(f"{scheme}://container/folder", 60)
    for action in (lambda: bucket.read("x"), lambda: list(bucket.list()), lambda: bucket.overwrite("x", b"")):
        with pytest.raises(InputError, match=words) as caught:
            action()
        assert f"{scheme}://container" in caught.value.message
        assert not any(secret in caught.value.message + caught.value.hint for secret in SECRETS)
    assert len(script.requests) == 3


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_conditions_are_sent_and_conflicts_understood(script: Script, scheme: str) -> None:
    """A write says what it replaces in the store's own way, without a trial; a refused one is a conflict."""
    bucket = Bucket(f"{scheme}://container/folder", 60)
    script.status, script.code = 412, "ConditionNotMet"
    for replaces in (None, Version('"tag"', "7")):
        with pytest.raises(ConflictError, match=f"{scheme}://container/folder/x"):
            bucket.write("x", b"1", replaces=replaces)
    with pytest.raises(ChangedError):
        bucket.read_range("x", 0, 3, "tag")
    new, old, read = (request.lower() for request in script.requests)
    assert ("if-generation-match: 0" in new) if scheme == "gs" else ("if-none-match: *" in new)
    assert ("if-generation-match: 7" in old) if scheme == "gs" else ('if-match: "tag"' in old)
    assert 'if-match: "tag"' in read


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_what_passes_is_waited_for(script: Script, scheme: str) -> None:
    """A busy server is an outage; a missing object is an answer."""
    bucket = Bucket(f"{scheme}://container/folder", 0.3)
    script.status, script.code = 503, "ServerBusy"
    with pytest.raises(NetworkError, match="503 ServerBusy"):
        bucket.read("x")
    script.status, script.code = 404, "BlobNotFound"
    assert bucket.read("x") is None
    with pytest.raises(InputError, match="there is no such object"):
        bucket.read_range("x", 0, 1)


def test_an_account_is_asked_for(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an account, the variable that names it is the next step."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT")
    with pytest.raises(UsageError) as caught:
        Bucket("az://container/folder").read("x")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.hint


@pytest.mark.parametrize(
    "host",
    ["files.example", "x.s3.us-east-1.amazonaws.com", "s3.amazonaws.com", "x.r2.cloudflarestorage.com",
     "account.blob.core.windows.net", "storage.googleapis.com"],
)  # fmt: skip
def test_a_web_server_is_never_taken_for_a_bucket(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Public files of a bucket are read without credentials, and not from the endpoint of another bucket."""
    forget_everything(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert type(get_store(parse_address(f"https://{host}/folder/a.jsonl"))).__name__ == "HTTPStore"
