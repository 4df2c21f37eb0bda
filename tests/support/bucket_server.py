"""An S3 server on this machine: moto's, in a process of its own, and a door to it where things go wrong.

moto does not look at signatures, so the door can pass requests on as they are. There are two other servers, which are
not installed by themselves: `second_endpoint`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from fineweb_shards.storage import bucket as bucket_module
from fineweb_shards.storage import bucket_client as stores

KEY, SECRET, TOKEN = "AKIACANARYCANARY1234", "canarySECRETcanarySECRETcanary12", "canaryTOKENcanary"
_SERVER = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import main
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def bucket_endpoint() -> Iterator[str]:
    """The address of a server that runs for all tests of this process."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # S3 has 5 MiB; tests have small files in parts. The first test that needs the server may have a TMPDIR of its
        # own (ray_cluster.py), which goes with it.
        env={**os.environ, "S3_UPLOAD_PART_MIN_SIZE": "1", "TMPDIR": tempfile.gettempdir()},
    )
    with _served(server, port) as endpoint:
        yield endpoint


@pytest.fixture(scope="session", params=["ministack", "s3rver"])
def second_endpoint(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[str]:
    """Another program that speaks S3: MiniStack (PyPI), which knows conditional writes, and s3rver (npm), which does
    not. MiniStack needs a botocore of its own, so neither is among our packages: put them on PATH from elsewhere."""
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not on PATH: pip or npm install {request.param}, anywhere")
    port, folder = free_port(), tmp_path_factory.mktemp(request.param)
    words = [program]
    if request.param == "s3rver":
        words += ["-a", "127.0.0.1", "-p", str(port), "-d", str(folder)]
    server = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "TMPDIR": str(folder)},
    )
    with _served(server, port) as endpoint:
        yield endpoint


@contextlib.contextmanager
def _served(server: subprocess.Popen[bytes], port: int) -> Iterator[str]:
    """Wait for a server, and end it afterwards."""
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert server.poll() is None, "the server has ended"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def bucket_environment(bucket_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> str:
    """An environment that leads to the server, and to nothing of the developer's own."""
    home = tmp_path_factory.mktemp("home")
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket_endpoint)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials"))
    forget_everything(monkeypatch)
    return bucket_endpoint


@pytest.fixture
def bucket_url(bucket_environment: str) -> str:
    """The address of a new bucket."""
    return make_bucket(bucket_environment)


def make_bucket(endpoint: str) -> str:
    """Make a bucket, and return its address."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")):
        return f"s3://{name}"


def forget_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process look for settings and credentials again."""
    monkeypatch.setattr(stores, "_stores", {})
    monkeypatch.setattr(stores, "_answered", set())


def use_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files of more than 4 KiB uploaded in parts, a few at once."""
    monkeypatch.setattr(bucket_module, "_SMALLEST_PART_BYTES", 4096)
    monkeypatch.setattr(bucket_module, "_MIB", 4096)
    monkeypatch.setattr(bucket_module, "UPLOAD_MEMORY_BYTES", 4 * 4096)


@dataclass
class Fault:
    """What happens to the next `times` requests that match, instead of an answer or after it."""

    method: str = ".*"
    path: str = ".*"  # with the query
    times: int = 1
    status: int = 0  # an answer with this status
    code: str = ""  # and this error code of S3
    resets: bool = False  # the connection breaks off
    after: bool = False  # the server has done what was asked, and the answer is lost
    cut: bool = False  # the connection breaks off in the middle of the answer's body
    stall_seconds: float = 0.0  # of silence, before what is described above
    skip: int = 0  # so many requests that match are left alone first

    def matches(self, method: str, path: str) -> bool:
        if not self.times or not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        self.skip -= 1
        return self.skip < 0


class Read(NamedTuple):
    """A range of an object that was asked for, and sent."""

    path: str
    range: str  # the header
    sent_bytes: int


@dataclass
class Door:
    """A server that passes requests on to the real one, except for those that a fault is for."""

    endpoint: str
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # method and path of each
    authorizations: list[str] = field(default_factory=list)  # the header of each
    reads: list[Read] = field(default_factory=list)  # of objects, what was answered
    ignored_headers: tuple[str, ...] = ()  # not passed on
    compares_unquoted: bool = False  # the ETag in a write's condition, as Ceph 16.2 does: "x" is never x
    ranges_status: int = 206  # of answers to requests for a range; 200 with `rclone serve s3`
    on_request: Callable[[str, str], None] = lambda method, path: None  # before a request is passed on
    on_answer: Callable[[str, str], None] = lambda method, path: None  # before its answer is passed on
    damage: Callable[[bytes], bytes] = lambda content: content  # to what is passed on of an answer
    one_by_one: bool = False  # no two requests are passed on at the same time
    turn: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.matches(method, path):
                    fault.times -= 1
                    return fault
        return None


@pytest.fixture
def door(bucket_environment: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """A door to the server; the environment leads to it."""
    door = Door(bucket_environment)
    handler = type("Handler", (_Handler,), {"door": door})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        door.url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", door.url)
        forget_everything(monkeypatch)
        yield door
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    door: Door

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):  # the client has gone, or the connection was reset by us
            self.close_connection = True

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.door.authorizations.append(self.headers.get("Authorization") or "")
        fault = self.door.choose(self.command, self.path)
        if fault is not None and not fault.after and not fault.cut:
            return self._fail(fault)
        if self.command == "PUT" and self._is_refused_by_ceph():
            return self._fail(Fault(status=412, code="PreconditionFailed"))
        self.door.on_request(self.command, self.path)
        with self.door.turn if self.door.one_by_one else contextlib.nullcontext():
            status, headers, content = self._pass_on(body)
        content = self.door.damage(content)
        self.door.on_answer(self.command, self.path)
        if fault is not None and fault.after:
            return self._fail(fault)
        length = len(content)
        if self.command == "HEAD":
            length = int({name.lower(): value for name, value in headers}.get("content-length", 0))
        if self.command == "GET" and "?" not in self.path and fault is None:
            # Before the status: a client that refuses it asks again at once.
            self.door.reads.append(Read(self.path, self.headers.get("Range") or "", length))
        self.send_response_only(self.door.ranges_status if status == 206 else status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if fault is not None:
            self.wfile.write(content[: len(content) // 2])
            return self._reset()
        self.wfile.write(content)
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names that the base class calls

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        host, _, port = self.door.endpoint.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port))
        try:
            ignored = self.door.ignored_headers
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ignored}
            if self.door.compares_unquoted and self.command == "PUT" and "If-Match" in self.headers:
                headers["if-match"] = f'"{self.headers["If-Match"]}"'  # as the server behind it wants it
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _is_refused_by_ceph(self) -> bool:
        """RGW keeps ETags without quotes and compares the header as it is, except in a GET."""
        return self.door.compares_unquoted and '"' in (self.headers.get("If-Match") or "")

    def _fail(self, fault: Fault) -> None:
        time.sleep(fault.stall_seconds)
        if not fault.status:
            return self._reset()
        content = f"<Error><Code>{fault.code}</Code><Message>{SECRET}</Message></Error>".encode()
        if self.command == "HEAD":
            content = b""
        self.send_response_only(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None

    def _reset(self) -> None:
        """End the connection with a reset, not in good order."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        raise ConnectionResetError

    def log_message(self, *words: Any) -> None:
        """Say nothing."""
