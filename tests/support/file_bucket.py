"""A small S3 server that keeps objects in files, for measuring: moto takes longer than what is measured.

It knows what a run needs: PUT, GET with ranges, HEAD, DELETE, listings, uploads in parts, and conditions. Signatures
are not looked at. What the files are is known to this process only, and none is ever deleted.

    python tests/support/file_bucket.py FOLDER

Prints `AWS_ENDPOINT_URL=…`, and serves until it is ended.
"""

from __future__ import annotations

import re
import sys
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_COPY_BYTES = 2**20
_WHEN = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Stored:
    """An object: files one after the other. An upload's parts stay as they came, because copying them would take longer
    than what is measured."""

    files: tuple[Path, ...]
    etag: str = field(default_factory=lambda: uuid.uuid4().hex)

    @cached_property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `begin` to `end`."""
        first = 0
        for path in self.files:
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(max(0, begin - first))
                while data := file.read(max(0, min(_COPY_BYTES, end - first - file.tell()))):
                    yield data
            first += size


class Handler(BaseHTTPRequestHandler):
    """All buckets: an object's key is its path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer comes in two pieces; the second would wait 40 ms
    root: Path
    turn = threading.Lock()  # looking at a condition and writing are one step
    objects: dict[str, Stored] = {}  # noqa: RUF012 - of all handlers
    uploads: dict[str, dict[int, Stored]] = {}  # noqa: RUF012 - by id and number of the part

    def do_PUT(self) -> None:
        key, query = self._target()
        received = Stored((self._receive(),))
        if "uploadId" in query:
            self.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = received
            return self._answer(200, ETag=f'"{received.etag}"')
        wanted = (self.headers.get("If-Match") or "").strip('"')
        with self.turn:
            known = self.objects.get(key)
            if (known and self.headers.get("If-None-Match")) or (wanted and wanted != (known and known.etag)):
                return self._answer(412, _error("PreconditionFailed"))
            self.objects[key] = received
        return self._answer(200, ETag=f'"{received.etag}"')

    def do_POST(self) -> None:
        key, query = self._target()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.uploads[upload] = {}
            return self._answer(200, f"<R><UploadId>{upload}</UploadId></R>".encode())
        parts = self.uploads.pop(query["uploadId"][0])
        numbers = [int(one) for one in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        whole = self.objects[key] = Stored(tuple(file for number in numbers for file in parts[number].files))
        return self._answer(200, f'<R><ETag>"{whole.etag}"</ETag></R>'.encode())

    def do_DELETE(self) -> None:
        key, query = self._target()
        if "uploadId" in query:
            self.uploads.pop(query["uploadId"][0], None)
        else:
            self.objects.pop(key, None)
        self._answer(204)

    def do_HEAD(self) -> None:
        self._send_object(with_body=False)

    def do_GET(self) -> None:
        key, query = self._target()
        if "uploads" in query:
            return self._answer(200, b"<ListMultipartUploadsResult/>")
        if "list-type" in query:
            return self._answer(200, self._list(key, query))
        return self._send_object(with_body=True)

    def _send_object(self, *, with_body: bool) -> None:
        found = self.objects.get(self._target()[0])
        if found is None:
            return self._answer(404, _error("NoSuchKey") if with_body else b"")
        more: dict[str, Any] = {"ETag": f'"{found.etag}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, found.size)) if asked else (0, found.size)
        if asked:
            more["Content-Range"] = f"bytes {begin}-{end - 1}/{found.size}"
        self._answer(206 if asked else 200, length=end - begin, **more)
        for data in found.read(begin, end) if with_body else ():
            self.wfile.write(data)
        return None

    def _list(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        rows = []
        for path, found in sorted(self.objects.items()):
            key = path.removeprefix(f"{bucket}/")
            if key == path or not key.startswith(prefix) or (delimiter and delimiter in key[len(prefix) :]):
                continue
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_WHEN}</LastModified>"
                f"<ETag>{found.etag}</ETag><Size>{found.size}</Size></Contents>"
            )
        listed = f"<KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>{''.join(rows)}"
        return f"<ListBucketResult><Name>b</Name>{listed}</ListBucketResult>".encode()

    def _receive(self) -> Path:
        """Write the body of a request into a new file."""
        path = self.root / uuid.uuid4().hex
        left = int(self.headers.get("Content-Length") or 0)
        buffer = memoryview(bytearray(min(left, _COPY_BYTES)))
        with path.open("wb") as file:
            while left and (size := self.rfile.readinto(buffer[: min(left, _COPY_BYTES)])):
                file.write(buffer[:size])
                left -= size
        return path

    def _target(self) -> tuple[str, dict[str, list[str]]]:
        parsed = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parsed.query, keep_blank_values=True)
        return urllib.parse.unquote(parsed.path).strip("/"), query

    def _answer(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


def main() -> None:
    Handler.root = Path(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        print(f"AWS_ENDPOINT_URL=http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
