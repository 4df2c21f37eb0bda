"""A stand-in for the Hugging Face hub: real HTTP on loopback, and every fault on demand.

Point the real clients at it and they work unchanged, so that tests need no network and no mocks:

    with StandInHub([Repository("HuggingFaceFW/fineweb-edu", files)]) as hub:
        subprocess.run(command, env={**os.environ, "HF_ENDPOINT": hub.endpoint})

`huggingface_hub` reads HF_ENDPOINT when it is imported: set it before, or start a child process. By hand: `python -m
tests.support.standin_hub FOLDER --cdn --latency-ms 80 --connection-mb 20 --line-mb 125`.

It answers what `datasets` 5.2 and `huggingface_hub` 2.4 ask for when they read a dataset. Of models it sends files. It
does not cover uploads, Xet transfers, buckets and the dataset viewer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self, get_args

from tests.support.standin_cdn import CDN_HOST, CdnHandler, ForeignHandler, Signer, Style
from tests.support.standin_faults import Fault, FaultPlan, Kind, RequestRecord
from tests.support.standin_http import Handler, Server
from tests.support.standin_line import Line
from tests.support.standin_quota import Limit, Quota
from tests.support.standin_repository import Repository
from tests.support.standin_routes import HubHandler


class StandInHub:
    """The server, as a context manager. Faults and repositories may change while it runs.

    With `cdn`, large files are redirected to a second server (localhost, not 127.0.0.1), as the real hub does: to a
    signed address, which holds for `signature_seconds` and is then refused with `refusal_status`. The bytes come
    without X-Repo-Commit and with another ETag, and the client must not send its token there. What the second server
    sends keeps to the two speeds. A quota is (requests, seconds of a window). `tree_page_entries` is how many entries
    the hub lists per request.
    """

    def __init__(
        self,
        repositories: Iterable[Repository],
        faults: Iterable[FaultPlan] = (),
        *,
        latency_seconds: float = 0.0,
        cdn: bool = False,
        signature_seconds: float = 3600.0,
        signature_style: Style = "cloudfront",
        refusal_status: int = 403,
        clock_ahead_seconds: float = 0.0,
        resolver_quota: Limit | None = None,
        api_quota: Limit | None = None,
        connection_bytes_per_second: float | None = None,
        line_bytes_per_second: float | None = None,
        tree_page_entries: int = 1000,
        port: int = 0,
    ) -> None:
        self.repositories = {repository.repo_id: repository for repository in repositories}
        self.faults = list(faults)
        self.cdn = cdn
        self.line = Line(latency_seconds, connection_bytes_per_second, line_bytes_per_second)
        self.signer = Signer(signature_style, signature_seconds, refusal_status, clock_ahead_seconds)
        self.quotas: dict[Kind, Quota] = {}
        if resolver_quota:
            self.quotas["resolve"] = Quota("resolvers", resolver_quota)
        if api_quota:
            self.quotas["api"] = Quota("api", api_quota)
        self.tree_page_entries = tree_page_entries
        self._records: list[RequestRecord] = []
        self._busy: Counter[Kind] = Counter()
        self.most_at_once: Counter[Kind] = Counter()  # requests of a kind that were answered at one time
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._servers = [Server(self, port, HubHandler)]
        self.endpoint = self.url = f"http://127.0.0.1:{self._servers[0].server_port}"
        self.cdn_url = self._add_server(CdnHandler) if cdn else ""
        self.foreign_url = self._add_server(ForeignHandler) if cdn else ""
        # Bound, so that nobody else gets the port, but not listening: it refuses every connection.
        self._dead = socket.socket()
        self._dead.bind(("127.0.0.1", 0))
        self.dead_port = self._dead.getsockname()[1]

    def _add_server(self, handler: type[Handler]) -> str:
        """Add a server under another name; return its address."""
        self._servers.append(Server(self, 0, handler))
        return f"http://{CDN_HOST}:{self._servers[-1].server_port}"

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release_stalls()
        self._dead.close()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):  # closed by its client, or reset
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def latency_seconds(self) -> float:
        return self.line.latency_seconds

    @latency_seconds.setter
    def latency_seconds(self, seconds: float) -> None:
        self.line.latency_seconds = seconds

    @property
    def requests(self) -> list[RequestRecord]:
        """A copy of the request log, in the order of arrival."""
        with self._lock:
            return list(self._records)

    def requests_of(self, kind: Kind) -> list[RequestRecord]:
        return [record for record in self.requests if record.kind == kind]

    @property
    def api_requests(self) -> int:
        return len(self.requests_of("api"))

    @property
    def content_bytes(self) -> int:
        return sum(r.bytes_sent for r in self.requests if r.is_content and r.status in (200, 206))

    def clear_requests(self) -> None:
        """Forget the request log, so that the next part of a test counts from zero."""
        with self._lock:
            self._records.clear()

    @contextlib.contextmanager
    def busy(self, record: RequestRecord) -> Iterator[None]:
        """Count a request as being answered."""
        kind = record.kind
        with self._lock:
            self._busy[kind] += 1
            self.most_at_once[kind] = max(self.most_at_once[kind], self._busy[kind])
        try:
            yield
        finally:
            with self._lock:
                self._busy[kind] -= 1

    def admit(self, record: RequestRecord) -> Fault | None:
        """Log a request, choose its fault (of the first plan that has one), add the latency."""
        with self._lock:
            self._records.append(record)
            faults = (plan.next_fault(record) for plan in self.faults)
            record.fault = next((fault for fault in faults if fault is not None), None)
        time.sleep(self.line.latency_seconds)
        return record.fault

    def take_quota(self, record: RequestRecord) -> tuple[bool, dict[str, str]]:
        """Count a request; return whether its quota allows it, and the headers that tell what is left."""
        quota = self.quotas.get(record.kind)
        return quota.take() if quota else (True, {})

    def wait_for_release(self, seconds: float | None) -> None:
        """Hold one answer for a Stall."""
        self._released.wait(seconds)

    def release_stalls(self) -> None:
        """Let every answer that is stalled now go on."""
        self._released.set()
        self._released = threading.Event()


def files_of(folder: Path) -> dict[str, Path]:
    """Return what to serve of a folder: all of it if it has a README.md, else its files as sample-10BT."""
    if (folder / "README.md").exists():
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path for path in paths}
    return {f"sample/10BT/{path.name}": path for path in sorted(folder.iterdir()) if path.is_file()}


def read_limit(text: str) -> Limit:
    requests, _, seconds = text.partition("/")
    return int(requests), float(seconds)


def main() -> None:
    """Serve the files of a folder as the sample-10BT config (with a README.md of its own: as that says) until Ctrl-C or
    SIGTERM; then print what was asked for, as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repo", default="HuggingFaceFW/fineweb-edu")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--cdn", action="store_true", help="redirect large files to another host")
    parser.add_argument("--signature-seconds", type=float, default=3600.0)
    parser.add_argument("--signature-style", choices=get_args(Style), default="cloudfront")
    parser.add_argument("--resolver-quota", type=read_limit, metavar="REQUESTS/SECONDS")
    parser.add_argument("--api-quota", type=read_limit, metavar="REQUESTS/SECONDS")
    parser.add_argument("--connection-mb", type=float, help="MB/s of each connection to the CDN")
    parser.add_argument("--line-mb", type=float, help="MB/s of all of them together")
    options = parser.parse_args()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before there are threads, which inherit it
    repository = Repository(options.repo, files_of(options.folder))
    for file in repository.commits[repository.head].values():
        file.describe()  # hashes it, now and not while somebody waits for a listing
    hub = StandInHub(
        [repository],
        latency_seconds=options.latency_ms / 1000,
        cdn=options.cdn,
        signature_seconds=options.signature_seconds,
        signature_style=options.signature_style,
        resolver_quota=options.resolver_quota,
        api_quota=options.api_quota,
        connection_bytes_per_second=options.connection_mb and options.connection_mb * 1e6,
        line_bytes_per_second=options.line_mb and options.line_mb * 1e6,
        port=options.port,
    )
    with hub:
        begin = time.process_time()
        print(f"HF_ENDPOINT={hub.endpoint}", flush=True)
        signal.sigwait(ends)
        json.dump(summarize(hub, time.process_time() - begin), sys.stdout)


def summarize(hub: StandInHub, processor_seconds: float) -> dict[str, object]:
    """Return the figures of everything that was asked for so far."""
    requests = hub.requests
    return {
        "requests": Counter(record.kind for record in requests),
        "statuses": Counter(record.status for record in requests),
        "content_bytes": hub.content_bytes,
        "most_at_once": hub.most_at_once,
        "processor_seconds": round(processor_seconds, 3),
    }


if __name__ == "__main__":
    main()
