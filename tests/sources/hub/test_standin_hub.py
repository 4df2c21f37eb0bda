"""The stand-in hub, seen by the real clients (in child processes) and by a plain HTTP client."""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import standin_hub
from tests.support.standin_faults import (
    ChangedETag,
    CutBody,
    Fault,
    FaultPlan,
    IgnoreRange,
    LastingFault,
    RandomFaults,
    RequestRecord,
    Reset,
    ScriptedFaults,
    Slow,
    Stall,
    Status,
)
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import FINEWEB_EDU_COMMIT, Repository

pytestmark = pytest.mark.full

REPO_ID = "HuggingFaceFW/fineweb-edu"
FILE = "sample/10BT/000_00000.parquet"
ROWS_PER_FILE = 200
ROWS_PER_GROUP = 50
URL_PATH = f"/datasets/{REPO_ID}/resolve/{FINEWEB_EDU_COMMIT}/{FILE}"
PRELUDE = f"REPO_ID, FILE, COMMIT = {REPO_ID!r}, {FILE!r}, {FINEWEB_EDU_COMMIT!r}\n"


def make_parquet(name: str) -> bytes:
    """Return a small file with some of FineWeb-Edu's columns, in several row groups."""
    texts = [f"{name}: document {row}. " + "A sentence. " * row for row in range(ROWS_PER_FILE)]
    table = pa.table({"text": texts, "id": [f"{name}-{row}" for row in range(ROWS_PER_FILE)]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=ROWS_PER_GROUP)
    return buffer.getvalue()


FILES = {
    FILE: make_parquet("sample 0"),
    "sample/10BT/001_00000.parquet": make_parquet("sample 1"),
    "sample/100BT/000_00000.parquet": make_parquet("large sample"),
    "data/CC-MAIN-2013-20/000_00000.parquet": make_parquet("old dump"),
    "data/CC-MAIN-2024-10/000_00000.parquet": make_parquet("new dump"),
}
BODY = FILES[FILE]


@pytest.fixture
def repository() -> Repository:
    return Repository(REPO_ID, FILES)


@pytest.fixture
def hub(repository: Repository) -> Iterator[StandInHub]:
    with StandInHub([repository]) as hub:
        yield hub


def run_client(hub: StandInHub, home: Path, code: str, **environment: str) -> Any:
    """Run code with the real clients in a fresh process; return the value it leaves in `result`.

    An exception becomes [class name, message], so that a test can name what the client raised.
    """
    program = """
import json, sys
try:
    exec(sys.argv[1])
except Exception as error:
    result = [type(error).__name__, str(error)]
print(json.dumps(result))
"""
    inherited = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    inherited.pop("HF_TOKEN", None)
    ours = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    finished = subprocess.run(
        [sys.executable, "-c", program, PRELUDE + code],
        env={**inherited, **ours, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(finished.stdout.splitlines()[-1])


def content_records(hub: StandInHub) -> list[RequestRecord]:
    """Return the requests for bytes of parquet files."""
    return [record for record in hub.requests if record.is_content and "parquet" in record.path]


def test_load_dataset_streams_the_chosen_config(hub: StandInHub, tmp_path: Path) -> None:
    """`load_dataset` finds the files of a config by itself and reads every text in order."""
    code = """
from datasets import load_dataset
rows = load_dataset(REPO_ID, name="sample-10BT", split="train", streaming=True, columns=["text"])
result = [row["text"] for row in rows]
"""
    texts = run_client(hub, tmp_path, code)
    expected = [
        text
        for path in sorted(FILES)
        if path.startswith("sample/10BT/")
        for text in pq.read_table(io.BytesIO(FILES[path]))["text"].to_pylist()
    ]
    assert texts == expected


def test_builder_names_the_files_at_the_commit(hub: StandInHub, tmp_path: Path) -> None:
    """A builder lists the files of a config at a pinned commit without reading any of them."""
    code = """
from datasets import load_dataset_builder
result = load_dataset_builder(REPO_ID, name="default", revision=COMMIT).config.data_files
"""
    prefix = f"hf://datasets/{REPO_ID}@{FINEWEB_EDU_COMMIT}"
    dumps = [f"{prefix}/{path}" for path in sorted(FILES) if path.startswith("data/")]
    assert run_client(hub, tmp_path, code) == {"train": dumps}
    assert content_records(hub) == []


def test_misspelt_config_is_refused_by_the_client(hub: StandInHub, tmp_path: Path) -> None:
    """A config that does not exist raises the client's own error, with the names that do."""
    code = """
from datasets import load_dataset
result = load_dataset(REPO_ID, name="sample-10B", split="train", streaming=True)
"""
    name, message = run_client(hub, tmp_path, code)
    assert name == "ValueError"
    for config in ("sample-10B", "default", "sample-10BT", "sample-100BT", "CC-MAIN-2024-10"):
        assert f"'{config}'" in message


def test_one_get_per_row_group(hub: StandInHub, tmp_path: Path) -> None:
    """A row group's text column costs exactly one GET of exactly its bytes, and no API request."""
    code = """
import pyarrow.parquet
from huggingface_hub import HfFileSystem
path = f"datasets/{REPO_ID}@{COMMIT}/{FILE}"
parquet = pyarrow.parquet.ParquetFile(HfFileSystem().open(path, "rb", cache_type="none"))
groups = range(parquet.num_row_groups)
result = sum(parquet.read_row_group(group, columns=["text"]).num_rows for group in groups)
"""
    assert run_client(hub, tmp_path, code) == ROWS_PER_FILE
    footer, *groups = content_records(hub)
    metadata = pq.ParquetFile(io.BytesIO(BODY)).metadata
    text_bytes = [metadata.row_group(group).column(0).total_compressed_size for group in range(metadata.num_row_groups)]
    assert [record.bytes_sent for record in groups] == text_bytes
    assert {record.status for record in [footer, *groups]} == {206}
    paths = [record.path.split("?")[0].rsplit("/", 2)[1] for record in hub.requests[:3]]
    assert paths == ["api", "revision", FINEWEB_EDU_COMMIT]  # harnesses, repository, folder
    assert hub.api_requests == 3
    assert hub.content_bytes == footer.bytes_sent + sum(text_bytes)


def test_download_of_a_file(hub: StandInHub, tmp_path: Path) -> None:
    """`hf_hub_download` fetches a file whole, from the commit that `main` is."""
    code = """
from huggingface_hub import hf_hub_download
result = hf_hub_download(REPO_ID, FILE, repo_type="dataset")
"""
    path = Path(run_client(hub, tmp_path, code))
    assert path.read_bytes() == BODY
    assert FINEWEB_EDU_COMMIT in path.parts


def test_sizes_and_hashes_come_in_one_request(hub: StandInHub, tmp_path: Path) -> None:
    """`get_paths_info` answers for many files at once, with size and SHA-256."""
    code = """
from huggingface_hub import HfApi
paths = ["sample/10BT/001_00000.parquet", FILE, "missing"]
infos = HfApi().get_paths_info(REPO_ID, paths, repo_type="dataset", revision=COMMIT)
result = {info.path: [info.size, info.lfs.sha256] for info in infos}
"""
    found = run_client(hub, tmp_path, code)
    assert set(found) == {FILE, "sample/10BT/001_00000.parquet"}
    etag = get(hub).headers["ETag"].strip('"')
    assert found[FILE] == [len(BODY), etag]


def test_listing_comes_in_pages(repository: Repository, tmp_path: Path) -> None:
    """A long listing is cut into pages, which the client follows."""
    code = """
from huggingface_hub import HfApi
entries = HfApi().list_repo_tree(REPO_ID, recursive=True, repo_type="dataset")
result = [entry.path for entry in entries]
"""
    with StandInHub([repository], tree_page_entries=3) as hub:
        paths = run_client(hub, tmp_path, code)
        assert set(FILES) < set(paths)
        assert len(paths) == len(set(paths)) == 12
        assert sum("/tree/" in record.path for record in hub.requests) == 4


@pytest.mark.parametrize(
    ("access", "token", "expected"),
    [
        ("private", None, "RepositoryNotFoundError 401"),
        ("private", "hf_wrong", "HfHubHTTPError 401"),
        ("private", "hf_right", "ok"),
        ("gated", None, "GatedRepoError 401"),
        ("gated", "hf_wrong", "GatedRepoError 403"),
        ("gated", "hf_right", "ok"),
    ],
)
def test_access(access: Any, token: str | None, expected: str, tmp_path: Path) -> None:
    """A private or gated repository opens for its token only, and the log never holds a token."""
    code = """
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
result = "ok"
try:
    HfApi().dataset_info(REPO_ID)
except HfHubHTTPError as error:
    result = f"{type(error).__name__} {error.response.status_code}"
"""
    repository = Repository(REPO_ID, FILES, access=access, token="hf_right")
    with StandInHub([repository]) as hub:
        environment = {"HF_TOKEN": token} if token else {}
        assert run_client(hub, tmp_path, code, **environment) == expected
        assert hub.requests[-1].authorized is (token is not None)
        assert "hf_" not in repr(hub.requests)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("REPO_ID, FILE, revision='0' * 40", "RevisionNotFoundError"),
        ("REPO_ID, 'missing.parquet'", "RemoteEntryNotFoundError"),
        ("'HuggingFaceFW/missing', FILE", "RepositoryNotFoundError"),
    ],
)
def test_what_is_missing(hub: StandInHub, arguments: str, expected: str, tmp_path: Path) -> None:
    """A missing revision, file and repository are told apart, each by the client's own error."""
    code = f"""
from huggingface_hub import hf_hub_download
result = hf_hub_download({arguments}, repo_type="dataset")
"""
    assert run_client(hub, tmp_path, code)[0] == expected


def test_redirect_to_a_cdn_keeps_the_token_at_home(repository: Repository, tmp_path: Path) -> None:
    """With `cdn` the bytes come from another host, which never sees the token."""
    code = """
from huggingface_hub import HfFileSystem
path = f"datasets/{REPO_ID}@{COMMIT}/{FILE}"
result = HfFileSystem().open(path, "rb", cache_type="none").read(4).decode()
"""
    with StandInHub([repository], cdn=True) as hub:
        assert run_client(hub, tmp_path, code, HF_TOKEN="hf_secret") == "PAR1"
        resolve, cdn = content_records(hub)
        assert (resolve.kind, resolve.status, resolve.authorized) == ("resolve", 302, True)
        assert (cdn.kind, cdn.status, cdn.authorized) == ("cdn", 206, False)


class Response:
    """The answer to one request of a plain client, on a connection of its own."""

    def __init__(self, hub: StandInHub, path: str, timeout: float, **headers: str) -> None:
        connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=timeout)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            self.status = response.status
            self.headers = response.headers
            self.body = response.read()
        finally:
            connection.close()


def get(hub: StandInHub, path: str = URL_PATH, timeout: float = 60, **headers: str) -> Response:
    return Response(hub, path, timeout, **headers)


def test_ranges(hub: StandInHub) -> None:
    """A range is answered with 206 and its bytes, whichever way it is written."""
    size = len(BODY)
    for wanted, expected in {
        "bytes=0-9": BODY[:10],
        "bytes=100-": BODY[100:],
        "bytes=-8": BODY[-8:],
        f"bytes={size - 5}-{size + 100}": BODY[-5:],
    }.items():
        response = get(hub, Range=wanted)
        assert (response.status, response.body) == (206, expected)
        assert response.headers["Content-Range"].endswith(f"/{size}")
        assert response.headers["X-Repo-Commit"] == FINEWEB_EDU_COMMIT
    assert get(hub, Range=f"bytes={size}-").status == 416


@pytest.mark.parametrize(
    ("fault", "error", "bytes_sent"),
    [
        (Reset(), ConnectionResetError, 0),
        (Reset(0.5), ConnectionResetError, len(BODY) // 2),
        (CutBody(0.5), http.client.IncompleteRead, len(BODY) // 2),
        (CutBody(0.0), http.client.IncompleteRead, 0),
        (Stall(), TimeoutError, 0),
        (Stall(0.5), TimeoutError, len(BODY) // 2),
    ],
)
def test_broken_connections(hub: StandInHub, fault: Fault, error: type[Exception], bytes_sent: int) -> None:
    """A connection breaks where the fault says, and the next request is answered again."""
    hub.faults.append(ScriptedFaults([fault]))
    with pytest.raises(error) as caught:
        get(hub, timeout=1 if error is TimeoutError else 60)
    if isinstance(caught.value, ConnectionResetError):  # a real RST: a FIN would leave no errno
        assert caught.value.errno == errno.ECONNRESET
    limit = time.monotonic() + 60
    while not (hub.requests and hub.requests[0].bytes_sent == bytes_sent) and time.monotonic() < limit:
        time.sleep(0.01)  # the client may have given up before a busy server began
    assert hub.requests[0].bytes_sent == bytes_sent
    assert hub.requests[0].fault == fault
    assert get(hub).body == BODY


@pytest.mark.parametrize("code", [403, 408, 429, 500, 502, 503, 504])
def test_status(hub: StandInHub, code: int) -> None:
    """A status fault is answered instead of the file, with the hints when to come back."""
    hub.faults.append(ScriptedFaults([Status(code, retry_after=7, rate_limit_reset_seconds=9)]))
    response = get(hub, Range="bytes=0-9")
    assert response.status == code
    assert response.headers["Retry-After"] == "7"
    assert response.headers["RateLimit"] == '"resolvers";r=0;t=9'


def test_stall_goes_on_when_released(hub: StandInHub) -> None:
    """A stalled answer is complete after its release, or after its seconds."""
    hub.faults.append(ScriptedFaults([Stall(0.5), Stall(0.5, seconds=0.2), Stall(seconds=0.2)]))
    timer = threading.Timer(0.2, hub.release_stalls)
    timer.start()
    for _ in range(3):
        started = time.monotonic()
        assert get(hub).body == BODY
        assert time.monotonic() - started >= 0.15
    timer.join()


def test_slow_body(hub: StandInHub) -> None:
    """A slow body arrives whole, and no faster than was asked for."""
    hub.faults.append(ScriptedFaults([Slow(bytes_per_second=len(BODY))]))
    started = time.monotonic()
    assert get(hub).body == BODY
    assert time.monotonic() - started > 0.8


def test_ignored_range_and_changed_etag(hub: StandInHub) -> None:
    """A server may send the whole file for a range, or another version of it."""
    hub.faults.append(ScriptedFaults([IgnoreRange(), ChangedETag("other")]))
    whole = get(hub, Range="bytes=0-9")
    assert (whole.status, whole.body) == (200, BODY)
    other = get(hub, Range="bytes=0-9")
    assert (other.status, other.body, other.headers["ETag"]) == (206, BODY[:10], '"other"')


def test_plans_count_only_what_they_are_about(hub: StandInHub) -> None:
    """A plan leaves requests of another kind and other paths alone and does not count them."""
    faults: list[FaultPlan] = [
        ScriptedFaults([None, Status(503)], path_contains="/10BT/"),
        ScriptedFaults([Status(500)], on="api"),
    ]
    hub.faults.extend(faults)
    assert get(hub, URL_PATH.replace("10BT", "100BT")).status == 200
    assert [get(hub).status for _ in range(3)] == [200, 503, 200]
    assert [get(hub, f"/api/datasets/{REPO_ID}").status for _ in range(2)] == [500, 200]
    assert [plan.injected for plan in faults] == [1, 1]


def test_random_faults_spend_their_budget(hub: StandInHub) -> None:
    """Random faults are the same for the same seed, and end when the budget is spent."""

    def statuses(seed: int) -> list[int]:
        faults = [Status(500), Status(503)]
        hub.faults[:] = [RandomFaults(faults, seed=seed, probability=0.5, budget=5)]
        return [get(hub).status for _ in range(40)]

    first = statuses(1)
    assert sorted(set(first)) == [200, 500, 503]
    assert first.count(200) == 35
    assert statuses(1) == first != statuses(2)


def test_lasting_fault_is_an_outage(hub: StandInHub) -> None:
    """An outage lasts exactly as long as its flag is set."""
    outage = LastingFault(Status(503))
    hub.faults.append(outage)
    assert [get(hub).status for _ in range(3)] == [503] * 3
    outage.active = False
    assert get(hub).status == 200


def test_replaced_file(hub: StandInHub, repository: Repository) -> None:
    """A push leaves the pinned commit alone; tampering changes its bytes and its ETag."""
    old_etag = get(hub).headers["ETag"]
    commit = repository.replace_file(FILE, b"pushed")
    assert get(hub).body == BODY
    main = get(hub, URL_PATH.replace(FINEWEB_EDU_COMMIT, "main"))
    assert (main.body, main.headers["X-Repo-Commit"]) == (b"pushed", commit)
    assert repository.replace_file(FILE, b"tampered", new_commit=False) == commit
    tampered = get(hub, URL_PATH.replace(FINEWEB_EDU_COMMIT, commit))
    assert tampered.body == b"tampered"
    assert len({old_etag, main.headers["ETag"], tampered.headers["ETag"]}) == 3


def test_latency(hub: StandInHub) -> None:
    """The latency is added to every request."""
    hub.latency_seconds = 0.2
    started = time.monotonic()
    assert get(hub).status == 200
    assert time.monotonic() - started >= 0.2


def test_a_hub_that_is_gone_answers_nobody(repository: Repository) -> None:
    """After the end of the `with` block a kept-alive connection is dead, too."""

    def exchange(connection: http.client.HTTPConnection) -> bytes:
        connection.request("GET", URL_PATH)
        return connection.getresponse().read()

    with StandInHub([repository]) as hub:
        connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=60)
        for _ in range(2):
            assert exchange(connection) == BODY
    with contextlib.closing(connection), pytest.raises(ConnectionError):
        exchange(connection)


def test_standalone_server_streams_from_disk(tmp_path: Path) -> None:
    """The command prints HF_ENDPOINT and serves a large file without loading it."""
    large = tmp_path / "000_00000.parquet"
    with large.open("wb") as file:
        file.truncate(300 << 20)
    script = Path(standin_hub.__file__)
    command = [sys.executable, str(script), str(tmp_path), "--repo", "a/b"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip().removeprefix("HF_ENDPOINT=http://")
            connection = http.client.HTTPConnection(address)
            connection.request("GET", f"/datasets/a/b/resolve/main/{FILE}")
            response = connection.getresponse()
            received = sum(len(chunk) for chunk in iter(lambda: response.read(1 << 20), b""))
            assert received == 300 << 20
            connection.close()
            status = Path(f"/proc/{server.pid}/status")
            if status.exists():
                peak = next(line for line in status.read_text().splitlines() if "VmHWM" in line)
                assert int(peak.split()[1]) < 100_000
        finally:
            server.kill()
