"""A small S3 server that keeps objects as files, for measuring: moto takes longer than what is measured.

It knows what a run needs: PUT, GET with ranges, HEAD, DELETE, listings, uploads in parts, and conditions.
Signatures are not looked at.

    python tests/support/file_bucket.py FOLDER

Prints `AWS_ENDPOINT_URL=…`, and at SIGTERM its processor time in seconds.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_COPY_BYTES = 2**20
_WHEN = "2026-01-01T00:00:00.000Z"


class Handler(BaseHTTPRequestHandler):
    """One bucket or several: the first part of a path is a folder."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer comes in two pieces; the second would wait 40 ms
    root: Path
    turn = threading.Lock()  # looking at a condition and writing are one step
    etags: dict[Path, str] = {}  # noqa: RUF012 - of all handlers

    def do_PUT(self) -> None:
        path, query = self._target()
        received = path.with_name(f".{uuid.uuid4().hex}")
        received.parent.mkdir(parents=True, exist_ok=True)
        self._receive(received)
        number = int(query.get("partNumber", ["0"])[0])
        final = self._parts(query) / f"{number:05}" if number else path
        with self.turn:
            known = self.etags.get(final)
            wanted = (self.headers.get("If-Match") or "").strip('"')
            if (known and self.headers.get("If-None-Match")) or (wanted and wanted != known):
                received.unlink()
                return self._answer(412, _error("PreconditionFailed"))
            received.rename(final)
            self.etags[final] = uuid.uuid4().hex
        return self._answer(200, b"", ETag=f'"{self.etags[final]}"')

    def do_POST(self) -> None:
        path, query = self._target()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploads" in query:
            number = uuid.uuid4().hex
            (self.root / ".uploads" / number).mkdir(parents=True)
            return self._answer(200, f"<R><UploadId>{number}</UploadId></R>".encode())
        parts = self._parts(query)
        numbers = [int(one) for one in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        whole = parts / f"{numbers[0]:05}"
        with whole.open("ab") as target:
            for number in numbers[1:]:
                with (parts / f"{number:05}").open("rb") as source:
                    shutil.copyfileobj(source, target, _COPY_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.turn:
            whole.rename(path)
            self.etags[path] = uuid.uuid4().hex
        shutil.rmtree(parts)
        return self._answer(200, f'<R><ETag>"{self.etags[path]}"</ETag></R>'.encode())

    def do_DELETE(self) -> None:
        path, query = self._target()
        if "uploadId" in query:
            shutil.rmtree(self._parts(query), ignore_errors=True)
        self.etags.pop(path, None)
        path.unlink(missing_ok=True)
        self._answer(204)

    def do_HEAD(self) -> None:
        self._send_object(with_body=False)

    def do_GET(self) -> None:
        path, query = self._target()
        if "uploads" in query:
            return self._answer(200, b"<ListMultipartUploadsResult/>")
        if "list-type" in query:
            return self._answer(200, self._list(path, query))
        return self._send_object(with_body=True)

    def _send_object(self, *, with_body: bool) -> None:
        path, _ = self._target()
        etag = self.etags.get(path)
        if etag is None:
            return self._answer(404, _error("NoSuchKey") if with_body else b"")
        size = path.stat().st_size
        more = {"ETag": f'"{etag}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if not with_body:
            return self._answer(200, length=size, **more)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        begin, end = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
        if asked:
            more["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        with path.open("rb") as file:
            file.seek(begin)
            return self._answer(206 if asked else 200, file.read(end - begin), **more)

    def _list(self, bucket: Path, query: dict[str, list[str]]) -> bytes:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        rows = []
        for path, etag in sorted(self.etags.items()):
            if bucket not in path.parents or not path.is_file():
                continue
            key = path.relative_to(bucket).as_posix()
            if key.startswith(prefix) and not (delimiter and delimiter in key[len(prefix) :]):
                size = path.stat().st_size
                rows.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{_WHEN}</LastModified>"
                    f"<ETag>{etag}</ETag><Size>{size}</Size></Contents>"
                )
        listed = f"<KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>{''.join(rows)}"
        return f"<ListBucketResult><Name>b</Name>{listed}</ListBucketResult>".encode()

    def _receive(self, path: Path) -> None:
        left = int(self.headers.get("Content-Length") or 0)
        with path.open("wb") as file:
            while left and (data := self.rfile.read(min(left, _COPY_BYTES))):
                file.write(data)
                left -= len(data)

    def _parts(self, query: dict[str, list[str]]) -> Path:
        return self.root / ".uploads" / query["uploadId"][0]

    def _target(self) -> tuple[Path, dict[str, list[str]]]:
        parsed = urllib.parse.urlsplit(self.path)
        name = urllib.parse.unquote(parsed.path).strip("/")
        return self.root / name, urllib.parse.parse_qs(parsed.query, keep_blank_values=True)

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
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    Handler.root = Path(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"AWS_ENDPOINT_URL=http://127.0.0.1:{server.server_address[1]}", flush=True)
        signal.sigwait([signal.SIGTERM])
        print(f"{time.process_time():.2f}", flush=True)


if __name__ == "__main__":
    main()
