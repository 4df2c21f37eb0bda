"""What the hub, its clients and the environment do wrong, in our words: waited for, or refused at once."""

from __future__ import annotations

import email.utils
import errno
import json
import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from fineweb_shards.commands import main as cli
from fineweb_shards.errors import HubError
from fineweb_shards.run.config import Config
from fineweb_shards.storage.hub_environment import check_addresses, check_token
from fineweb_shards.storage.hub_session import (
    LONGEST_REQUESTED_SECONDS,
    requested_wait_seconds,
    translated_errors,
    what_raises_limit,
)
from fineweb_shards.system.retry import Retrier, TransientError
from tests.sources.hub.test_hub import (
    DOCUMENTS,
    EXPECTED,
    FILES,
    IMPATIENT,
    OTHERS,
    REPO,
    SAMPLE,
    build,
    build_with_workers,
    environment,
    fineweb_parquet,
)
from tests.support import reference, runs
from tests.support.doubles import FakeClock, Listener
from tests.support.promises import Tries
from tests.support.standin_faults import (
    ChangedETag,
    CutBody,
    Fault,
    FlippedByte,
    IgnoreRange,
    LastingFault,
    OtherBody,
    Reset,
    ScriptedFaults,
    Slow,
    Stall,
    Status,
    WrongRedirect,
)
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

FAULTS: dict[str, list[Fault]] = {
    "reset": [Reset(), Reset(0.5)],
    "cut": [CutBody(), CutBody(0.01)],
    "stall": [Stall(seconds=1.5), Stall(0.5, seconds=1.5)],
    "slow": [Slow(200_000)],
    "status": [Status(code) for code in (408, 500, 502, 503, 504)],
    "limit": [Status(429, retry_after="0.5"), Status(429, retry_after="soon"), Status(429)],
    "range": [IgnoreRange()],
    "etag": [ChangedETag()],
}


@pytest.fixture
def repository() -> Repository:
    return Repository(REPO, {**FILES, **OTHERS})


def in_an_hour() -> str:
    return email.utils.formatdate(time.time() + 3600, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": " 3 "}, 3.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "1e9"}, LONGEST_REQUESTED_SECONDS),
        ({"Retry-After": "9" * 400}, 0.0),
        ({"Retry-After": in_an_hour()}, LONGEST_REQUESTED_SECONDS),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"Retry-After": "Wed, 99 Foo 99999 99:99:99 GMT"}, 0.0),
        *(({"Retry-After": text}, 0.0) for text in ("", "soon", "nan", "inf", "-inf", "1 2", "\u00b2", "0x10")),
        ({"RateLimit": '"resolvers";r=0;t=240'}, 240.0),
        ({"RateLimit": '"api";r=0;t=55', "Retry-After": "soon"}, 55.0),
        ({"RateLimit": '"api";r=0;t=10, "resolvers";r=7;t=200'}, 10.0),
        ({"RateLimit": '"resolvers"; r=0; t=99999999999999999999'}, LONGEST_REQUESTED_SECONDS),
        ({"RateLimit": '"resolvers";r=0;t=-1'}, 0.0),
        ({"RateLimit": "garbage"}, 0.0),
    ],
)
def test_what_a_429_asks_for(headers: dict[str, str], seconds: float) -> None:
    """Any text in a header is a sensible number of seconds, or nothing; never an exception."""
    assert requested_wait_seconds(headers, 429) == pytest.approx(seconds, abs=2)


def test_a_window_is_no_wait() -> None:
    """The RateLimit header of any other answer only tells when the next window begins."""
    assert requested_wait_seconds({"RateLimit": '"resolvers";r=0;t=240'}, 503) == 0.0


def test_a_429_says_what_would_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token, or, with one, another account."""
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert "PRO" in what_raises_limit()
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN" in what_raises_limit()


def test_a_rate_limit_is_our_wait(repository: Repository) -> None:
    """In huggingface_hub's own download: told by us, with host and times, and waited with our retrier."""
    from huggingface_hub import get_hf_file_metadata

    from fineweb_shards.storage.hub_session import open_session

    clock, listener = FakeClock(), Listener()
    retrier = Retrier(3600, listener, clock=clock)
    limit = Status(429, rate_limit_reset_seconds=299)
    with StandInHub([repository], [ScriptedFaults(script=[limit, limit], on="resolve")]) as hub:
        open_session(retrier)
        name = next(iter(FILES))
        get_hf_file_metadata(f"{hub.endpoint}/datasets/{REPO}/resolve/{repository.head}/{name}")
    assert clock.waits == [299, 299]
    host = hub.endpoint.removeprefix("http://")
    assert listener.waits[0][1] == (
        f"waiting for the network since 02:13 ({host}: rate limit (429)), next try at 02:18, "
        "giving up at 03:13; with HF_TOKEN the limit is higher"
    )
    assert listener.waits[-1] == ("network", None)


def xet_get(error: Exception) -> None:
    """Named as the function of huggingface_hub in which xet raises."""
    raise error


@pytest.mark.parametrize(
    "error",
    [
        OSError("Consistency check failed: file should be of size 10 but has size 5 (a.parquet)."),
        RuntimeError("Data processing error: CAS service error : Reqwest Error"),
    ],
)
def test_a_transfer_that_breaks_off_is_waited_for(error: Exception) -> None:
    """huggingface_hub tells a short body as an OSError, xet any trouble as a RuntimeError."""
    with pytest.raises(TransientError, match="the transfer broke off"), translated_errors("a.parquet"):
        xet_get(error)


def test_a_runtime_error_of_others_is_no_outage() -> None:
    """`datasets` raises a bare one for a dataset that needs a script: waiting would not help."""
    with pytest.raises(RuntimeError, match="scripts"), translated_errors("dataset me/old"):
        raise RuntimeError("Dataset scripts are no longer supported, but found old.py")


def test_a_full_disk_is_no_trouble_of_the_network() -> None:
    """It stays what it is, for those who wait for the disk."""
    with pytest.raises(OSError, match="space"), translated_errors("a.parquet"):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.promise("network faults are survived")
def test_faults_of_every_kind_by_either_way(repository: Repository, home: Path, tmp_path: Path, tries: Tries) -> None:
    """Streamed or downloaded, with and without a CDN: the same bytes, and not a word of the client's."""
    ways = [(kind, way) for way in (["--download"], []) for kind in FAULTS]
    for number in tries(1, 6 * len(ways)):
        kind, way = ways[number % len(ways)]
        script = random.Random(number).choices(FAULTS[kind], k=4)
        if number == 0:  # the quick form: what a download has stumbled over
            script = [CutBody(), Status(429, retry_after="1.5"), IgnoreRange(), Reset(0.5), Status(503)]
        plan = ScriptedFaults(script=script, path_contains=".parquet")
        with StandInHub([repository], [plan], cdn=number % 2 == 1) as hub:
            words = ["--max-outage", "10min", *way]
            done = build(hub, home, tmp_path / str(number), *SAMPLE, *words, **IMPATIENT)
        assert done.returncode == 0, (kind, way, done.stderr)
        assert plan.injected >= 2
        assert runs.shards_in(tmp_path / str(number)) == EXPECTED
        assert "Traceback" not in done.stderr
        for foreign in ("Rate limited", "Retrying in", "HTTP Error", "Trying to resume", "%|", "Consistency"):
            assert foreign not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_ENDPOINT", "huggingface.co", "HF_ENDPOINT=huggingface.co:"),
        ("HF_ENDPOINT", "ftp://huggingface.co", "HF_ENDPOINT=ftp://huggingface.co:"),
        ("HF_ENDPOINT", "https://", "HF_ENDPOINT=https://:"),
        ("HF_ENDPOINT", "https://hugging face.co", "HF_ENDPOINT=https://hugging face.co:"),
        ("HTTPS_PROXY", "nonsense://me:secret_4713@proxy", "HTTPS_PROXY=proxy:"),
        ("http_proxy", "http://proxy:port", "http_proxy=http://proxy:port:"),
    ],
)
def test_a_wrong_address_is_told_at_once(monkeypatch: pytest.MonkeyPatch, name: str, value: str, shown: str) -> None:
    """With the variable and its value, but without a password."""
    monkeypatch.setenv(name, value)
    with pytest.raises(HubError) as error:
        check_addresses()
    assert shown in error.value.message
    assert "secret_4713" not in error.value.message + error.value.hint


@pytest.mark.parametrize("value", ["http://me:you@proxy:3128", "proxy:3128", "socks5h://proxy:1080"])
def test_a_right_address_is_not_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A proxy may come without a scheme, as curl takes it."""
    monkeypatch.setenv("HTTPS_PROXY", value)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8000/mirror/")
    check_addresses()


@pytest.mark.parametrize("token", ["hf_secret_4713\u00e4", "hf secret_4713", "hf_\x07secret_4713"])
def test_what_can_be_no_token_is_told_without_it(token: str) -> None:
    """A request with it could not even be sent."""
    with pytest.raises(HubError, match="HF_TOKEN holds characters") as error:
        check_token(token)
    assert "secret_4713" not in error.value.message + error.value.hint


def test_an_endpoint_that_the_clients_stumble_over(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """A sentence, at once, where huggingface_hub ends with a traceback when it is imported."""
    words = ["build", *SAMPLE, "--out", tmp_path / "out"]
    done = runs.run_command(*words, **environment(hub, home, HF_ENDPOINT="https://host:port"))
    assert done.returncode == 3, done.stderr
    assert "HF_ENDPOINT=https://host:port: not the address of a hub" in done.stderr
    assert "Traceback" not in done.stderr
    assert "waiting" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_host_that_is_not_found_is_waited_for_by_name(home: Path, tmp_path: Path) -> None:
    """It may be a lost network; the sentence names the host, and what decides whether it is found. A plan needs no
    --out."""
    variables = {"HF_ENDPOINT": "https://me:secret_4713@no-such-host.invalid", "HF_HOME": str(home)}
    done = runs.run_command("plan", "--dataset", REPO, "--max-outage", "1s", NO_PROXY="*", **variables)
    assert done.returncode == 10, done.stderr
    assert "no-such-host.invalid: no such host, or no network" in done.stderr
    assert "Check the connection, HTTPS_PROXY (none is used) and HF_ENDPOINT (no-such-host.invalid)." in done.stderr
    assert "secret_4713" not in done.stderr


@pytest.mark.full(but=["<html>*"])
@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"\xff\xfe\x80", b"", b"[" * 100_000])
def test_an_answer_that_is_no_json(repository: Repository, home: Path, tmp_path: Path, body: bytes) -> None:
    """Waited for as an outage, because a proxy or a hotel's network answers so; if it lasts, a sentence."""
    passing = ScriptedFaults([OtherBody(body)] * 3, on="api", path_contains="/api/datasets/")
    with StandInHub([repository], [passing]) as hub:
        done = build(hub, home, tmp_path / "out", *SAMPLE)
        assert done.returncode == 0, done.stderr
        assert passing.injected == 3
        hub.faults = [LastingFault(OtherBody(body), on="api")]
        gave_up = build(hub, home, tmp_path / "other", *SAMPLE, "--max-outage", "1s")
    assert runs.shards_in(tmp_path / "out") == EXPECTED
    assert gave_up.returncode == 10
    assert "the answer is not JSON, so not the hub's" in gave_up.stderr
    assert "HF_ENDPOINT" in gave_up.stderr
    assert "Traceback" not in gave_up.stderr


def test_redirects_that_go_in_a_circle(repository: Repository, home: Path, tmp_path: Path) -> None:
    """Of files, which huggingface_hub follows itself: named as what they are, and waited for."""
    plan = LastingFault(WrongRedirect("home"), on="resolve", path_contains=".parquet")
    with StandInHub([repository], [plan], cdn=True) as hub:
        done = build(hub, home, tmp_path / "out", *SAMPLE, "--max-outage", "1s")
    assert done.returncode == 10, done.stderr
    assert "redirects that go in a circle" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "seconds"), [([], 20), (["--max-outage", "5min"], 300)])
def test_a_plan_gives_up_soon(monkeypatch: pytest.MonkeyPatch, words: list[str], seconds: int) -> None:
    """Somebody is looking on: an hour is for builds, unless the command says it."""

    class Stop(Exception):  # noqa: N818 - ends the command where it would ask the hub
        pass

    def make_job(config: Config, *others: object, **more: object) -> None:
        assert config.max_outage == seconds
        raise Stop

    monkeypatch.setattr("fineweb_shards.commands.build.make_job", make_job)
    with pytest.raises(Stop):
        cli.run_command(["plan", *SAMPLE, "--out", "nowhere", *words])


@pytest.mark.full
def test_a_wait_before_the_run_is_told(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """A build that can't reach the hub from the start: the screen has the wait, its reason and what to check; `status`
    says that the build is starting and, after it, what to do."""
    out = tmp_path / "out"
    variables = environment(hub, home, HF_ENDPOINT=f"http://127.0.0.1:{hub.dead_port}")
    command = runs.command("build", *SAMPLE, "--out", out)
    with subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        shown = ""
        while "waiting for the network since " not in shown:
            line = process.stderr.readline()
            assert line
            shown += line
        running = runs.run_command("status", out)
        process.terminate()
        assert process.wait() == 143
    assert f"check the connection, HTTP_PROXY (none is used) and HF_ENDPOINT (127.0.0.1:{hub.dead_port})" in shown
    assert running.returncode == 20, running.stderr
    assert running.stdout.startswith("state      running, starting\n")
    assert "Rerun the build command" in runs.run_command("status", out).stderr


# Not packed, so that every byte has its place. A plan looks at the first row groups only.
SAMPLE_FILE = "sample/10BT/000_00000.parquet"
FORM = {"rows": 10, "compression": "none", "use_dictionary": False}
UNPACKED = fineweb_parquet(DOCUMENTS[0], **FORM)  # type: ignore[arg-type]
UNPACKED_EXPECTED = reference.shard_files(reference.stream(DOCUMENTS[0]), 20_000)
FIRST, MIDDLE = (UNPACKED.index(DOCUMENTS[0][number].encode()) for number in (0, 223))
DAMAGES = {
    "a length": (MIDDLE - 1, 0x80),
    "a letter": (MIDDLE + 1, 0x20),  # a capital inside a word, which takes another token
    "a length in what a plan reads": (FIRST - 1, 0x80),
    "the footer": (len(UNPACKED) - 6, 0x80),
}
BLAME = ("token_count says", "left out: ", "Left out", "Different token_count")
ARRIVED_DAMAGED = "arrived damaged and were fetched again"


@pytest.mark.full(but=["words0-a letter", "words1-the footer"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("words", [(), ("--on-bad-file", "skip")])
def test_bytes_damaged_on_the_way_are_fetched_again(
    home: Path, tmp_path: Path, damage: str, words: tuple[str, ...]
) -> None:
    """A row group that can't be decoded, a token_count that differs, a footer that makes no sense: if the bytes are
    sound the second time, the file is not blamed and nothing is left out."""
    plan = FlippedByte(*DAMAGES[damage], times=1)
    command = build_with_workers if damage == "a length" else build  # whose events come from a worker
    with StandInHub([Repository(REPO, {SAMPLE_FILE: UNPACKED})], [plan]) as hub:
        done = command(hub, home, tmp_path / "out", *SAMPLE, *words)
    assert done.returncode == 0, done.stderr
    assert plan.injected == 1
    assert runs.shards_in(tmp_path / "out") == UNPACKED_EXPECTED
    assert not [blame for blame in BLAME if blame in done.stdout + done.stderr]
    if damage in ("a length", "a letter"):
        assert f"{SAMPLE_FILE}: bytes from position 22 on {ARRIVED_DAMAGED}" in done.stderr


@pytest.mark.full
def test_damage_that_stays_is_the_files(home: Path, tmp_path: Path) -> None:
    """Fetched twice, not more often; then it is reported as ever: exit code 3, left out with skip, or a token_count
    that differs."""
    stopped, skipped, counted = tmp_path / "stopped", tmp_path / "skipped", tmp_path / "counted"
    for damage, out, words in (
        ("a length", stopped, ()),
        ("a length", skipped, ("--on-bad-file", "skip")),
        ("a letter", counted, ()),
    ):
        plan = FlippedByte(*DAMAGES[damage], times=None)
        with StandInHub([Repository(REPO, {SAMPLE_FILE: UNPACKED})], [plan]) as hub:
            done = build_with_workers(hub, home, out, *SAMPLE, *words)
        assert plan.injected == 2, done.stderr
        assert ARRIVED_DAMAGED not in done.stderr
        assert "Traceback" not in done.stderr
        if out == stopped:
            assert done.returncode == 3
            assert f"{SAMPLE_FILE}: row group 22 can't be read" in done.stderr
        elif out == skipped:
            assert done.returncode == 0
            kept = DOCUMENTS[0][:220] + DOCUMENTS[0][230:]
            assert runs.shards_in(out) == reference.shard_files(reference.stream(kept), 20_000)
        else:
            assert done.returncode == 0
            assert done.stderr.count("token_count says") == 1


@pytest.mark.full
def test_counts_that_are_all_wrong_are_soon_believed(home: Path, tmp_path: Path) -> None:
    """A token_count of another tokenizer differs for every document: that must not double the download."""
    fetched = []
    for counts in (None, [10**6] * len(DOCUMENTS[0])):
        content = fineweb_parquet(DOCUMENTS[0], counts=counts, **FORM)  # type: ignore[arg-type]
        with StandInHub([Repository(REPO, {SAMPLE_FILE: content})]) as hub:
            done = build(hub, home, tmp_path / str(len(fetched)), *SAMPLE)
            assert done.returncode == 0, done.stderr
            fetched.append(hub.content_bytes / len(content))
    assert f"Different token_count in the source: {len(DOCUMENTS[0])} documents" in done.stdout
    assert fetched[0] < fetched[1] < fetched[0] + 1.5  # again for every batch, with the footer, would be 7


@pytest.mark.full
def test_a_line_damaged_on_the_way_is_fetched_again(home: Path, tmp_path: Path) -> None:
    """JSON lines that are read by ranges, by real workers: a quote that is gone, for once."""
    documents = DOCUMENTS[0] * 6  # the hub keeps small files in git
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
    # In a batch, and not in what is looked at to find its end.
    plan = FlippedByte(lines.index(b'"text"', 2_200_000), 0x01, times=1)
    repository = Repository("me/lines", {"README.md": b"# Lines", "train.jsonl": lines})
    with StandInHub([repository], [plan]) as hub:
        words = ["--dataset", "me/lines", "--batch-bytes", "400k"]
        done = build_with_workers(hub, home, tmp_path / "out", *words)
    assert done.returncode == 0, done.stderr
    assert plan.injected == 1
    assert ARRIVED_DAMAGED in done.stderr
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(documents), 20_000)
