"""How bytes come from the hub: one resolve for each file, then from a signed address at a CDN, which expires, fails or
leads astray. The stand-in counts the requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import runs
from tests.support.fourteen_files import (
    FILES,
    READERS,
    build,
    build_with_workers,
    expected_shards,
    resolves,
    sample_repository,
)
from tests.support.promises import Tries
from tests.support.standin_cdn import Style
from tests.support.standin_faults import (
    ChangedETag,
    CutBody,
    ExpiredMidBody,
    Fault,
    FirstOfEachPath,
    IgnoreRange,
    LastingFault,
    OtherLinkedETag,
    RandomFaults,
    Reset,
    Status,
    WrongRedirect,
)
from tests.support.standin_hub import StandInHub

CANARY = "hf_canary_4714"
CDN_FAULTS: list[Fault] = [
    *(Status(code) for code in (401, 403, 410, 416, 500, 503)),
    ExpiredMidBody(),
    ExpiredMidBody(0.0),
    ChangedETag(),
    Reset(),
    Reset(0.5),
    CutBody(),
    IgnoreRange(),
]
WRONG_REDIRECTS: list[Fault] = [
    WrongRedirect("dead"),
    WrongRedirect("nowhere"),
    WrongRedirect("home"),
    WrongRedirect("foreign"),
]
SIGNATURES: list[tuple[Style, int]] = [
    ("cloudfront", 403),
    ("opaque", 401),
    *((style, status) for style in ("s3", "opaque", "cloudfront") for status in (403, 410)),
    ("s3", 401),
]


@pytest.mark.full
@pytest.mark.promise("the hub's quota is kept, not hit")
def test_one_resolve_for_each_file(home: Path, tmp_path: Path, tries: Tries) -> None:
    """However many row groups a file has, each process asks once where it is; the token stays at the hub."""
    for number in tries(1, 2):
        with StandInHub([sample_repository(rows=1 + 19 * number)], cdn=True) as hub:
            done = build_with_workers(hub, home, tmp_path / str(number), HF_TOKEN=CANARY)
            assert done.returncode == 0, done.stderr
            assert FILES <= resolves(hub) <= FILES * READERS
            assert all(record.authorized for record in hub.requests_of("resolve"))
            assert not any(record.authorized for record in hub.requests_of("cdn"))
            assert {record.status for record in hub.requests_of("cdn")} == {206}
        assert runs.shards_in(tmp_path / str(number)) == expected_shards()


@pytest.mark.full
@pytest.mark.promise("the hub's quota is kept, not hit")
def test_addresses_that_expire_during_the_run(home: Path, tmp_path: Path, tries: Tries) -> None:
    """They are renewed, whether their expiry can be read or not and whatever their end is called, and used more than
    once until then."""
    for number in tries(2, len(SIGNATURES)):
        style, status = SIGNATURES[number]
        options = {"signature_seconds": 1.0, "refusal_status": status, "latency_seconds": 0.03}
        repository = sample_repository(rows=2)
        with StandInHub([repository], cdn=True, signature_style=style, **options) as hub:  # type: ignore[arg-type]
            done = build_with_workers(hub, home, tmp_path / str(number))
            assert done.returncode == 0, done.stderr
            assert resolves(hub) < len(hub.requests_of("cdn"))
            assert "Traceback" not in done.stderr
        assert runs.shards_in(tmp_path / str(number)) == expected_shards()


@pytest.mark.full
@pytest.mark.promise("the hub's quota is kept, not hit")
def test_a_clock_that_is_wrong(home: Path, tmp_path: Path, tries: Tries) -> None:
    """If all addresses seem to have expired long ago, or to hold for hours, no more are asked for."""
    for number in tries(1, 2):
        ahead = (-2 * 3600, 2 * 3600)[number]
        with StandInHub([sample_repository()], cdn=True, clock_ahead_seconds=ahead) as hub:
            done = build(hub, home, tmp_path / str(number))
            assert done.returncode == 0, done.stderr
            assert resolves(hub) <= FILES * READERS
        assert runs.shards_in(tmp_path / str(number)) == expected_shards()


@pytest.mark.full(but=["way1"])
@pytest.mark.promise("network faults are survived", "the HF token is sent to the hub only")
@pytest.mark.parametrize("way", [(), ("--download",)])
def test_faults_of_redirects_and_addresses(
    home: Path, tmp_path: Path, tries: Tries, soak: bool, way: tuple[str, ...]
) -> None:
    """At random, streamed and downloaded: the same bytes; and wherever a redirect leads, no request there has the
    token, nor has anything that is written or said."""
    budget = sum(1 for _ in tries(20, 200))
    wrong_redirects, refusals = plans = [
        RandomFaults(WRONG_REDIRECTS, seed=6, probability=0.25, budget=budget // 2, on="resolve"),
        RandomFaults(CDN_FAULTS, seed=7, probability=0.25, budget=budget // 2, on="cdn"),
    ]
    other_etags = FirstOfEachPath(OtherLinkedETag(), on="resolve", path_contains="7_00000.parquet")
    files, out = 3 * budget // 2, tmp_path / "out"
    words = ["--workers", "4" if soak else "2", "--max-outage", "1min", *way]
    repository = sample_repository(files=files, token=CANARY)
    with StandInHub([repository], [other_etags, *plans], cdn=True) as hub:
        variables = {"HF_TOKEN": CANARY, "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
        done = build_with_workers(hub, home, out, *words, **variables)
        assert done.returncode == 0, done.stderr
        assert min(wrong_redirects.injected, refusals.injected) >= 0.2 * budget
        assert other_etags.injected >= 1
        elsewhere = [*hub.requests_of("cdn"), *hub.requests_of("foreign")]
    assert runs.shards_in(out) == expected_shards(files)
    assert {record.kind for record in elsewhere} == {"cdn", "foreign"}
    assert not [record for record in elsewhere if CANARY in f"{record.path} {record.headers}"]
    written = [path for folder in (out, home) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in written if CANARY.encode() in path.read_bytes()]
    for word in (CANARY, "Traceback", "Retrying in", "HTTP Error", "Trying to resume", "Consistency"):
        assert word not in done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.promise("the hub's quota is kept, not hit")
def test_a_cdn_that_refuses_every_address(home: Path, tmp_path: Path, tries: Tries) -> None:
    """Ends with a sentence; until then the hub is not asked for new addresses without a pause."""
    for number in tries(1, 3):
        status = (403, 401, 410)[number]
        plan = LastingFault(Status(status), on="cdn")
        with StandInHub([sample_repository()], [plan], cdn=True) as hub:
            done = build(hub, home, tmp_path / str(number), "--max-outage", "2s")
            assert done.returncode in (3, 10), done.stderr
            assert str(status) in done.stderr
            assert "Traceback" not in done.stderr
            assert resolves(hub) <= 40
