"""A plain web server on loopback: files with an ETag or a date, ranges, and faults on demand."""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from fineweb_shards.storage import bucket_client as stores


@dataclass
class WebFiles:
    """What the server has, and how it answers."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # by path, without percent signs
    # What happens to the next requests for content: a status; "reset", or "cut" in the middle; "" for nothing.
    faults: list[int | str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)  # method, path as it was sent, and range
    on_request: Callable[[int], None] = lambda number: None  # before it is answered
    status: int = 0  # of every answer, if not 0
    has_ranges: bool = True
    has_length: bool = True
    etag: str = '"{}"'  # {} is a hash of the content; empty: none
    date: str = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebFiles]:
    """A server that has no files yet."""
    monkeypatch.setattr(stores, "_stores", {})
    files = WebFiles()
    handler = type("Handler", (_Handler,), {"web": files})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        files.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield files
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: WebFiles

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):  # the client has gone, or the connection was reset by us
            self.close_connection = True

    def _answer(self) -> None:
        web, wanted = self.web, self.headers.get("Range")
        web.requests.append(f"{self.command} {self.path} {wanted or ''}".rstrip())
        web.on_request(len(web.requests))
        data = web.files.get(unquote(self.path))
        fault = web.faults.pop(0) if self.command == "GET" and web.faults else ""
        if fault == "reset":
            self._reset()
        if data is None or isinstance(fault, int) or web.status:
            return self._send(404 if data is None else web.status or int(fault), {}, b"no", b"no")
        headers = {"Last-Modified": web.date} if web.date else {}
        if web.etag:
            headers["ETag"] = web.etag.format(hashlib.sha256(data).hexdigest()[:16])
        if wanted is None or not web.has_ranges:
            return self._send(200, headers, data, data)
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        assert found, wanted
        if int(found[1]) >= len(data):
            return self._send(416, {"Content-Range": f"bytes */{len(data)}"}, b"", b"")
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        content = data[first : last + 1]
        return self._send(206, headers, content, content[: len(content) // 2] if fault == "cut" else content)

    def _send(self, status: int, headers: dict[str, str], content: bytes, sent: bytes) -> None:
        self.send_response(status)
        if self.web.has_length:
            headers = {**headers, "Content-Length": str(len(content))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(sent)
        if len(sent) < len(content):
            self._reset()

    def _reset(self) -> None:
        """Break the connection off."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise ConnectionResetError

    do_GET = do_HEAD = _answer  # noqa: N815 - names of the standard library

    def log_message(self, *arguments: object) -> None:
        pass
