"""The stand-in's CDN, quotas and line, seen by a plain HTTP client."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest

from tests.support import standin_hub
from tests.support.standin_cdn import LOGIN_PAGE, Style
from tests.support.standin_faults import ExpiredMidBody, OtherLinkedETag, ScriptedFaults, WrongBytes, WrongRedirect
from tests.support.standin_hub import StandInHub
from tests.support.standin_line import Pace, wait_for
from tests.support.standin_quota import Quota
from tests.support.standin_repository import FINEWEB_EDU_COMMIT, Repository, many_files

pytestmark = pytest.mark.full

REPO = "HuggingFaceFW/fineweb-edu"
FILE = "sample/10BT/000_00000.parquet"
BODY = bytes(range(256)) * 400
RESOLVE = f"/datasets/{REPO}/resolve/{FINEWEB_EDU_COMMIT}/{FILE}"


@pytest.fixture
def repository() -> Repository:
    return Repository(REPO, {FILE: BODY})


class Response:
    """The answer to one request, on a connection of its own; redirects are not followed."""

    def __init__(self, url: str, method: str = "GET", **headers: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        try:
            connection.request(method, f"{parts.path}?{parts.query}", headers=headers)
            response = connection.getresponse()
            self.status, self.headers, self.body = response.status, response.headers, response.read()
        finally:
            connection.close()


def resolve(hub: StandInHub, method: str = "GET") -> Response:
    return Response(hub.url + RESOLVE, method)


@pytest.mark.parametrize("style", get_args(Style))
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_large_file_is_somewhere_else(repository: Repository, style: Style, method: str) -> None:
    """A redirect with the file's hash, size and commit leads to another host, which serves any range under another
    ETag, but nothing without a signature or with that of another file."""
    with StandInHub([repository], cdn=True, signature_style=style) as hub:
        found = resolve(hub, method)
        address = found.headers["Location"]
        assert found.status == 302
        assert urlsplit(address).hostname != urlsplit(hub.url).hostname
        assert urlsplit(address).port != urlsplit(hub.url).port
        file = repository.commits[repository.head][FILE]
        assert found.headers["X-Linked-ETag"] == f'"{file.sha256}"'
        assert found.headers["X-Linked-Size"] == str(len(BODY))
        assert found.headers["X-Repo-Commit"] == repository.head
        part = Response(address, Range="bytes=5-9")
        assert (part.status, part.body) == (206, BODY[5:10])
        assert part.headers["ETag"] != f'"{file.sha256}"'
        assert "X-Repo-Commit" not in part.headers
        beyond = Response(address, Range=f"bytes={len(BODY)}-")
        assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{len(BODY)}")
        assert Response(address.partition("?")[0]).status == 403
        assert Response(address.replace("000_00000", "001_00000")).status == 403
        assert hub.requests_of("cdn")[0].path.endswith(".parquet")


@pytest.mark.parametrize("style", get_args(Style))
@pytest.mark.parametrize("status", [401, 403, 410])
def test_an_address_expires(repository: Repository, style: Style, status: int) -> None:
    """After its time an address is refused; the next one holds again."""
    with StandInHub([repository], cdn=True, signature_style=style, refusal_status=status) as hub:
        hub.signer.seconds = -1
        assert Response(resolve(hub).headers["Location"]).status == status
        hub.signer.seconds = 60
        address = resolve(hub).headers["Location"]
        assert Response(address).body == BODY
        hub.signer.clock_ahead_seconds = 62
        assert Response(address).status == status


def test_the_expiry_can_be_read_from_the_address(repository: Repository) -> None:
    """As CloudFront and S3 write it, by the clock of the server, which its Date header tells."""
    with StandInHub([repository], cdn=True, clock_ahead_seconds=-7200) as hub:
        address = resolve(hub).headers["Location"]
        expires = re.search(r"[?&]Expires=(\d+)", address)
        assert expires is not None
        assert int(expires[1]) - time.time() == pytest.approx(3600 - 7200, abs=60)
        assert Response(address).status == 200
        hub.signer.style = "s3"
        address = resolve(hub).headers["Location"]
        assert re.search(r"X-Amz-Date=\d{8}T\d{6}Z&X-Amz-Expires=360[01]&", address)
        assert Response(address).status == 200


def test_wrong_redirects(repository: Repository) -> None:
    """Each leads where its name says, and the next one is right again."""
    plan = ScriptedFaults(
        [WrongRedirect("dead"), WrongRedirect("nowhere"), WrongRedirect("home"), WrongRedirect("foreign")], on="resolve"
    )
    with StandInHub([repository], [plan], cdn=True) as hub:
        with pytest.raises(ConnectionRefusedError):
            Response(resolve(hub).headers["Location"])
        nowhere = resolve(hub)
        assert (nowhere.status, nowhere.headers["Location"]) == (302, None)
        assert resolve(hub).headers["Location"].startswith(hub.url + RESOLVE)
        foreign = Response(resolve(hub).headers["Location"], Authorization="Bearer hf_canary")
        assert (foreign.status, foreign.body) == (200, LOGIN_PAGE)
        assert hub.requests_of("foreign")[0].authorized
        assert "hf_canary" in hub.requests_of("foreign")[0].headers["Authorization"]
        assert "hf_canary" not in repr(hub.requests)
        hub.faults[:] = [ScriptedFaults([OtherLinkedETag("1" * 64)], on="resolve")]
        assert resolve(hub).headers["X-Linked-ETag"] == f'"{"1" * 64}"'
        assert Response(resolve(hub).headers["Location"]).body == BODY


def test_faults_of_the_cdn(repository: Repository) -> None:
    """An address that expires inside a body stays refused; wrong bytes look right from outside."""
    with StandInHub([repository], [ScriptedFaults([ExpiredMidBody(0.5)], on="cdn")], cdn=True) as hub:
        address = resolve(hub).headers["Location"]
        with pytest.raises(http.client.IncompleteRead) as caught:
            Response(address)
        assert caught.value.partial == BODY[: len(BODY) // 2]
        assert [Response(address).status for _ in range(2)] == [403, 403]
        address = resolve(hub).headers["Location"]
        right = Response(address)
        hub.faults[:] = [ScriptedFaults([WrongBytes()], on="cdn")]
        wrong = Response(address)
        assert (wrong.status, len(wrong.body)) == (200, len(BODY))
        assert wrong.headers["ETag"] == right.headers["ETag"]
        assert sum(a != b for a, b in zip(wrong.body, BODY, strict=True)) == 1


def test_quotas_are_told_and_kept(repository: Repository) -> None:
    """Every answer says what is left; beyond it 429 until the window ends; the CDN counts for nothing."""
    with StandInHub([repository], cdn=True, resolver_quota=(3, 300), api_quota=(1, 300)) as hub:
        answers = [resolve(hub, method) for method in ("GET", "HEAD", "GET", "GET")]
        assert [answer.status for answer in answers] == [302, 302, 302, 429]
        left = [re.match(r'"resolvers";r=(\d+);t=(\d+)$', answer.headers["RateLimit"]) for answer in answers]
        assert [int(found[1]) for found in left if found] == [2, 1, 0, 0]
        assert all(0 < int(found[2]) <= 300 for found in left if found)
        assert answers[0].headers["RateLimit-Policy"] == '"fixed window";"resolvers";q=3;w=300'
        assert Response(answers[0].headers["Location"]).status == 200
        api = [Response(f"{hub.url}/api/datasets/{REPO}") for _ in range(2)]
        assert [answer.status for answer in api] == [200, 429]
        assert '"api";r=0' in api[0].headers["RateLimit"]


def test_windows_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the seconds that were told finds a new window."""
    now = [1000.0]
    monkeypatch.setattr("tests.support.standin_quota.time.monotonic", lambda: now[0])
    quota = Quota("api", (2, 10.0))
    assert [quota.take()[0] for _ in range(3)] == [True, True, False]
    now[0] += 9.5
    allowed, headers = quota.take()
    assert (allowed, headers["RateLimit"]) == (False, '"api";r=0;t=1')
    now[0] += 1
    assert [quota.take()[0] for _ in range(3)] == [True, True, False]
    now[0] += 95
    assert quota.take() == (True, {"RateLimit": '"api";r=1;t=5', "RateLimit-Policy": '"fixed window";"api";q=2;w=10'})


class SimulatedTime:
    """A clock that is ahead by what was slept, and a little more, as on a busy machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_seconds: float) -> None:
        self.now = 1000.0
        self._late_seconds = late_seconds
        monkeypatch.setattr("tests.support.standin_line.time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self._late_seconds


@pytest.mark.parametrize("late_seconds", [0.0, 0.001])
def test_the_line_is_as_fast_as_it_should_be(monkeypatch: pytest.MonkeyPatch, late_seconds: float) -> None:
    """In pieces of 64 KiB, within 1 %, even if every sleep is a little too long; the slower limit counts."""
    clock = SimulatedTime(monkeypatch, late_seconds)
    paces = [Pace(20e6), Pace(125e6)]
    begin = clock.now
    for _ in range(1000):
        wait_for(paces, 65536)
    assert (clock.now - begin) * 20e6 == pytest.approx(1000 * 65536, rel=0.01)


def test_connections_share_the_line(repository: Repository) -> None:
    """Each has its own limit, and all together have another: never faster than either."""
    speeds = {"connection_bytes_per_second": 4 * len(BODY), "line_bytes_per_second": 8 * len(BODY)}
    with StandInHub([repository], cdn=True, **speeds) as hub:  # type: ignore[arg-type]
        address = resolve(hub).headers["Location"]
        begin = time.monotonic()
        assert Response(address).body == BODY
        assert time.monotonic() - begin > 0.2
        begin = time.monotonic()
        threads = [threading.Thread(target=Response, args=(address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begin > 0.45
        assert hub.most_at_once["cdn"] >= 2


def test_a_listing_as_large_as_the_real_one() -> None:
    """2,410 files in 110 folders, listed in pages of 1,000 entries, or 50 with `expand`."""
    files = many_files([BODY, BODY[1:]])
    assert len(files) == 2410
    assert len({name.rpartition("/")[0] for name in files}) == 110
    with StandInHub([Repository(REPO, files)]) as hub:
        for query, size in (("recursive=true", 1000), ("recursive=true&expand=true", 50)):
            pages, url = 0, f"{hub.url}/api/datasets/{REPO}/tree/main/data?{query}"
            names: list[str] = []
            while url and pages < 100:
                answer = Response(url)
                entries: list[dict[str, Any]] = json.loads(answer.body)
                assert len(entries) <= size
                names += [entry["path"] for entry in entries if entry["type"] == "file"]
                found = re.match(r"<([^>]+)>", answer.headers["Link"] or "")
                pages, url = pages + 1, found[1] if found else ""
            assert names == sorted(files)
            assert pages == -(-2520 // size)


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A folder with a card of its own."""
    card = "---\nconfigs:\n- config_name: default\n  data_files: lines/*\n---\n"
    (tmp_path / "lines").mkdir()
    (tmp_path / "README.md").write_text(card)
    (tmp_path / "lines" / "a.jsonl.zst").write_bytes(BODY)
    return tmp_path


@pytest.fixture
def server(served: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, standin_hub.__file__, str(served), "--repo", "a/b", "--cdn", "--line-mb", "50"]
    with subprocess.Popen([*words, "--resolver-quota", "2/300"], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_command_has_it_all(server: subprocess.Popen[str]) -> None:
    """Any files with their own card, by way of the CDN, and at the end what was asked for."""
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip().partition("=")[2]
    url = f"{endpoint}/datasets/a/b/resolve/main/lines/a.jsonl.zst"
    found = [Response(url) for _ in range(3)]
    assert [answer.status for answer in found] == [302, 302, 429]
    assert Response(found[0].headers["Location"]).body == BODY
    server.send_signal(signal.SIGTERM)
    told = json.loads(server.stdout.read())
    assert told["requests"] == {"resolve": 3, "cdn": 1}
    assert told["statuses"] == {"302": 2, "429": 1, "200": 1}
    assert told["content_bytes"] == len(BODY)
