"""Ways to run a build in a test: in this process, or as the command a user types."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fineweb_shards.events import Observer
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.layouts import get_layout
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.output.cleanup import tidy_finished
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import InputPart, Manifest, divide_settings
from fineweb_shards.run.build import run, run_passes
from fineweb_shards.run.config import DEFAULT_SHARD_TOKENS, Config
from fineweb_shards.run.export import export as export_shards
from fineweb_shards.run.export import make_export_job, open_export_source
from fineweb_shards.run.export_mix import make_mix_job
from fineweb_shards.run.job import Job, make_job, open_manifest
from fineweb_shards.run.shuffle import find_piles
from fineweb_shards.sources.source import Parts
from fineweb_shards.system.retry import Disk
from fineweb_shards.tokenizers import resolve_engine
from fineweb_shards.tokenizers.encoder import Encoder, TokenJoiner, make_mender
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine
from fineweb_shards.types import Counts, Cursor
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_files import EventLog
from tests.support import reference
from tests.support.doubles import AtOncePlane, InlineExecutor
from tests.support.stitching import stitch

START = (Cursor(0, 0),)  # of an input of one part
SEVERAL_COMMANDS = Path(__file__).parent / "several_commands.py"
CRASH_DRIVER = Path(__file__).parent.parent / "crashes" / "crash_every_point.py"


@cache
def encoder(engine: str = "auto", seed: int = 0, *, eot_first: bool = True) -> Encoder:
    """One encoder for all tests: loading it takes a second."""
    return Encoder(resolve_engine(engine)(), TiktokenEngine(), eot_first=eot_first, seed=seed)


def encoder_of(job: Job) -> Encoder | TokenJoiner:
    """What the workers of a job encode with."""
    if job.engine is None:
        return TokenJoiner(job.vocabulary, eot_first=job.layout.eot_first)
    return encoder(job.config.engine, eot_first=job.layout.eot_first)


def job_of(out: Path | str, *inputs: Path | str, **settings: Any) -> Job:
    """A job; without another setting, one whose first shard may be all there is, because that was said."""
    chosen = {"shard_tokens": DEFAULT_SHARD_TOKENS, **settings}
    config = Config(input=tuple(map(str, inputs)), out=str(out), **chosen)
    return make_job(config, config.open_store(Observer()))


def spec_of(source: Parts, engine: str = "tiktoken") -> WorkerSpec:
    """What workers need to know that only encode."""
    return WorkerSpec(source, engine, 0, ShardFormat(get_layout("build-nanogpt"), GPT2), FolderStore(Path()), 0)


def manifest_of(
    settings: dict[str, Any], files: list[dict[str, Any]], commit: str | None = None, **fields: Any
) -> Manifest:
    """The manifest of a folder whose input has one part; `settings` are a config's fingerprint."""
    common, own = divide_settings(settings)
    return Manifest(common, (InputPart(own, files, commit),), **{"versions": {}, **fields})


def build_inline(out: Path | str, *inputs: Path | str, **settings: Any) -> Manifest:
    """A build without worker processes; everything else is the real thing."""
    return build_job(job_of(out, *inputs, **settings))


def build_job(job: Job) -> Manifest:
    """The same for a job."""
    progress = Progress(EventLog(job.folder))
    store = job.output.store
    with store.lock(progress):
        manifest = open_manifest(job, same_source=False)
        if manifest.complete:
            tidy_finished(store, manifest)
            return manifest
        disk = Disk(job.folder, job.config.max_outage, progress)
        plane = AtOncePlane(store, job.output.shard_format, disk)
        encode = encoder_of(job)
        with contextlib.closing(plane):
            if job.config.shuffle is not None:
                manifest = find_piles(job.output, job.config, manifest, progress)
                return run_passes(
                    job, manifest, lambda one: InlineExecutor(one.source, encoder_of(one), plane), progress
                )
            return run(job, manifest, InlineExecutor(job.source, encode, plane), progress)


def encode_inline(*inputs: Path | str, **settings: Any) -> tuple[list[int], Counts]:
    """The token stream of an input and its counts, without a folder: nothing is written or synced."""
    job = job_of(Path("unused"), *inputs, **settings)
    executor = InlineExecutor(job.source, encoder_of(job))
    blocks = list(stitch(executor.encode([job.source.batches(START)]), partial(make_mender, GPT2), START))
    tokens = [token for block in blocks for token in np.asarray(block.tokens).tolist()]
    return tokens, sum((block.counts for block in blocks), Counts())


def export(source: Path, out: Path, **settings: Any) -> Manifest:
    """An export, as the command does it."""
    config, observer = Config(out=str(out), **settings), Observer()
    job = make_export_job(open_export_source(FolderStore(source)), config, observer)
    return export_shards(job, config, fresh=False, say=lambda _: None, observer=observer).manifest


def export_mix(out: Path, folders: Sequence[Path], parts: Sequence[dict[str, Any]], **settings: Any) -> Manifest:
    """An export of a mix, as the command does it; the parts have weights and epochs."""
    mixed = tuple({"input": (str(folder),), **part} for folder, part in zip(folders, parts, strict=True))
    config, observer = Config(out=str(out), parts=mixed, **settings), Observer()
    job = make_mix_job([open_export_source(FolderStore(folder)) for folder in folders], config, observer)
    return export_shards(job, config, fresh=False, say=lambda _: None, observer=observer).manifest


def shards_in(folder: Path) -> dict[str, bytes]:
    """Every shard in a folder: name to bytes."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}


def outputs_in(folder: Path) -> dict[str, bytes]:
    """Every file of any layout in a folder, and every index: name to bytes."""
    suffixes = (".npy", ".bin", ".idx", ".gz", ".ds", ".index", ".metadata")
    paths = [*folder.iterdir(), *(folder / "index").glob("*")]
    found = {path.relative_to(folder).as_posix(): path for path in paths if path.suffix in suffixes}
    return {name: found[name].read_bytes() for name in sorted(found)}


def decode(tokens: list[int]) -> str:
    """The text of a stream, EOT included."""
    return reference.encoding().decode(tokens)


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "fineweb_shards", *map(str, words)]


def run_command(
    *words: object, stdin: bytes | None = None, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`fineweb-shards …`, as a user would run it."""
    done = subprocess.run(
        command(*words),
        input=stdin if stdin is not None else b"",
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_commands(commands: list[list[str]], **environment: str) -> list[subprocess.CompletedProcess[str]]:
    """Several of them, one after the other, in one other process."""
    done = subprocess.run(
        [sys.executable, str(SEVERAL_COMMANDS)],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [
        subprocess.CompletedProcess(words, code, output, errors)
        for words, (code, output, errors) in zip(commands, json.loads(done.stdout), strict=True)
    ]


def forget_after(out: Path, records: int) -> None:
    """The folder as a crash leaves it that comes after so many records were in the manifest."""
    data = json.loads((out / "manifest.json").read_text())
    ends = [record["end"] for record in data["shards"]]
    while 0 < records < len(ends) and ends[records] == ends[records - 1]:
        records -= 1  # the records of a checkpoint come together
    data["shards"], data["complete"], data["totals"] = data["shards"][:records], False, {}
    write_manifest(out, data)


def write_manifest(out: Path, data: dict[str, Any]) -> None:
    """A manifest that was edited: without the checksum, as those of the first versions are."""
    data.pop("checksum", None)
    (out / "manifest.json").write_text(json.dumps(data))


def crash_everywhere(job: dict[str, object]) -> int:
    """How often it was killed and resumed."""
    done = subprocess.run(
        [sys.executable, str(CRASH_DRIVER)], input=json.dumps(job), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until something holds; return whether it does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.05)
    return holds()
