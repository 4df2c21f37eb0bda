"""A stand-in for the Hugging Face hub: real HTTP on loopback, and every fault on demand.

Point the real clients at it and they work unchanged, so that tests need no network and no mocks:

    with StandInHub([Repository("HuggingFaceFW/fineweb-edu", files)]) as hub:
        subprocess.run(command, env={**os.environ, "HF_ENDPOINT": hub.endpoint})

`huggingface_hub` reads HF_ENDPOINT when it is imported: set it before, or start a child process.
By hand: `python standin_hub.py FOLDER --latency-ms 50`.

It answers what `datasets` 5.2 and `huggingface_hub` 2.4 ask for when they read a dataset, and what
uploading one takes (standin_uploads.py). It does not cover models, Xet transfers, buckets and the dataset
viewer; with HF_HUB_DISABLE_XET large files are sent by LFS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from standin_faults import (
    ChangedETag,
    CutBody,
    Fault,
    FaultPlan,
    IgnoreRange,
    Kind,
    RequestRecord,
    Reset,
    Slow,
    Stall,
    Status,
)
from standin_repository import HubFile, Repository
from standin_uploads import Refused, Uploads

CHUNK_BYTES = 1 << 20


class _RefusedError(Exception):
    """An error answer, in the hub's words."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Code": code, "X-Error-Message": message} if code else {}

    @classmethod
    def of_fault(cls, fault: Status) -> Self:
        refused = cls(fault.code, "", "scripted fault")
        if fault.retry_after is not None:
            refused.headers["Retry-After"] = str(fault.retry_after)
        if fault.rate_limit_reset_seconds is not None:
            refused.headers["RateLimit"] = f'"resolvers";r=0;t={fault.rate_limit_reset_seconds}'
        return refused


@dataclass(frozen=True)
class _Answer:
    """What a request gets when nothing goes wrong: a slice of a file."""

    status: int
    headers: dict[str, str]
    file: HubFile
    start: int
    stop: int

    @classmethod
    def of_json(cls, value: object, status: int = 200, headers: Mapping[str, str] = {}) -> Self:
        file = HubFile("", json.dumps(value).encode())
        return cls(status, {"Content-Type": "application/json", **headers}, file, 0, file.size)

    @classmethod
    def of_file(cls, file: HubFile, wanted_range: str | None, headers: dict[str, str]) -> Self:
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted_range or "")
        if wanted is None:
            return cls(200, headers, file, 0, file.size)
        first, last = wanted.groups()
        start = int(first) if first else max(0, file.size - int(last))
        stop = min(file.size, int(last) + 1) if first and last else file.size
        if start >= stop:
            raise _RefusedError(416, "", f"Range {wanted_range} of {file.size} bytes")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        return cls(206, headers, file, start, stop)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, routes it and sends the answer, as the fault wants it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or headers and body in two packets cost 40 ms
    server: _Server

    def _serve(self) -> None:
        self.body = self._read_body()
        authorization = self.headers.get("Authorization")
        self.token = authorization.removeprefix("Bearer ") if authorization else None
        first = self.path.split("/")[1]
        kinds: dict[str, Kind] = {"api": "api", "cdn": "cdn", "lfs-objects": "upload"}
        kind = "upload" if self.path.endswith("/objects/batch") else kinds.get(first, "resolve")
        self.range = self.headers.get("Range")
        self.record = RequestRecord(self.command, kind, self.path, self.range, bool(self.token))
        self.record.bytes_received = len(self.body)
        self.fault = self.server.hub.admit(self.record)
        if isinstance(self.fault, Stall) and self.fault.after_fraction is None:
            self.server.hub.wait_for_release(self.fault.seconds)
        if isinstance(self.fault, Reset) and self.fault.after_fraction is None:
            self._reset_connection()
            return
        try:
            answer = self._answer()
        except Refused as refused:
            answer = _Answer.of_json(refused.body, refused.status)
        except _RefusedError as refused:
            answer = _Answer.of_json({"error": str(refused)}, refused.status, refused.headers)
        if isinstance(self.fault, ChangedETag):
            answer.headers["ETag"] = f'"{self.fault.etag}"'
        try:
            self._send(answer)
        except ConnectionError:  # the client hung up, which is part of many tests
            self.close_connection = True

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815 (the names of http.server)

    def _answer(self) -> _Answer:
        if isinstance(self.fault, Status):
            raise _RefusedError.of_fault(self.fault)
        if isinstance(self.fault, IgnoreRange):
            self.range = None
        url = urlsplit(self.path)
        match [unquote(part) for part in url.path.split("/")[1:]]:
            case ["api", "agent-harnesses"]:
                return _Answer.of_json({"standardEnvVars": [], "harnesses": {}})
            case ["api", "whoami-v2"] if self.token:
                return _Answer.of_json({"type": "user", "name": "stand-in", "orgs": []})
            case ["api", "repos", "create"]:
                return self._answer_upload(lambda uploads: uploads.create(json.loads(self.body)))
            case ["api", "validate-yaml"]:
                return _Answer.of_json({"errors": [], "warnings": []})
            case ["api", "lfs-verify"]:
                return self._answer_upload(lambda uploads: uploads.verify(json.loads(self.body)))
            case ["lfs-objects", oid]:  # an address that is a permission in itself
                return _Answer.of_json(self.server.hub.uploads.put(oid, self.body))
            case ["datasets", _, _, "info", "lfs", "objects", "batch"]:
                return self._answer_upload(lambda uploads: uploads.batch(json.loads(self.body)))
            case ["api", "datasets", owner, name, "preupload", _]:
                repository = self._find_repository(f"{owner}/{name}")
                wanted = json.loads(self.body)
                return self._answer_upload(lambda uploads: uploads.preupload(repository, wanted))
            case ["api", "datasets", owner, name, "commit", _]:
                repository = self._find_repository(f"{owner}/{name}")
                return self._answer_upload(lambda uploads: uploads.commit(repository, self.body))
            case ["api", "datasets", owner, name, *call]:
                repository = self._find_repository(f"{owner}/{name}")
                return self._answer_api(repository, call, parse_qs(url.query))
            case ["datasets", owner, name, "resolve", revision, *path]:
                repository = self._find_repository(f"{owner}/{name}")
                return self._answer_file(repository, revision, "/".join(path))
            case ["cdn", owner, name, commit, *path]:
                commits = self.server.hub.repositories[f"{owner}/{name}"].commits
                file = commits[commit]["/".join(path)]
                return _Answer.of_file(file, self.range, {"ETag": f'"cdn-{file.etag}"'})
        raise _RefusedError(404, "", f"the stand-in hub has no {url.path}")

    def _answer_upload(self, action: Callable[[Uploads], dict[str, Any]]) -> _Answer:
        self.server.hub.uploads.check(self.token)
        return _Answer.of_json(action(self.server.hub.uploads))

    def _find_repository(self, repo_id: str) -> Repository:
        """Check access. The 401 of a private repository carries RepoNotFound, because
        huggingface_hub understands a bare 401 only when it comes from an https address."""
        repository = self.server.hub.repositories.get(repo_id)
        if repository is None:
            raise _RefusedError(404, "RepoNotFound", "Repository not found")
        if repository.access == "public" or (self.token and self.token == repository.token):
            return repository
        if repository.access == "gated":
            raise _RefusedError(403 if self.token else 401, "GatedRepo", f"{repo_id} is gated")
        if self.token:
            raise _RefusedError(401, "", "Invalid credentials in Authorization header")
        raise _RefusedError(401, "RepoNotFound", "Invalid username or password.")

    @staticmethod
    def _find_commit(repository: Repository, revision: str) -> str:
        commit = repository.head if revision == "main" else revision
        if commit not in repository.commits:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _answer_api(self, repository: Repository, call: list[str], query: Mapping[str, list[str]]) -> _Answer:
        commit = self._find_commit(repository, call[1] if len(call) > 1 else "main")
        files = repository.commits[commit]
        match call:
            case [] | ["revision", _]:
                flags = {key: repository.access == key for key in ("private", "gated")}
                siblings = [{"rfilename": path} for path in files]
                info = {"id": repository.repo_id, "sha": commit, "siblings": siblings, **flags}
                return _Answer.of_json(info)
            case ["tree", _, *folder]:
                recursive = query.get("recursive", ["false"])[0].lower()
                folder_path = "/".join(folder)
                entries = repository.list_tree(commit, folder_path, recursive=recursive == "true")
                if not entries:
                    raise _RefusedError(404, "EntryNotFound", f"{folder_path} does not exist")
                first = int(query.get("cursor", ["0"])[0])
                last = first + self.server.hub.tree_page_entries
                page_url = f"{self.server.hub.url}{urlsplit(self.path).path}"
                link = f'<{page_url}?recursive={recursive}&cursor={last}>; rel="next"'
                headers = {"Link": link} if last < len(entries) else {}
                return _Answer.of_json(entries[first:last], headers=headers)
            case ["paths-info", _]:
                paths = [path for path in parse_qs(self.body.decode()).get("paths", []) if path in files]
                return _Answer.of_json([files[path].describe() for path in paths])
            case ["refs"]:
                branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit}
                return _Answer.of_json({"branches": [branch], "tags": [], "converts": []})
        raise _RefusedError(404, "", f"the stand-in hub has no {self.path}")

    def _answer_file(self, repository: Repository, revision: str, path: str) -> _Answer:
        commit = self._find_commit(repository, revision)
        file = repository.commits[commit].get(path)
        if file is None:
            raise _RefusedError(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if file.is_large:
            headers |= {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(file.size)}
        if not (file.is_large and self.server.hub.cdn):
            return _Answer.of_file(file, self.range, headers)
        target = quote(f"/cdn/{repository.repo_id}/{commit}/{path}")
        headers["Location"] = f"http://localhost:{self.server.server_port}{target}"
        return _Answer(302, headers, HubFile("", b""), 0, 0)

    def _send(self, answer: _Answer) -> None:
        """Send the answer; a fault that strikes inside the body does so at its fraction."""
        self.record.status = answer.status
        self.send_response(answer.status)
        body_bytes = answer.stop - answer.start
        for name, value in {"Content-Length": str(body_bytes), **answer.headers}.items():
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
            case CutBody():
                self.close_connection = True
            case Stall() if middle < answer.stop:
                self.server.hub.wait_for_release(self.fault.seconds)
                self._send_bytes(answer.file, middle, answer.stop)

    def _send_bytes(self, file: HubFile, start: int, stop: int) -> None:
        piece_bytes, pause_seconds = CHUNK_BYTES, 0.0
        if isinstance(self.fault, Slow):
            piece_bytes, pause_seconds = max(1, self.fault.bytes_per_second // 20), 0.05
        for piece in file.read(start, stop, piece_bytes):
            self.record.bytes_sent += len(piece)  # first: a client that has it finds it in the log
            self.wfile.write(piece)
            time.sleep(pause_seconds)

    def _reset_connection(self) -> None:
        """Close with SO_LINGER 0, behind the back of socketserver, which would send a FIN first."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.close(self.connection.detach())

    def log_message(self, *message: Any) -> None:
        """Keep quiet: the request log is what tests read."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    hub: StandInHub

    def get_request(self) -> tuple[socket.socket, Any]:
        """Remember open connections: a hub that is gone must not answer on a kept-alive one."""
        connection, address = super().get_request()
        self.hub.connections.add(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about clients that hang up between two requests."""


class StandInHub:
    """The server, as a context manager. Faults and repositories may change while it runs.

    With `cdn`, large files are redirected to another host (localhost, not 127.0.0.1), as the real
    hub does: the bytes come without X-Repo-Commit and with another ETag, and the client must not
    send its token there. `tree_page_entries` is how many entries the hub lists per request.
    """

    def __init__(
        self,
        repositories: Iterable[Repository],
        faults: Iterable[FaultPlan] = (),
        *,
        latency_seconds: float = 0.0,
        cdn: bool = False,
        tree_page_entries: int = 1000,
        port: int = 0,
        write_token: str | None = None,
    ) -> None:
        self.repositories = {repository.repo_id: repository for repository in repositories}
        self.faults = list(faults)
        self.latency_seconds = latency_seconds
        self.cdn = cdn
        self.tree_page_entries = tree_page_entries
        self._records: list[RequestRecord] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.hub = self
        self.endpoint = self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.uploads = Uploads(self.url, self.repositories, write_token)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release_stalls()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):  # closed by its client, or reset
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def requests(self) -> list[RequestRecord]:
        """A copy of the request log, in the order of arrival."""
        with self._lock:
            return list(self._records)

    @property
    def api_requests(self) -> int:
        return sum(record.kind == "api" for record in self.requests)

    @property
    def content_bytes(self) -> int:
        return sum(record.bytes_sent for record in self.requests if record.is_content)

    def clear_requests(self) -> None:
        """Forget the request log, so that the next part of a test counts from zero."""
        with self._lock:
            self._records.clear()

    def admit(self, record: RequestRecord) -> Fault | None:
        """Log a request, choose its fault (of the first plan that has one), add the latency."""
        with self._lock:
            self._records.append(record)
            faults = (plan.next_fault(record) for plan in self.faults)
            record.fault = next((fault for fault in faults if fault is not None), None)
        time.sleep(self.latency_seconds)
        return record.fault

    def wait_for_release(self, seconds: float | None) -> None:
        """Hold one answer for a Stall."""
        self._released.wait(seconds)

    def release_stalls(self) -> None:
        """Let every answer that is stalled now go on."""
        self._released.set()
        self._released = threading.Event()


def main() -> None:
    """Serve the parquet files of a folder as the sample-10BT config, until Ctrl-C."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repo", default="HuggingFaceFW/fineweb-edu")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--cdn", action="store_true", help="redirect large files to another host")
    options = parser.parse_args()
    paths = sorted(options.folder.glob("*.parquet"))
    repository = Repository(options.repo, {f"sample/10BT/{path.name}": path for path in paths})
    latency_seconds = options.latency_ms / 1000
    with StandInHub([repository], latency_seconds=latency_seconds, cdn=options.cdn, port=options.port) as hub:
        print(f"HF_ENDPOINT={hub.endpoint}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(f"{len(hub.requests)} requests, {hub.content_bytes:,} bytes of content")


if __name__ == "__main__":
    main()
