"""The part of the stand-in hub that speaks HTTP: read a request, have it answered, send the answer, as the fault wants
it. What is answered is decided in standin_routes.py (the hub) and standin_cdn.py (the CDN).
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from tests.support.standin_faults import (
    ChangedETag,
    CutBody,
    ExpiredMidBody,
    IgnoreRange,
    Kind,
    OtherBody,
    RequestRecord,
    Reset,
    Slow,
    Stall,
    Status,
    WrongBytes,
)
from tests.support.standin_line import Pace, piece_bytes, wait_for
from tests.support.standin_repository import HubFile

if TYPE_CHECKING:
    from tests.support.standin_hub import StandInHub


class RefusedError(Exception):
    """An error answer, in the hub's words."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {**headers, **({"X-Error-Code": code, "X-Error-Message": message} if code else {})}

    @classmethod
    def of_fault(cls, fault: Status) -> Self:
        refused = cls(fault.code, "", "scripted fault")
        if fault.retry_after is not None:
            refused.headers["Retry-After"] = str(fault.retry_after)
        if fault.rate_limit_reset_seconds is not None:
            refused.headers["RateLimit"] = f'"resolvers";r=0;t={fault.rate_limit_reset_seconds}'
        return refused


@dataclass(frozen=True)
class Answer:
    """What a request gets when nothing goes wrong: a slice of a file."""

    status: int
    headers: dict[str, str]
    file: HubFile
    start: int
    stop: int

    @classmethod
    def of_bytes(cls, status: int, body: bytes, headers: Mapping[str, str]) -> Self:
        return cls(status, dict(headers), HubFile("", body), 0, len(body))

    @classmethod
    def of_json(cls, value: object, status: int = 200, headers: Mapping[str, str] = {}) -> Self:
        return cls.of_bytes(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})

    @classmethod
    def of_file(cls, file: HubFile, wanted_range: str | None, headers: dict[str, str]) -> Self:
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted_range or "")
        if wanted is None:
            return cls(200, headers, file, 0, file.size)
        first, last = wanted.groups()
        start = int(first) if first else max(0, file.size - int(last))
        stop = min(file.size, int(last) + 1) if first and last else file.size
        if start >= stop:
            message = f"Range {wanted_range} of {file.size} bytes"
            raise RefusedError(416, "", message, {"Content-Range": f"bytes */{file.size}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        return cls(206, headers, file, start, stop)

    def damaged(self, fault: WrongBytes) -> Self:
        """Return the answer with a body of which one byte is another."""
        body = bytearray(self.file.read(self.start, self.stop))
        body[len(body) // 2 if fault.at is None else fault.at - self.start] ^= fault.mask
        return replace(self, file=HubFile("", bytes(body)), start=0, stop=len(body))


class Handler(BaseHTTPRequestHandler):
    """One connection. A subclass says what is answered, and what kind of request it is for the log."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or headers and body in two packets cost 40 ms
    server: Server
    kind: Kind
    paces: list[Pace]

    def setup(self) -> None:
        super().setup()
        self.paces = []

    def answer(self) -> Answer:
        """Return the answer, or raise RefusedError."""
        raise NotImplementedError

    def expire_address(self) -> None:
        """Refuse the address of this request from now on, if this server has such addresses."""

    def find_kind(self) -> Kind:
        return self.kind

    def serve(self) -> None:
        self.body = self._read_body()
        authorization = self.headers.get("Authorization")
        self.token = authorization.removeprefix("Bearer ") if authorization else None
        self.range = self.headers.get("Range")
        self.quota_headers: dict[str, str] = {}
        kind, path = self.find_kind(), self.path
        if kind == "cdn":  # signatures are nothing to count by
            path = path.partition("?")[0]
        headers = dict(self.headers)
        self.record = RequestRecord(self.command, kind, path, self.range, bool(self.token), headers)
        with self.server.hub.busy(self.record):
            self._serve_record()

    def _serve_record(self) -> None:
        self.fault = self.server.hub.admit(self.record)
        if isinstance(self.fault, Stall) and self.fault.after_fraction is None:
            self.server.hub.wait_for_release(self.fault.seconds)
        if isinstance(self.fault, Reset) and self.fault.after_fraction is None:
            self._reset_connection()
            return
        try:
            self._send(self._answer())
        except ConnectionError:  # the client hung up, which is part of many tests
            self.close_connection = True

    def _answer(self) -> Answer:
        """Return the answer or the refusal, with what the fault changes in it."""
        try:
            allowed, self.quota_headers = self.server.hub.take_quota(self.record)
            if isinstance(self.fault, Status):
                raise RefusedError.of_fault(self.fault)
            if not allowed:
                raise RefusedError(429, "", "You have exceeded your quota")  # noqa: TRY301 - a refusal, as in `answer`
            if isinstance(self.fault, OtherBody):
                return Answer.of_bytes(200, self.fault.body, {"Content-Type": "text/html"})
            if isinstance(self.fault, IgnoreRange):
                self.range = None
            answer = self.answer()
        except RefusedError as refused:
            return Answer.of_json({"error": str(refused)}, refused.status, refused.headers)
        if isinstance(self.fault, ChangedETag):
            answer.headers["ETag"] = f'"{self.fault.etag}"'
        if isinstance(self.fault, WrongBytes) and answer.stop > answer.start:
            return answer.damaged(self.fault)
        return answer

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    do_GET = do_HEAD = do_POST = serve  # noqa: N815 (the names of http.server)

    def _send(self, answer: Answer) -> None:
        """Send the answer; a fault that strikes inside the body does so at its fraction."""
        self.record.status = answer.status
        self.send_response(answer.status)
        body_bytes = answer.stop - answer.start
        headers = {"Content-Length": str(body_bytes), **self.quota_headers, **answer.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        fraction = getattr(self.fault, "after_fraction", None)
        middle = answer.stop if fraction is None else answer.start + int(body_bytes * fraction)
        self._send_bytes(answer.file, answer.start, middle)
        match self.fault:
            case Reset():
                self._reset_connection()
            case ExpiredMidBody():
                self.expire_address()
                self.close_connection = True
            case CutBody():
                self.close_connection = True
            case Stall() if middle < answer.stop:
                self.server.hub.wait_for_release(self.fault.seconds)
                self._send_bytes(answer.file, middle, answer.stop)

    def _send_bytes(self, file: HubFile, start: int, stop: int) -> None:
        slow = [Pace(self.fault.bytes_per_second)] if isinstance(self.fault, Slow) else []
        paces = [*self.paces, *slow]
        step = piece_bytes(paces)
        for at in range(start, stop, step):
            end = min(at + step, stop)
            wait_for(paces, end - at)
            self.record.bytes_sent += end - at  # first: a client that has it finds it in the log
            file.send(self.connection, at, end)

    def _reset_connection(self) -> None:
        """Close with SO_LINGER 0, behind the back of socketserver, which would send a FIN first."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())

    def log_message(self, *message: Any) -> None:
        """Keep quiet: the request log is what tests read."""


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: StandInHub, port: int, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.hub = hub

    def get_request(self) -> tuple[socket.socket, Any]:
        """Remember open connections: a hub that is gone must not answer on a kept-alive one."""
        connection, address = super().get_request()
        self.hub.connections.add(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about clients that hang up between two requests."""
