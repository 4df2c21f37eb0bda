"""`build`: the run itself. Reads top to bottom like the picture in docs/architecture.md:

source ──► executor ──► stitcher ──► packer ──► shard writer ──► ledger
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fineweb_shards.durable import WORK_FOLDER, FolderLock, output_error
from fineweb_shards.errors import OutputError
from fineweb_shards.executors.local import LocalExecutor
from fineweb_shards.executors.worker import WorkerSpec
from fineweb_shards.job import Job
from fineweb_shards.layouts.base import Layout
from fineweb_shards.manifest import FILE_NAME, Manifest, check_settings, load_manifest, trim
from fineweb_shards.output import Output
from fineweb_shards.packer import Packer
from fineweb_shards.plan import check_disk, make_plan
from fineweb_shards.plan_text import short_lines
from fineweb_shards.progress import Progress
from fineweb_shards.sources.files import check_same_files, files_to_json
from fineweb_shards.stitcher import stitch
from fineweb_shards.tokenizers.encoder import make_mender
from fineweb_shards.types import EncodedBlock, ShardSlice, TokenBlock
from fineweb_shards.units import show_count

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a build ended."""

    manifest: Manifest
    new_shards: int
    new_tokens: int
    seconds: float


def build(job: Job, *, fresh: bool, same_source: bool, say: Say) -> Outcome:
    """Make the shards, or the rest of them."""
    with FolderLock(job.folder):
        if fresh:
            delete_output(job.folder, job.layout, say)
        manifest = open_ledger(job, same_source=same_source)
        if manifest.complete:
            return Outcome(manifest, 0, 0, 0.0)
        begin = time.monotonic()
        spec = WorkerSpec(job.source, job.engine.name, job.layout.eot_first, job.config.seed)
        # Workers take a second or two to load, in which the plan is made.
        with LocalExecutor(spec, job.budget.workers, job.budget.window_bytes) as executor:
            plan = make_plan(job, trial_seconds=0, start=manifest.end)
            for line in short_lines(plan):
                say(line)
            if manifest.shards:
                finished = f"{len(manifest.shards):,} shards, {show_count(manifest.tokens)} tokens"
                say(f"{'resuming':<10} {finished} are finished")
            check_disk(plan, manifest.tokens)
            with Progress(plan.extent.tokens, manifest.tokens) as progress:
                result = run(job, manifest, executor, progress)
        return Outcome(
            result,
            len(result.shards) - len(manifest.shards),
            result.tokens - manifest.tokens,
            time.monotonic() - begin,
        )


def run(job: Job, manifest: Manifest, executor: LocalExecutor, progress: Progress) -> Manifest:
    """All stages, from the ledger's cursor to the end of the stream."""
    manifest.save(job.folder)  # first of all: from now on the folder is ours
    start = manifest.end
    limit = job.config.max_tokens
    packer = Packer(
        job.config.shard_tokens,
        split=job.output.split,
        one_file=job.layout.one_file,
        eot_first=job.layout.eot_first,
        done=manifest.done,
        skip_tokens=start.skip_tokens,
        max_tokens=None if limit is None else limit - manifest.tokens,
    )
    executor.tell_waits_to(progress.show_waiting)
    job.source.tell_waits_to(progress.show_waiting)
    encoded = executor.encode(job.source.batches(start), progress.say)
    blocks = stitch(report_problems(encoded, progress.say), make_mender, start)
    return write_shards(job, manifest, pack(packer, blocks), progress)


def report_problems(blocks: Iterable[EncodedBlock], say: Say) -> Iterator[EncodedBlock]:
    """Pass blocks on; say what was wrong in their input."""
    for block in blocks:
        for problem in block.problems:
            say(f"note: {problem}")
        yield block


def pack(packer: Packer, blocks: Iterable[TokenBlock]) -> Iterator[ShardSlice]:
    """The stream in slices of shards, up to its end or to --max-tokens."""
    if packer.ended:
        return
    for block in blocks:
        yield from packer.pack(block)
        if packer.ended:
            return


def write_shards(job: Job, manifest: Manifest, slices: Iterator[ShardSlice], progress: Progress) -> Manifest:
    """Write slices to shards and enter each finished one in the ledger."""
    with Output(job.output, manifest) as output:
        for part in slices:
            progress.advance(len(part.tokens), len(output.manifest.shards))
            output.add(part)
            if part.checkpoint:
                job.source.release_before(part.end.file)
        manifest = output.finish()
    job.source.release_before(len(job.source.files))
    return manifest


def open_ledger(job: Job, *, same_source: bool) -> Manifest:
    """The folder's manifest, checked against this job, or a new one."""
    manifest = load_manifest(job.folder)
    settings, files = job.config.fingerprint(), files_to_json(job.source.files)
    if manifest is None:
        check_no_strangers(job.folder, job.layout)
        return Manifest(settings, files, job.versions(), job.commit)
    check_settings(manifest, settings)
    check_same_files(job.source.files, manifest.files, trust_times=same_source)
    return replace(trim(manifest, job.folder), versions=job.versions())


def check_no_strangers(folder: Path, layout: Layout) -> None:
    """Refuse a folder with shards that no ledger knows."""
    strangers = sorted(path.name for path in folder.iterdir() if layout.owns(path.name))
    if strangers:
        raise OutputError(
            f"{folder}: {len(strangers)} shards are here ({strangers[0]} …) but no {FILE_NAME}.",
            "Choose another --out, or delete them with --fresh.",
        )


def delete_output(folder: Path, layout: Layout, say: Say) -> None:
    """--fresh: everything this program may have written into the folder, and nothing else."""
    doomed = [p for p in sorted(folder.iterdir()) if p.name == FILE_NAME or layout.owns(p.name)]
    if not doomed:
        return
    say(f"--fresh: deleting {len(doomed)} files in {folder}: {', '.join(p.name for p in doomed[:5])}"
        + (" …" if len(doomed) > 5 else ""))  # fmt: skip
    try:
        for path in doomed:
            path.unlink()
        for path in (folder / WORK_FOLDER).iterdir():
            if path.name != "lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise output_error(folder, error) from error
