"""A mix of datasets of the hub, each in another format: whatever their lines do, it is that of a plain loop."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    forked,
    fourteen_files,
    layout_reference,
    mix_reference,
    reference,
    runs,
    shuffle_reference,
    text_datasets,
)
from tests.support.documents import make_documents
from tests.support.inputs import write_jsonl
from tests.support.layout_reference import Wanted
from tests.support.promises import Tries
from tests.support.standin_faults import (
    CutBody,
    Fault,
    FaultPlan,
    LastingFault,
    RandomFaults,
    RequestRecord,
    Reset,
    Slow,
    Stall,
    Status,
)
from tests.support.standin_hub import StandInHub
from tests.support.standin_repository import Content, Repository

SHARD_TOKENS = 20_000
IMPATIENT = {"HF_HUB_DOWNLOAD_TIMEOUT": "1"}
LINES_REPO, PACKED_REPO = "me/lines", "me/packed"
LINES_FILE, PACKED_FILES = "train.jsonl", ("0.jsonl.gz", "1.jsonl.gz")
# In the paths of each part's files.
PATHS = ("sample/10BT", LINES_FILE, ".jsonl.gz")
LAST_FILES = ("sample/10BT/003_00000.parquet", LINES_FILE, PACKED_FILES[1])
WEIGHTS, EPOCHS = (5, 3, 2), (1, 1, 2)
FAULTS: list[Fault] = [
    Reset(), Reset(0.5), CutBody(), CutBody(0.01), Slow(200_000), *map(Status, (500, 502, 503, 504)),
    Status(429, retry_after="0.5"),
]  # fmt: skip


@cache
def documents() -> list[list[str]]:
    """Those of each part: of parquet with small row groups, of JSON lines, and of compressed ones."""
    lines = [f"Line. {text}" for text in make_documents(220, seed=301) if text]
    packed = [f"Packed. {text}" for text in make_documents(70, seed=302) if text]
    return [[text for number in range(4) for text in fourteen_files.documents_of(number)], lines, packed]


@cache
def expected(until: str, seed: int | None = None) -> dict[str, bytes]:
    """By the plain loop, perhaps shuffled."""
    tokens = [[[reference.EOT, *reference.encode(text)] for text in part] for part in documents()]
    found = [*mix_reference.mix(tokens, WEIGHTS, until, EPOCHS)]
    found = found if seed is None else shuffle_reference.shuffled(found, seed)
    wanted = Wanted("build-nanogpt", SHARD_TOKENS)
    return layout_reference.files_of_tokens([document[1:] for _, document in found], wanted)


@cache
def contents(folder: Path) -> dict[str, dict[str, bytes]]:
    """The files of the other two datasets: one that is large enough to be read by ranges, and two that are read front
    to back."""
    folder.mkdir()
    _, lines, packed = documents()
    noise = "noise" * 1200
    halves = text_datasets.divide(packed, len(PACKED_FILES))
    return {
        LINES_REPO: {LINES_FILE: "".join(json.dumps({"noise": noise, "text": text}) + "\n" for text in lines).encode()},
        PACKED_REPO: {
            name: text_datasets.write_form(folder, "jsonl.gz", half)
            for name, half in zip(PACKED_FILES, halves, strict=True)
        },
    }


@pytest.fixture
def repositories(tmp_path: Path) -> list[Repository]:
    others = contents(tmp_path / "made")
    sample = fourteen_files.sample_repository(rows=2, files=4)
    return [sample, *(Repository(name, some) for name, some in others.items())]


@pytest.fixture
def hub(repositories: list[Repository]) -> Iterator[StandInHub]:
    with StandInHub(repositories) as hub:
        yield hub


def words_for(out: Path, *words: object, until: str = "all-exhausted") -> list[object]:
    datasets = (f"{fourteen_files.REPO} name=sample-10BT", LINES_REPO, PACKED_REPO)
    parts = [
        word
        for dataset, weight, epochs in zip(datasets, WEIGHTS, EPOCHS, strict=True)
        for word in ("--part", f"dataset={dataset} weight={weight} epochs={epochs}")
    ]
    flags = ("--shard-tokens", SHARD_TOKENS, "--batch-bytes", "16k", "--workers", 2, "--mix-until", until)
    return ["build", *parts, *flags, "--out", out, *words]


def has_shards(out: Path, count: int) -> bool:
    path = out / "manifest.json"
    return path.exists() and len(json.loads(path.read_text())["shards"]) >= count


def has_waited(out: Path) -> bool:
    path = out / ".fineweb-shards" / "log.txt"
    return path.exists() and "  wait       waiting for the network since " in path.read_text()


def random_faults(seed: int, budget: int) -> RandomFaults:
    return RandomFaults(FAULTS, seed, 0.6, budget)


@contextlib.contextmanager
def started(words: Sequence[object], environment: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A build in a process group of its own; whatever is left of it in the end is killed."""
    variables = {**os.environ, **environment}
    with subprocess.Popen(
        runs.command(*words), env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.promise("a mix is that of a plain loop", "network faults are survived")
@pytest.mark.parametrize("seed", [None, 9], ids=["in order", "shuffled"])
def test_faults_change_nothing(
    repositories: list[Repository], home: Path, tmp_path: Path, tries: Tries, seed: int | None
) -> None:
    """Resets, cut bodies, slow lines, 5xx and 429 in all three parts, streamed or downloaded, with and without a CDN,
    whichever way the mix ends."""
    for number in tries(1, 24):
        chooser, out = random.Random(number), tmp_path / str(number)
        until = ("all-exhausted", "first-exhausted")[number % 2]
        plans: list[FaultPlan] = [random_faults(number * 3 + part, 4) for part in range(len(PATHS))]
        for plan, path in zip(plans, PATHS, strict=True):
            plan.path_contains = path
        way: list[object] = chooser.choice([[], ["--download"]]) if number else []
        way += [] if seed is None else ["--shuffle", seed]
        with StandInHub(repositories, plans, cdn=number % 4 > 1) as hub:
            environment = fourteen_files.environment(hub, home, **IMPATIENT)
            done = forked.run_command(*words_for(out, *way, until=until), **environment)
        assert done.returncode == 0, (number, done.stderr)
        assert any(plan.injected for plan in plans)
        assert runs.shards_in(out) == expected(until, seed)


@pytest.mark.promise("a mix is that of a plain loop", "network faults are survived")
def test_a_part_that_stalls_is_waited_for(
    repositories: list[Repository], home: Path, tmp_path: Path, tries: Tries
) -> None:
    """Whichever part it is, from its beginning or from its middle on, while the others have their files ready:
    `status` and the log tell of the wait, and the order is what it would have been."""
    for number in tries(1, 6):
        out, part = tmp_path / str(number), (number + 1) % len(PATHS)
        stalled = LastingFault(Stall(), path_contains=PATHS[part], spared=(2, 2, 1)[part] - number % 2)
        plans: list[FaultPlan] = [stalled, random_faults(number, 6)] if number else [stalled]
        with StandInHub(repositories, plans) as hub:
            environment = fourteen_files.environment(hub, home, **IMPATIENT)
            with started(words_for(out), environment) as process:
                assert runs.wait_until(partial(has_waited, out))
                shown = runs.run_command("status", out) if tries.soak else None
                time.sleep(60 if tries.soak else 0)
                assert process.poll() is None
                stalled.active = False
                hub.release_stalls()
                _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert runs.shards_in(out) == expected("all-exhausted")
        assert shown is None or "waiting for the network since" in shown.stdout
        assert "the connection stays silent" in (out / ".fineweb-shards" / "log.txt").read_text()


@dataclass
class SilentEnd(LastingFault):
    """Silence on every range of a file from a position on, once a build has its plan."""

    log: Path = Path()
    position: int = 0

    def next_fault(self, request: RequestRecord) -> Fault | None:
        first = (request.range or "").removeprefix("bytes=").partition("-")[0]
        is_late = first.isdigit() and int(first) >= self.position
        return (
            super().next_fault(request) if is_late and self.log.exists() and "  plan " in self.log.read_text() else None
        )


@pytest.mark.full
@pytest.mark.parametrize("words", [["--mix-until", "first-exhausted"], ["--max-tokens", "4000"]])
def test_what_is_not_needed_is_not_waited_for(
    repositories: list[Repository], home: Path, tmp_path: Path, words: list[str]
) -> None:
    """What workers fetch ahead of a part that falls silent, if the mix ends before it."""
    out, (_, lines, _) = tmp_path / "out", documents()
    few, wanted = lines[:12], Wanted("build-nanogpt", 1000, max_tokens=4000 if "--max-tokens" in words else None)
    write_jsonl(tmp_path / "few.jsonl", few)
    plan = SilentEnd(Stall(), path_contains=LINES_FILE, log=out / ".fineweb-shards" / "log.txt", position=250_000)
    with StandInHub(repositories, [plan]) as hub:
        done = runs.run_command(
            "build", "--part", f"input={tmp_path}/few.jsonl weight=1", "--part", f"dataset={LINES_REPO} weight=1",
            "--out", out, "--shard-tokens", 1000, "--batch-bytes", "16k", "--workers", 2, *words,
            **fourteen_files.environment(hub, home),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tokens = [[[reference.EOT, *reference.encode(text)] for text in some] for some in (few, lines)]
    found = [document[1:] for _, document in mix_reference.mix(tokens, (1, 1), "first-exhausted")]
    assert runs.shards_in(out) == layout_reference.files_of_tokens(found, wanted)


@pytest.mark.promise("a mix is that of a plain loop", "kill -9 loses only the unfinished shard")
def test_killed_in_the_middle_it_resumes(
    home: Path, tmp_path: Path, tries: Tries, repositories: list[Repository]
) -> None:
    """`kill -9` of everything after some shards, with faults on the way: the rest has the same bytes, and what was
    pushed to all three datasets since then is not read."""
    for number in tries(1, 12):
        out, plan = tmp_path / str(number), random_faults(number, 8 * (number > 0))
        words = words_for(out, *(["--download"] if number % 2 else []))
        pushed = [Repository(one.repo_id, contents_of(one)) for one in repositories]
        with StandInHub(pushed, [plan], cdn=number % 3 == 1) as hub:
            environment = fourteen_files.environment(hub, home, **IMPATIENT)
            with started(words, environment) as process:
                shards = 1 + number % (len(expected("all-exhausted")) - 1)
                assert runs.wait_until(partial(has_shards, out, shards))
            for repository, name in zip(pushed, LAST_FILES, strict=True):
                repository.replace_file(name, b"pushed since")
            done = forked.run_command(*words, **environment)
        assert done.returncode == 0, done.stderr
        assert process.returncode == -signal.SIGKILL
        assert runs.shards_in(out) == expected("all-exhausted")
        assert text_datasets.left_in_downloads(out) == []


def contents_of(repository: Repository) -> dict[str, Content]:
    return {name: file.content for name, file in repository.commits[repository.head].items()}


@pytest.mark.promise("a changed source or setting is refused by name")
@pytest.mark.parametrize(
    "part", [pytest.param(number, marks=[pytest.mark.full] if number < 2 else []) for number in range(len(PATHS))]
)
def test_a_changed_part_is_refused_by_name(
    hub: StandInHub, repositories: list[Repository], home: Path, tmp_path: Path, part: int
) -> None:
    """Another revision, another weight or number of epochs, another file at the same commit: the message says which
    part or file, and nothing of it is written."""
    out, environment = tmp_path / "out", fourteen_files.environment(hub, home)
    assert forked.run_command(*words_for(out, "--max-tokens", "50k"), **environment).returncode == 0
    before, repository, name = runs.shards_in(out), repositories[part], LAST_FILES[part]

    def refuse(old: str, new: str) -> str:
        words = [str(word) for word in words_for(out)]
        place = [number for number, word in enumerate(words) if word == "--part"][part] + 1
        words[place] = words[place].replace(old, new) if old else words[place] + new
        refused = forked.run_command(*words, **environment)
        assert refused.returncode == 4, refused.stderr
        return refused.stderr

    label = ("HuggingFaceFW/fineweb-edu sample-10BT", LINES_REPO, PACKED_REPO)[part]
    assert "--weight was 5:3:2 when this folder was begun and is" in refuse(f"weight={WEIGHTS[part]}", "weight=7")
    changed = refuse(f"epochs={EPOCHS[part]}", "epochs=3")
    assert f"Part {part + 1} ({label}): --epochs was {EPOCHS[part]} when this folder was begun and is 3 now" in changed
    before_push = repository.head
    changed = refuse("", f" revision={repository.replace_file(name, b'another')}")
    assert f"Part {part + 1} ({label}): --revision was not set when this folder was begun and is" in changed
    repository.head = before_push
    repository.replace_file(name, b"another", new_commit=False)
    assert runs.shards_in(out) == before
    assert name in refuse("", "")
    known = {*before.items(), *expected("all-exhausted").items()}
    assert runs.shards_in(out).items() <= known  # up to the changed file


def test_a_file_of_several_epochs_is_downloaded_once(
    hub: StandInHub, repositories: list[Repository], home: Path, tmp_path: Path
) -> None:
    """It stays on the disk between them, and every file is deleted in the end."""
    out = tmp_path / "out"
    done = forked.run_command(*words_for(out, "--download"), **fourteen_files.environment(hub, home))
    assert done.returncode == 0, done.stderr
    assert runs.shards_in(out) == expected("all-exhausted")
    for path, repository in zip(PATHS, repositories, strict=True):
        for name, content in contents_of(repository).items():
            sent = sum(one.bytes_sent for one in hub.requests if one.is_content and f"/{name}" in one.path)
            assert path not in name or sent == len(bytes(content)), name
    assert text_datasets.left_in_downloads(out) == []


def test_a_dataset_that_is_two_parts_is_downloaded_for_both(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Of which one is far ahead of the other: what it has done with is still there for the other."""
    out, environment = tmp_path / "out", fourteen_files.environment(hub, home)
    words = ["--dataset", PACKED_REPO, "--weight", 9, "--dataset", PACKED_REPO, "--weight", 1]
    done = forked.run_command(
        "build", *words, "--mix-until", "all-exhausted", "--shard-tokens", 2000, "--batch-bytes", "4k", "--out", out,
        "--download", **environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tokens = [[reference.EOT, *reference.encode(text)] for text in documents()[2]]
    found = mix_reference.mix([tokens, tokens], (9, 1), "all-exhausted")
    wanted = Wanted("build-nanogpt", 2000)
    assert runs.shards_in(out) == layout_reference.files_of_tokens([document[1:] for _, document in found], wanted)
    assert text_datasets.left_in_downloads(out) == []


def test_a_plan_fetches_only_what_is_on_the_hub(hub: StandInHub, home: Path, tmp_path: Path) -> None:
    """Not the files of another part that are on this machine; and what is downloaded once, whatever its epochs."""
    (tmp_path / "a.txt").write_text("a local document\n" * 6_000)
    parts = (f"input={tmp_path}/a.txt separator=line weight=1", f"dataset={PACKED_REPO} weight=1 epochs=5")
    words = [word for part in parts for word in ("--part", part)]
    for more in ([], ["--download"]):
        done = forked.run_command(
            "plan", *words, "--mix-until", "all-exhausted", "--json", *more, "--out", tmp_path / "out",
            **fourteen_files.environment(hub, home),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        size = sum(len(bytes(content)) for content in contents_of(hub.repositories[PACKED_REPO]).values())
        assert 0 < json.loads(done.stdout)["fetched_bytes"] <= (size if more else 5 * size)
