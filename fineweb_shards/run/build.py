"""`build`: the run itself. Reads top to bottom like the picture in docs/architecture.md:

source ──► executor ──► stitcher ──► packer ──► shard writer ──► manifest
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fineweb_shards.errors import ChangedError, Interrupted, ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import Executor
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.executors.local.worker import WorkerSpec
from fineweb_shards.layouts.numbering import choose_digits
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.report.closing import closing_lines
from fineweb_shards.report.page import write_report
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job, make_job, output_spec, pinned_commit
from fineweb_shards.run.plan import check_disk, make_plan
from fineweb_shards.run.plan_text import short_lines
from fineweb_shards.sources.changed_files import check_same_files
from fineweb_shards.sources.files import files_to_json
from fineweb_shards.sources.hub.environment import check_addresses
from fineweb_shards.store.changed_settings import check_settings, check_vocabulary
from fineweb_shards.store.fresh import holds_shards, refuse_untracked_shards, start_over
from fineweb_shards.store.leftovers import tidy_finished
from fineweb_shards.store.lost_files import trim_to_whole_files
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.manifest_file import load_manifest
from fineweb_shards.store.output import Output, open_folder
from fineweb_shards.store.quarantine import check_batch_bytes, describe, write_quarantine
from fineweb_shards.store.token_limit import move_limit
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.stitcher import stitch
from fineweb_shards.system.disk import Disk
from fineweb_shards.system.durable import FolderLock
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.tokenizers.encoder import make_mender
from fineweb_shards.types import EncodedBlock, Quarantined, ShardSlice, TokenBlock
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.estimate import Total
from fineweb_shards.watching.heartbeat import invoke
from fineweb_shards.watching.history import load_history
from fineweb_shards.watching.log import EventLog
from fineweb_shards.watching.monitor import Monitor, Page
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_record import RunRecord
from fineweb_shards.watching.screen import Screen


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a build ended."""

    manifest: Manifest
    new_shards: int  # or longer ones, where a file grows
    new_tokens: int
    seconds: float
    run: RunRecord | None = None  # None: there was nothing to do


@contextlib.contextmanager
def held_job(config: Config, *, fresh: bool, observer: Observer) -> Iterator[Job]:
    """The job, with its folder held. The hub is only asked once the folder is ours; local files are found
    before, so that a misspelt name leaves no folder behind."""
    folder = output_spec(config).folder
    load_manifest(folder)  # a folder of another program is refused before anything is put into it
    if config.dataset:
        check_addresses()
        with FolderLock(folder):
            yield make_job(config, commit=None if fresh else pinned_commit(config), observer=observer)
        return
    job = make_job(config)
    with FolderLock(folder):
        yield job


def build(
    job: Job, *, fresh: bool, same_source: bool, screen: Screen, command: str, yes: bool = False
) -> Outcome:
    """Make the shards, or the rest of them, in a folder that is held. `command` is how to go on after an
    interruption; `yes`: nobody needs to be asked about --fresh."""
    if fresh:
        start_over(job.folder, job.layout, screen.complain, yes=yes)
    manifest = open_manifest(job, same_source=same_source)
    if manifest.complete:
        tidy_finished(job.folder, manifest)
        return Outcome(manifest, 0, 0, 0.0)
    log = EventLog(job.folder)
    with log_start_and_end(log, job):
        return build_rest(job, manifest, log, screen, command)


def build_rest(job: Job, manifest: Manifest, log: EventLog, screen: Screen, command: str) -> Outcome:
    """From where the manifest ends."""
    begin = time.monotonic()
    spec = WorkerSpec(job.source, job.engine.name, job.layout.eot_first, job.config.seed)
    guard = MemoryGuard(job.budget.worker_bytes)
    history = load_history(job.folder)
    history.begin_run(manifest.tokens, job.budget.memory_bytes)
    progress = Progress(log, screen, history, finished=manifest.shards)
    job = replace(job, source=job.source.reopened(progress))
    workers, window_bytes = job.budget.workers, job.budget.window_bytes
    executor = LocalExecutor(spec, workers, window_bytes, guard, manifest.quarantined, progress)
    page = Page(partial(write_report, job.folder), partial(closing_lines, job.folder))
    remote = job.commit is not None
    with Monitor(job.output, progress, executor, invoke(command), page, is_remote=remote):
        with executor:
            # Workers take a second or two to load, in which the plan is made.
            manifest = tell_plan(job, manifest, progress)
            result = run(job, manifest, executor, progress)
        seconds = time.monotonic() - begin
        if job.config.verify and result.shards != manifest.shards:
            progress.verifying = True
            check_folder(job.folder, screen.complain, progress.verify_shard)
    new_tokens = result.tokens - manifest.tokens
    shards = show_number_of(result.shard_count, "shard")
    log.write(Event("end", f"complete: {result.tokens:,} tokens in {shards}; "
                        f"{new_tokens:,} of them in {show_seconds(seconds)}, "
                        f"peak memory {show_bytes(executor.peak_bytes)}"))  # fmt: skip
    made = len({record.name for record in {*result.shards} - {*manifest.shards}})
    return Outcome(result, made, new_tokens, seconds, history.runs[-1])


def tell_plan(job: Job, manifest: Manifest, progress: Progress) -> Manifest:
    """Look at what is still to do, say it, and refuse what the disk can't hold. A manifest that is new is
    told how long the numbers in names have to be."""
    plan = make_plan(job, trial_seconds=0, start=manifest.end, done_tokens=manifest.tokens)
    lines = short_lines(plan)
    if manifest.shards:
        finished = f"{show_number_of(manifest.shard_count, 'shard')}, {show_count(manifest.tokens)} tokens"
        lines.append(f"{'resuming':<10} finished are {finished}")
    for line in lines:
        progress.tell(Event("plan", line))
    check_disk(plan, manifest.tokens)
    total = Total(plan.extent.tokens, exact=plan.extent.exact, limit=job.config.max_tokens)
    progress.expect(total, job.source.share_before)
    extent = plan.extent
    digits = choose_digits(job.layout, job.config.shard_tokens, extent.tokens, exact=extent.exact)
    if manifest.shards or manifest.digits:
        if extent.exact and extent.tokens:
            manifest.numbering.check_width("train", extent.tokens - 1)
        return manifest
    return replace(manifest, digits=digits)


@contextlib.contextmanager
def log_start_and_end(log: EventLog, job: Job) -> Iterator[None]:
    """The log's first line, and its last if the run does not come to its end."""
    versions = ", ".join(f"{name} {version}" for name, version in job.versions().items())
    settings = ", ".join(f"{name}={value!r}" for name, value in job.config.non_default_settings().items())
    log.write(Event("start", f"process {os.getpid()}: {versions}; {settings}"))
    try:
        yield
    except Interrupted as stop:
        log.write(Event("end", f"{stop.message} Everything finished is kept"))
        raise
    except ShardError as error:
        log.write(Event("end", f"stopped with exit code {error.exit_code}: {error.message}"))
        raise
    except BaseException as error:
        log.write(Event("end", f"stopped by a mistake of this program: {type(error).__name__}: {error}"))
        raise


def run(job: Job, manifest: Manifest, executor: Executor, progress: Progress) -> Manifest:
    """All stages, from the manifest's cursor to the end of the stream."""
    disk = Disk(job.folder, job.config.max_outage, progress)
    disk.attempt(lambda: open_folder(job.folder, manifest))
    start = manifest.end
    limit = job.config.max_tokens
    packer = Packer(
        job.config.shard_tokens,
        split_rule=job.output.split_rule,
        one_file=job.layout.one_file,
        eot_first=job.layout.eot_first,
        done=manifest.done,
        skip_tokens=start.skip_tokens,
        max_tokens=None if limit is None else limit - manifest.tokens,
    )
    lost = list(manifest.quarantined)
    encoded = report_problems(executor.encode(job.source.batches(start)), job, lost, disk, progress)
    slices = pack(packer, stitch(encoded, partial(make_mender, job.vocabulary), start))
    return write_shards(job, manifest, slices, RunTotals(executor, lost, manifest, progress), disk, progress)


def report_problems(
    blocks: Iterable[EncodedBlock], job: Job, lost: list[Quarantined], disk: Disk, progress: Progress
) -> Iterator[EncodedBlock]:
    """Pass blocks on; tell what was wrong in their input, and collect what had to be left out."""
    names = [file.name for file in job.source.files]
    for block in blocks:
        for problem in block.problems:
            progress.tell(Event("note", f"note: {problem}"))
        for document in block.quarantined:
            lost.append(document)
            progress.tell(Event("quarantine", f"quarantined: {describe(document, names)}"))
        if block.quarantined:
            disk.attempt(lambda: write_quarantine(job.folder, lost, names))
        yield block


def pack(packer: Packer, blocks: Iterable[TokenBlock]) -> Iterator[ShardSlice]:
    """The stream in slices of shards, up to its end or to --max-tokens."""
    if packer.ended:
        return
    for block in blocks:
        yield from packer.pack(block)
        if packer.ended:
            return


class RunTotals:
    """What the manifest says about the work itself: time without waits, memory, documents left out."""

    def __init__(
        self, executor: Executor, lost: list[Quarantined], before: Manifest, progress: Progress
    ) -> None:
        self._progress = progress
        self._executor = executor
        self._lost = lost
        self._before = before
        self._began = time.monotonic()

    def add_to(self, manifest: Manifest) -> Manifest:
        """The manifest with the account up to now."""
        seconds = time.monotonic() - self._began - self._progress.waited_seconds
        return replace(
            manifest,
            quarantined=tuple(self._lost),
            seconds=self._before.seconds + max(0.0, seconds),
            peak_memory_bytes=max(self._before.peak_memory_bytes, self._executor.peak_bytes),
        )


def write_shards(
    job: Job,
    manifest: Manifest,
    slices: Iterator[ShardSlice],
    run_totals: RunTotals,
    disk: Disk,
    progress: Progress,
) -> Manifest:
    """Write slices to shards and enter each finished one in the manifest."""
    begins_shard = True
    size_bytes = job.output.shard_format.size_bytes
    with Output(job.output, manifest, disk, run_totals.add_to) as output:
        for part in slices:
            if begins_shard:  # not before something comes: the last shard may have been the last
                left = progress.expected_left()
                wait_for_room(disk, left, job.config.shard_tokens, size_bytes)
            begins_shard = part.checkpoint
            known = len(output.manifest.shards)
            progress.advance(len(part.tokens), known, part.end)
            output.add(part)
            if part.checkpoint:
                progress.finish_shards(output.manifest.shards[known:])
                job.source.release_before(part.end.file)
        known = len(output.manifest.shards)
        manifest = output.finish()
    progress.finish_shards(manifest.shards[known:])
    job.source.release_before(len(job.source.files))
    return manifest


def wait_for_room(disk: Disk, left: int | None, shard_tokens: int, size_bytes: Callable[[int], int]) -> None:
    """Room for the next shard. Of a stream of unknown length it may be tiny: then the disk will tell."""
    if left is not None:
        disk.wait_for(size_bytes(min(left, shard_tokens)))


def open_manifest(job: Job, *, same_source: bool) -> Manifest:
    """The folder's manifest, checked against this job, or a new one. Where nothing is finished, nothing can
    become wrong by another setting."""
    manifest = load_manifest(job.folder)
    settings, files = job.config.fingerprint(), files_to_json(job.source.files)
    if manifest is None:
        refuse_untracked_shards(job.folder, job.layout, set())
        return Manifest(settings, files, job.versions(), job.commit, vocabulary=job.vocabulary)
    try:
        settings_now = {**settings, "max_tokens": manifest.settings["max_tokens"]}
        check_settings(manifest, settings_now, Config().fingerprint())
        check_vocabulary(manifest, job.vocabulary)
        check_same_files(job.source.files, manifest.files, trust_times=same_source)
        check_batch_bytes(manifest.quarantined, job.config.batch_bytes)
    except ChangedError:
        if holds_shards(job.folder, manifest):
            raise
        refuse_untracked_shards(job.folder, job.layout, set())
        return Manifest(settings, files, job.versions(), job.commit, vocabulary=job.vocabulary)
    # First: what a lost file has made unknown is still there, and can't be made shorter.
    moved = move_limit(manifest, job.config.max_tokens, job.folder)
    return replace(trim_to_whole_files(moved, job.folder), versions=job.versions())
