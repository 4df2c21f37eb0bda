"""FineWeb-Edu from the hub: the real clients against a stand-in over HTTP, with every fault there is."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_shards.system.durable import FolderLock
from fineweb_shards.units import show_bytes
from tests.support import forked, reference, runs
from tests.support.documents import make_documents
from tests.support.promises import Tries
from tests.support.standin_faults import (
    ChangedETag,
    CutBody,
    Fault,
    IgnoreRange,
    LastingFault,
    RandomFaults,
    Reset,
    ScriptedFaults,
    Stall,
    Status,
)
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Repository

ROOT = Path(__file__).parent.parent.parent.parent
REPO = "HuggingFaceFW/fineweb-edu"
ROW_GROUPS = 60
DOCUMENTS = [
    [f"File {number}. {text} {text} {text}" for text in make_documents(ROW_GROUPS * 4, seed=90 + number)]
    for number in range(2)
]
EVERY_FAULT: list[Fault] = [
    Reset(),
    Reset(0.5),
    CutBody(),
    Stall(seconds=2.0),
    Stall(0.5, seconds=2.0),
    *(Status(code) for code in (408, 500, 502, 503, 504)),
    Status(429, retry_after=1),
    Status(429, rate_limit_reset_seconds=1),
    IgnoreRange(),
    ChangedETag(),
]


@cache
def count_tokens(text: str) -> int:
    """By the reference, once for each text."""
    return len(reference.encode(text))


def fineweb_parquet(
    documents: list[str],
    *,
    wrong: int | None = None,
    counts: list[int] | None = None,
    rows: int = 4,
    url: str | None = "u",
    **options: object,
) -> bytes:
    """A file in FineWeb-Edu's schema, with true token counts (but for one, or unless they are given); long addresses
    without `url`."""
    counts = counts or [count_tokens(text) for text in documents]
    if wrong is not None:
        counts[wrong] += 1
    table = pa.table(
        {
            "text": documents,
            "id": [f"<urn:uuid:{i}>" for i in range(len(documents))],
            "dump": ["d"] * len(documents),
            "url": [url or text[: len(text) // 4] for text in documents],
            "file_path": ["f"] * len(documents),
            "token_count": counts,
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=rows, **options)
    return buffer.getvalue()


FILES = {f"sample/10BT/00{number}_00000.parquet": fineweb_parquet(d) for number, d in enumerate(DOCUMENTS)}
OTHERS = {"data/CC-MAIN-2024-10/000_00000.parquet": fineweb_parquet(["another dump"])}
EXPECTED = reference.shard_files(reference.stream(DOCUMENTS[0] + DOCUMENTS[1]), 20_000)
FLAGS = ["--shard-tokens", "20k", "--batch-bytes", "8k", "--workers", "1"]
SAMPLE = ["--config", str(ROOT / "configs" / "sample-10BT.toml")]


@pytest.fixture
def repository() -> Repository:
    return Repository(REPO, {**FILES, **OTHERS})


IMPATIENT = {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}  # where answers stall; elsewhere a busy hub is waited for


def environment(hub: StandInHub, home: Path, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", **more}


def build(hub: StandInHub, home: Path, out: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A build in one process."""
    return forked.run_command("build", "--out", out, *FLAGS, *words, **environment(hub, home, **more))


def build_with_workers(
    hub: StandInHub, home: Path, out: Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """The real command, where what its processes do together is the point."""
    return runs.run_command("build", "--out", out, *FLAGS, *words, **environment(hub, home, **more))


def content_requests(hub: StandInHub) -> list[str]:
    """The ranges of parquet files that were fetched, footers left out."""
    return [r.range or "" for r in hub.requests if r.is_content and r.path.endswith(".parquet")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make shards SAMPLE=sample-10BT` makes with HF_ENDPOINT at a stand-in."""
    folder = tmp_path_factory.mktemp("made")
    with StandInHub([Repository(REPO, {**FILES, **OTHERS})]) as hub:
        words = ["SAMPLE=sample-10BT", f"OUT={folder / 'out'}", f"ARGS={' '.join(FLAGS)}"]
        done = subprocess.run(
            ["make", "-s", "shards", *words],
            cwd=ROOT,
            env={**os.environ, **environment(hub, folder / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of it, for those who go on with it."""
    return Path(shutil.copytree(made, tmp_path / "out"))


@pytest.mark.full
def test_make_shards_with_the_sample_unchanged(made: Path, repository: Repository, tmp_path: Path) -> None:
    """`make shards SAMPLE=sample-10BT` with HF_ENDPOINT at the stand-in: the bytes of the same files read locally, and
    of the reference."""
    assert runs.shards_in(made) == EXPECTED
    for path, data in FILES.items():
        (tmp_path / "local" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / path).write_bytes(data)
    runs.build_inline(tmp_path / "local_out", tmp_path / "local", shard_tokens=20_000)
    assert runs.shards_in(tmp_path / "local_out") == EXPECTED
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["parts"][0]["commit"] == repository.head
    assert [file["name"] for file in manifest["parts"][0]["files"]] == sorted(FILES)
    sizes = [(file["size_bytes"], len(file["content_hash"])) for file in manifest["parts"][0]["files"]]
    assert sizes == [(len(FILES[name]), 64) for name in sorted(FILES)]


@pytest.mark.full
@pytest.mark.parametrize("other_columns", ["small", "large"])
def test_bytes_and_requests(home: Path, tmp_path: Path, other_columns: str) -> None:
    """Over files with 700 row groups: at most a tenth more than the text is fetched, whether the other columns are
    small (then with few requests) or large; and the API is asked a fixed number of times."""
    chooser = random.Random(8)
    texts = [" ".join(f"{chooser.getrandbits(60):x}" for _ in range(chooser.randint(200, 300))) for _ in range(1400)]
    data = fineweb_parquet(texts, rows=2, url="u" if other_columns == "small" else None)
    files = {f"sample/10BT/00{number}_00000.parquet": data for number in range(2)}
    parsed = pq.ParquetFile(io.BytesIO(data)).metadata
    assert parsed.num_row_groups == 700
    text_bytes = sum(parsed.row_group(i).column(0).total_compressed_size for i in range(700))
    # A footer is read by the parent, for the plan and for the listing, and by each worker. On the real files it is 0.15
    # % of the bytes; here, with two rows in a group, it is a good part: counted apart.
    footers = 2 * 4 * (parsed.serialized_size + 65536)
    with StandInHub([Repository(REPO, files)]) as hub:
        words = ["--batch-bytes", "500k", "--shard-tokens", "1M", "--workers", "2"]
        done = build_with_workers(hub, home, tmp_path / "out", *SAMPLE, *words)
        assert done.returncode == 0, done.stderr
        fetched = sum(r.bytes_sent for r in hub.requests if r.is_content and r.path.endswith(".parquet"))
        assert fetched - footers <= 1.10 * 2 * text_bytes
        # What the run says it has fetched; only a worker that never finished a batch could not tell.
        told = json.loads((tmp_path / "out/.fineweb-shards/history.json").read_text())["runs"][-1]
        assert 0.9 * fetched <= told["fetched_bytes"] <= fetched
        assert re.search(r"^fetched +[0-9.]+ MB, [0-9.]+ [kM]B/s on average$", done.stdout, re.M)
        assert hub.api_requests <= 10
        assert len(content_requests(hub)) < (200 if other_columns == "small" else 1700)
    expected = reference.shard_files(np.tile(reference.stream(texts), 2), 10**6)
    assert runs.shards_in(tmp_path / "out") == expected


@pytest.mark.full
def test_a_resume_fetches_no_finished_row_group_again(hub: StandInHub, home: Path, out: Path) -> None:
    """It keeps the commit, even where the dataset has moved on, and begins at the last cursor."""
    manifest = json.loads((out / "manifest.json").read_text())
    keep = len(manifest["shards"]) // 2
    for shard in manifest["shards"][keep:]:
        (out / shard["name"]).unlink()
    end = manifest["shards"][keep - 1]["end"][0]
    repository = hub.repositories[REPO]
    first = next(iter(FILES))
    repository.replace_file(first, fineweb_parquet(["new"]))
    hub.clear_requests()
    done = build(hub, home, out, *SAMPLE)
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == EXPECTED
    names = sorted(FILES)
    begins = {
        name: pq.ParquetFile(io.BytesIO(FILES[name])).metadata.row_group(end["position"]).column(0) for name in names
    }
    for record in hub.requests:
        if record.is_content and record.path.endswith(".parquet") and record.range:
            start = int(record.range.removeprefix("bytes=").split("-")[0])
            name = next(name for name in names if record.path.endswith(name))
            assert names.index(name) >= end["file"] or start > len(FILES[name]) - 200_000
            if names.index(name) == end["file"]:
                chunk = begins[name]
                assert start >= (chunk.dictionary_page_offset or chunk.data_page_offset)


@pytest.mark.full
@pytest.mark.promise("network faults are survived")
def test_faults_of_every_kind(home: Path, tmp_path: Path, tries: Tries, soak: bool) -> None:
    """At random, in one run: the same bytes."""
    names = sorted(FILES)
    repository = Repository(REPO, {n: fineweb_parquet(d, rows=1) for n, d in zip(names, DOCUMENTS, strict=True)})
    budget = sum(1 for _ in tries(30, 200))
    plan = RandomFaults(faults=EVERY_FAULT, seed=5, probability=0.4, budget=budget, path_contains=".parquet")
    with StandInHub([repository], [plan]) as hub:
        # Several workers, because they spend their time waiting.
        workers = "6" if soak else "3"
        words = ["--batch-bytes", "1k", "--workers", workers]
        done = build_with_workers(hub, home, tmp_path / "out", *SAMPLE, *words, **IMPATIENT)
    assert done.returncode == 0, done.stderr
    assert plan.injected >= 0.95 * budget, plan.injected
    assert runs.shards_in(tmp_path / "out") == EXPECTED


@pytest.mark.full
@pytest.mark.promise("network faults are survived")
def test_faults_of_the_listing(repository: Repository, home: Path, tmp_path: Path) -> None:
    """An API that fails a few times is asked again."""
    plan = ScriptedFaults(script=[Status(503), Reset(), Status(429, retry_after=1)], on="api")
    with StandInHub([repository], [plan]) as hub:
        done = build(hub, home, tmp_path / "out", *SAMPLE)
    assert done.returncode == 0, done.stderr
    assert plan.injected == 3
    assert runs.shards_in(tmp_path / "out") == EXPECTED


def test_a_redirect_to_another_host(repository: Repository, home: Path, tmp_path: Path) -> None:
    """As the real hub does it for large files; the token stays at home."""
    with StandInHub([repository], cdn=True) as hub:
        done = build(hub, home, tmp_path / "out", *SAMPLE, HF_TOKEN="hf_canary_token")
        assert done.returncode == 0, done.stderr
        assert any(record.kind == "cdn" for record in hub.requests)
        assert not any(record.authorized for record in hub.requests if record.kind == "cdn")
    assert runs.shards_in(tmp_path / "out") == EXPECTED


@pytest.mark.full
@pytest.mark.promise("network faults are survived")
def test_an_outage_longer_than_max_outage_ends_resumably(repository: Repository, home: Path, tmp_path: Path) -> None:
    """With its own exit code and sentence; afterwards the same command completes."""
    outage = LastingFault(fault=Status(503), path_contains="001_00000.parquet")
    with StandInHub([repository], [outage]) as hub:
        done = build(hub, home, tmp_path / "out", *SAMPLE, "--max-outage", "5s")
        assert done.returncode == 10, done.stderr
        assert "status 503" in done.stderr
        assert "waiting for the network since" in done.stderr
        assert "Traceback" not in done.stderr
        kept = runs.shards_in(tmp_path / "out")
        assert kept
        assert kept.items() <= EXPECTED.items()
        outage.active = False
        assert build(hub, home, tmp_path / "out", *SAMPLE).returncode == 0
    assert runs.shards_in(tmp_path / "out") == EXPECTED


HOPELESS: list[tuple[list[str], list[str]]] = [
    (["--dataset", REPO, "--name", "sample-10B"], ["no config 'sample-10B'", "sample-10BT", "CC-MAIN-2024-10"]),
    (["--dataset", REPO, "--name", "sample-10BT", "--split", "test"], ["no split 'test'", "train"]),
    (["--dataset", REPO, "--name", "sample-10BT", "--revision", "v9"], ["404"]),
    (["--dataset", "nobody/nothing"], ["nobody/nothing", "no such dataset"]),
    (["--dataset", "me/private"], ["me/private", "private"]),
    (["--dataset", "me/gated"], ["me/gated", "gated"]),
    (["--dataset", REPO, "--name", "sample-10BT", "--text-column", "body"], ["no column 'body'", "token_count"]),
    (["--dataset", REPO, "--input", "x"], ["exclude each other"]),
]


@pytest.mark.full
def test_what_waiting_would_not_help(repository: Repository, home: Path, tmp_path: Path) -> None:
    """Fails at once, with the names that exist, and never with a token in it."""
    others = [
        Repository("me/private", FILES, access="private", token="secret"),
        Repository("me/gated", FILES, access="gated", token="secret"),
    ]
    with StandInHub([repository, *others]) as hub:
        endings = [build(hub, home, tmp_path / str(number), *words) for number, (words, _) in enumerate(HOPELESS)]
    for done, (_, sentences) in zip(endings, HOPELESS, strict=True):
        assert done.returncode in (2, 3), done.stderr
        for sentence in sentences:
            assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert "waiting for" not in done.stderr
        assert "secret" not in done.stderr


@pytest.mark.promise("the HF token appears nowhere")
def test_a_private_dataset_with_its_token(home: Path, tmp_path: Path, tries: Tries) -> None:
    """HF_TOKEN opens it, and appears nowhere: not in what is said, nor in any file, whatever goes wrong."""
    canary, wrong = "hf_canary_4711", "hf_wrong_4712"
    private = Repository("me/private", FILES, access="private", token=canary)
    words = ["--dataset", "me/private", "--name", "sample-10BT"]
    failures: list[tuple[str, list[Fault], list[str], int]] = [
        (canary, [Status(503), Reset(), CutBody(), Reset(0.5)], [], 0),
        (wrong, [], [], 3),
        (canary, [], ["--split", "nonsense"], 3),
        (canary, [Status(401)] * 50, [], 3),
        (canary, [Status(403)] * 50, [], 3),
        (canary, [Status(503)] * 50, ["--max-outage", "1s"], 10),
        (canary, [CutBody()] * 50, ["--max-outage", "1s"], 10),
        (canary, [ChangedETag()] * 50, ["--max-outage", "1s"], 10),  # a confused cache: HEAD says otherwise
        (canary, [], ["--text-column", "nothing"], 3),
        (canary, [Status(404)] * 50, [], 3),
    ]
    for number in tries(3, 20):
        token, script, more, code = failures[number % len(failures)]
        out = tmp_path / str(number)
        # A refusal is also that of the question where a file is.
        on: Literal["content", "resolve"] = "resolve" if code == 3 else "content"
        faults = ScriptedFaults(script=script, path_contains=".parquet", on=on)
        with StandInHub([private], [faults]) as hub:
            done = build(hub, home, out, *words, *more, HF_TOKEN=token)
        assert done.returncode == code, done.stderr
        if code == 0:
            assert runs.shards_in(out) == EXPECTED
        assert token not in done.stdout + done.stderr
        written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
        assert token.encode() not in written


def test_a_file_replaced_under_the_same_commit_is_refused(hub: StandInHub, home: Path, out: Path) -> None:
    """Between two runs: named, with what differs. During a run: by its ETag."""
    manifest = json.loads((out / "manifest.json").read_text())
    (out / manifest["shards"][-1]["name"]).unlink()
    last = sorted(FILES)[-1]
    hub.repositories[REPO].replace_file(last, fineweb_parquet(["other"]), new_commit=False)
    refused = build(hub, home, out, *SAMPLE)
    assert refused.returncode == 4
    assert last in refused.stderr


def test_a_file_replaced_while_it_is_read_is_noticed(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer with another ETag is asked for again; a file that really is another one ends the run."""
    from huggingface_hub import constants

    from fineweb_shards.errors import ChangedError
    from fineweb_shards.storage.hub import RemoteFile
    from fineweb_shards.storage.hub_session import open_session
    from fineweb_shards.system.retry import Retrier

    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    retrier = Retrier(60)
    open_session(retrier)
    name, data = next(iter(FILES.items()))
    repository = hub.repositories[REPO]
    digest = repository.commits[repository.head][name].sha256
    url = f"{hub.endpoint}/datasets/{REPO}/resolve/{repository.head}/{name}"
    file = RemoteFile(url, len(data), digest, retrier)
    hub.faults.append(ScriptedFaults(script=[None, None, ChangedETag()], path_contains=name))
    assert file.fetch(0, 100) == data[:100]
    assert file.fetch(100, 200) == data[100:200]
    repository.replace_file(name, data[:-1] + b"x", new_commit=False)
    with pytest.raises(ChangedError, match=r"was .* and is"):
        file.fetch(200, 300)


def test_a_silent_listing_is_asked_again(repository: Repository) -> None:
    """The clients would wait for ever; a session of ours has a timeout for every request."""
    from huggingface_hub import get_session

    from fineweb_shards.storage.hub_session import open_session
    from fineweb_shards.system.retry import Retrier

    plan = ScriptedFaults(script=[Stall(seconds=30), Stall(0.5, seconds=30)], on="api")
    with StandInHub([repository], [plan]) as hub:
        open_session(Retrier(60), answer_seconds=0.2)
        answer = get_session().get(f"{hub.endpoint}/api/datasets/{REPO}")
        assert answer.json()["sha"] == repository.head
        assert plan.injected == 2


def test_offline_mode_is_respected(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE=1: no request, and a sentence."""
    hub.clear_requests()
    done = build(hub, home, tmp_path / "out", *SAMPLE, HF_HUB_OFFLINE="1")
    assert done.returncode == 3, done.stderr
    assert "HF_HUB_OFFLINE" in done.stderr
    assert hub.requests == []


def test_counts_are_checked_against_token_count(home: Path, tmp_path: Path) -> None:
    """A difference is reported with the document's id, and the run goes on."""
    documents = DOCUMENTS[0]
    files = {"sample/10BT/000_00000.parquet": fineweb_parquet(documents, wrong=37, rows=50)}
    with StandInHub([Repository(REPO, files)]) as hub:
        done = build(hub, home, tmp_path / "out", *SAMPLE)
    assert done.returncode == 0, done.stderr
    ours = len(reference.encode(documents[37]))
    assert f"document <urn:uuid:37> has {ours:,} tokens, its token_count says {ours + 1:,}" in done.stderr
    assert done.stderr.count("token_count says") == 1
    assert "Different token_count in the source: 1 document." in done.stdout


def test_downloads_stay_for_the_next_epoch(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Each file is fetched once, and removed in the last epoch."""
    out = tmp_path / "out"
    done = build(hub, home, out, *SAMPLE, "--download", "--epochs", "3", "--quiet")
    assert done.returncode == 0, done.stderr
    texts = (DOCUMENTS[0] + DOCUMENTS[1]) * 3
    assert runs.shards_in(out) == reference.shard_files(reference.stream(texts), 20_000)
    assert not list((out / ".fineweb-shards" / "downloads").rglob("*.parquet"))
    fetched = sum(
        record.bytes_sent for record in hub.requests if record.is_content and record.path.endswith(".parquet")
    )
    assert fetched < 1.5 * sum(map(len, FILES.values()))


@pytest.mark.full
def test_download_instead_of_streaming(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Whole files, the same bytes; removed after use, or kept, and then not fetched again."""
    out = tmp_path / "out"
    downloads = out / ".fineweb-shards" / "downloads"
    done = build(hub, home, out, *SAMPLE, "--download")
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == EXPECTED
    assert not list(downloads.rglob("*.parquet"))
    kept = build(hub, home, out, *SAMPLE, "--download", "--keep-downloads", "--fresh", "--yes")
    assert kept.returncode == 0, kept.stderr
    assert sorted(path.name for path in downloads.rglob("*.parquet")) == ["000_00000.parquet", "001_00000.parquet"]
    (out / sorted(EXPECTED)[-2]).unlink()
    hub.clear_requests()
    again = build(hub, home, out, *SAMPLE, "--download", "--keep-downloads")
    assert again.returncode == 0, again.stderr
    assert runs.shards_in(out) == EXPECTED
    assert content_requests(hub) == []


@pytest.mark.full
def test_a_dataset_that_is_not_parquet(home: Path, tmp_path: Path) -> None:
    """Streamed by `datasets`, resumed by row number, through an interruption."""
    texts = [text for text in make_documents(200, seed=97) if text]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    card = b"---\nconfigs:\n- config_name: default\n  data_files: data.jsonl\n---\n"
    repository = Repository("me/lines", {"README.md": card, "data.jsonl": lines.encode()})
    expected = reference.shard_files(reference.stream(texts), 5000)
    out = tmp_path / "out"
    with StandInHub([repository]) as hub:
        words = ["--dataset", "me/lines", "--shard-tokens", "5k"]
        done = build(hub, home, out, *words)
        assert done.returncode == 0, done.stderr
        assert runs.shards_in(out) == expected
        for name in sorted(expected)[2:-1]:
            (out / name).unlink()
        again = build(hub, home, out, *words)
        missing = build(hub, home, tmp_path / "out2", *words, "--text-column", "body")
        assert again.returncode == 0, again.stderr
        assert runs.shards_in(out) == expected
        assert missing.returncode == 3
        assert "has no key 'body'; its keys are: text" in missing.stderr


def test_plan_of_a_dataset(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Files, bytes to fetch, documents and tokens, exact where that is cheap."""
    done = forked.run_command(
        "plan", *SAMPLE, "--out", tmp_path / "out", "--shard-tokens", "100M", **environment(hub, home)
    )
    assert done.returncode == 0, done.stderr
    tokens = len(reference.stream(DOCUMENTS[0] + DOCUMENTS[1]))
    assert f"{tokens:,} (exact, from token_count)" in done.stdout
    assert "2 files" in done.stdout
    assert "to fetch" in done.stdout
    assert f"documents  {2 * ROW_GROUPS * 4:,}" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.promise("one writer per folder")
def test_a_held_folder_is_refused_before_the_hub_is_asked(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Exit code 6, and not one request; a plan takes no lock, but says so."""
    out = tmp_path / "out"
    with FolderLock(out):
        refused = build(hub, home, out, *SAMPLE)
        assert refused.returncode == 6, refused.stderr
        assert hub.requests == []
        plan = forked.run_command("plan", *SAMPLE, "--out", out, *FLAGS, **environment(hub, home))
    assert plan.returncode == 0, plan.stderr
    assert "build      a build is running in this folder" in plan.stdout


@pytest.mark.full
def test_plan_counts_the_bytes_up_to_max_tokens(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """To fetch, in whole batches, and to write; what is an estimate says so; no bar of a client's, even if one is asked
    for."""
    words = ["--max-tokens", "30k", "--out", tmp_path / "out", *FLAGS]
    variables = environment(hub, home, HF_HUB_DISABLE_PROGRESS_BARS="0")
    done = runs.run_command("plan", *SAMPLE, *words, **variables)
    assert done.returncode == 0, done.stderr
    size = sum(map(len, FILES.values()))
    share = 30_000 / len(reference.stream(DOCUMENTS[0] + DOCUMENTS[1]))
    told = re.search(rf"{show_bytes(size)}, about ([0-9.]+) kB of it to fetch", done.stdout)
    assert told
    assert size * share <= 1000 * float(told[1]) <= 1.2 * size * share
    assert "disk       60.0 kB needed" in done.stdout
    assert "build      would start from the beginning" in done.stdout
    assert done.stderr == ""


@pytest.mark.full
@pytest.mark.promise("network faults are survived")
def test_leaving_after_a_part_is_clean(hub: StandInHub, home: Path, tmp_path: Path, tries: Tries) -> None:
    """No abort and no hang at exit with files half read (arrow#45214)."""
    for number in tries(1, 20):
        words = [*SAMPLE, "--max-tokens", "30k", "--workers", "2"]
        done = build_with_workers(hub, home, tmp_path / str(number), *words)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "terminate" not in done.stderr


@pytest.mark.full
def test_a_file_on_the_hub_that_is_no_parquet(home: Path, tmp_path: Path) -> None:
    """Named, or left out with --on-bad-file skip."""
    names = sorted(FILES)
    with StandInHub([Repository(REPO, {names[0]: FILES[names[0]], names[1]: b"PAR1 garbage PAR1"})]) as hub:
        done = build(hub, home, tmp_path / "out", *SAMPLE)
        skipped = build(hub, home, tmp_path / "out", *SAMPLE, "--on-bad-file", "skip")
        assert done.returncode == 3, done.stderr
        assert names[1] in done.stderr
        assert "Traceback" not in done.stderr
        assert skipped.returncode == 0, skipped.stderr
    assert runs.shards_in(tmp_path / "out") == reference.shard_files(reference.stream(DOCUMENTS[0]), 20_000)
