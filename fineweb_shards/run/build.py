"""`build`: run all stages (docs/architecture.md):

source ──► executor ──► stitcher ──► mix ──► packer ──► output ──► manifest
              ▲                                           │
              └──── where tokens belong, what to seal ────┘

The executor runs processes on this machine, or tasks on a Ray cluster (`--executor`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from fineweb_shards.errors import ChangedError, InputError, Interrupted, QuarantineError, ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import Executor
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.layouts.base import choose_digits
from fineweb_shards.output.cleanup import refuse_planted_files, start_over, tidy_finished
from fineweb_shards.output.manifest import Manifest, load_manifest
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.report.page import closing_lines, write_report
from fineweb_shards.run import shuffle
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job, make_job, open_manifest, output_spec
from fineweb_shards.run.output_text import empty_part_error, training_error
from fineweb_shards.run.plan import make_plan, split_error
from fineweb_shards.run.plan_text import resume_text, short_lines
from fineweb_shards.run.resources import check_needs
from fineweb_shards.run.stream import QUARANTINE_NAME, Running, write_stream
from fineweb_shards.storage.hub_environment import check_addresses
from fineweb_shards.system.machine import free_disk_bytes
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.types import Cursors, ShardRecord, ShardSlice
from fineweb_shards.units import show_bytes, show_number_of, show_seconds
from fineweb_shards.watching.monitor import Monitor
from fineweb_shards.watching.progress import Progress, Total
from fineweb_shards.watching.run_files import EventLog, RunRecord, current_invocation, load_history
from fineweb_shards.watching.screen import Screen, WaitsOnScreen
from fineweb_shards.writing.placement import Output, begin_output, make_packer


@dataclass(frozen=True, slots=True)
class Outcome:
    job: Job
    manifest: Manifest
    new_shards: int  # including a file that has grown
    new_tokens: int
    seconds: float  # of the run, including waits, excluding the verification of earlier shards
    run: RunRecord | None = None  # None: there was nothing to do

    def check(self) -> None:
        """Raise an error if the build finished, but documents had to be left out, or there were none."""
        manifest = self.manifest
        if manifest.quarantined:
            raise QuarantineError(
                f"{show_number_of(len(manifest.quarantined), 'document')} could not be encoded and had to be left out: "
                f"see {self.job.folder / WORK_FOLDER / QUARANTINE_NAME}."
            )
        if manifest.shards or manifest.totals["dropped_tokens"]:
            return
        if manifest.mix is not None and not manifest.mix.until_all:  # part 1 has the first turn
            raise InputError(
                f"Part 1 ({manifest.parts[0].label}) has no documents, so the mix ended at its first turn, "
                "without a shard.",
                "Leave it out, or choose --mix-until all-exhausted; start over with --fresh.",
            )
        hint = "Check what --input or --dataset names, --where, --sample and the limits; then start over with --fresh."
        raise InputError("The input has no documents, or none was kept, so there is no shard.", hint)


def build(
    config: Config,
    *,
    screen: Screen,
    command: str,
    fresh: bool = False,
    yes: bool = False,
    same_source: bool = False,
    reads_once: bool = False,
    when_done: Callable[[], None] = lambda: None,
) -> Outcome:
    """Make the shards, or the rest of them; `command` resumes the build. `reads_once`: the input can't be read again.
    `when_done` is called when everything is made and verified, before the end is reported."""
    observer = WaitsOnScreen(screen)
    opened = _locked_job(config, fresh=fresh, reads_once=reads_once, observer=observer)
    with opened as job, shuffle.lock_scratch(config):
        if fresh:
            start_over(job.output.store, job.layout, screen.warn, yes=yes)
        manifest = open_manifest(job, same_source=same_source)
        if manifest.complete:
            tidy_finished(job.output.store, manifest)
            shuffle.remove_piles(job.output, job.config, observer)
            when_done()
            return Outcome(job, manifest, 0, 0, 0.0)
        refuse_planted_files(job.output.store, index=manifest.index)
        job = job.with_engine(job.folder / WORK_FOLDER)
        manifest = replace(manifest, versions=job.versions(), vocabulary=job.vocabulary)
        log = EventLog(job.folder)
        versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
        values = {field.name: getattr(config, field.name) for field in fields(config)}
        settings = ", ".join(f"{name}={one!r}" for name, one in values.items() if one != getattr(Config, name))
        log.write(Event("start", f"process {os.getpid()}: {versions}; {settings}"))
        try:
            return _build_rest(job, manifest, log, screen, command, when_done)
        except BaseException as error:
            end = f"stopped by a bug in this program: {type(error).__name__}: {error}"
            if isinstance(error, Interrupted):
                end = f"{error.message} Everything finished is kept"
            elif isinstance(error, ShardError):
                end = f"stopped with exit code {error.exit_code}: {error.message}"
            log.write(Event("end", end))
            raise


@contextlib.contextmanager
def _locked_job(config: Config, *, fresh: bool, reads_once: bool, observer: Observer) -> Iterator[Job]:
    """Make the job and lock its store. Local files are found before the lock, so that a misspelt name leaves no folder;
    hubs, buckets and inputs that can be read only once are opened after it."""
    config.check()
    if config.executor == "ray":
        from fineweb_shards.executors.ray.cluster import check_reachable, find_address, load_ray

        load_ray()
        check_reachable(find_address(config.ray_address))
    store = config.open_store(observer)
    output_spec(config, store)
    if config.reads_hub:
        check_addresses()
    if not store.is_remote:
        begun = load_manifest(store.folder)  # refuses a folder of another program before anything is written
        if not config.reads_hub and not reads_once:
            job = make_job(config, store, begun=None if fresh else begun)
            with store.lock(observer):
                yield job
            return
    with store.lock(observer):
        begun = None if fresh else load_manifest(store.folder)
        if reads_once and begun is not None:
            raise ChangedError(
                f"{store.location} already has a build, and a build from an iterable can't be resumed, because it may "
                "yield other documents the second time.",
                "Choose another --out, or --fresh to delete that build and start over.",
            )
        yield make_job(config, store, begun=begun, observer=observer)


def _build_rest(
    job: Job, manifest: Manifest, log: EventLog, screen: Screen, command: str, when_done: Callable[[], None]
) -> Outcome:
    store = job.output.store
    history = load_history(job.folder)
    progress = Progress(log, screen, history, begun=manifest)
    if job.config.shuffle is not None:
        manifest = shuffle.find_piles(job.output, job.config, manifest, progress)
        progress.begin_pass(manifest)
    if not manifest.piled_tokens:  # the first pass begins: free the space of an earlier one
        shuffle.remove_piles(job.output, job.config, progress)
    history.begin_run(manifest.tokens + manifest.piled_tokens)
    store.observe(progress)
    executor = _make_executor(job, manifest, progress)
    job = replace(job, source=job.source.reopened(progress))
    invocation, page = current_invocation(command), (partial(write_report, store), partial(closing_lines, store))
    with Monitor(job.output, progress, executor, invocation, *page, is_remote=job.is_remote) as monitor:
        if job.config.shuffle is None:
            with executor:
                # Make the plan while the workers start, which takes a second or two.
                result = run(job, announce_plan(job, manifest, progress), executor, progress)
        else:

            def open_executor(one: Job) -> Executor:
                if one is not job:
                    monitor.replace_executor(_make_executor(one, manifest, progress), is_remote=False)
                return monitor.executor

            result = run_passes(job, manifest, open_executor, progress, lambda one: announce_plan(job, one, progress))
        if not job.config.verify:
            when_done()
        seconds = progress.seconds
        sealed = {*result.shards} - {*manifest.shards}
        if job.config.verify and result.shards != manifest.shards:
            progress.verifying = True
            check_folder(store, screen.warn, progress.verify_shard, sealed, alone=True)
        when_done()
    new_tokens = result.tokens - manifest.tokens
    shards = show_number_of(result.shard_count, "shard")
    log.write(Event("end", f"complete: {result.tokens:,} tokens in {shards}; "
                        f"{new_tokens:,} of them in {show_seconds(seconds)}, "
                        f"peak memory {show_bytes(monitor.peak_bytes)}"))  # fmt: skip
    made = len({record.name for record in sealed})
    return Outcome(job, result, made, new_tokens, seconds, history.runs[-1])


def run_passes(
    job: Job,
    manifest: Manifest,
    open_executor: Callable[[Job], Executor],
    progress: Progress,
    announce: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> Manifest:
    """Run a build with --shuffle. Each pass has its own executor; the plan is announced while the first one starts."""
    begun = manifest
    progress.begin_pass(manifest)
    if begun.pass_number == 1:
        with open_executor(job) as executor:
            manifest = shuffle.make_piles(job, announce(manifest), executor, progress)
        progress.begin_pass(manifest)
    second = shuffle.second_pass(job, manifest)
    with open_executor(second) as executor:
        if begun.pass_number == 2:
            manifest = announce(manifest)
        began = shuffle.tell_begin(manifest, progress)
        manifest = run(second, replace(manifest, seconds=begun.seconds), executor, progress)
        shuffle.tell_end(manifest, progress, began)
    shuffle.remove_piles(job.output, job.config, progress)
    return manifest


def _make_executor(job: Job, manifest: Manifest, observer: Observer) -> Executor:
    config, output, budget = job.config, job.output, job.budget
    engine = job.engine.name if job.engine else None
    trial = (job.trial.selftest_sha256, job.trial.mistaken) if job.trial else ("", "")
    spec = WorkerSpec(
        job.source, engine, config.seed, output.shard_format, output.store, config.max_outage, config.priority, *trial
    )
    if config.executor == "local":
        guard = MemoryGuard(budget.worker_bytes)
        return LocalExecutor(spec, budget.workers, budget.window_bytes, guard, manifest.quarantined, observer)
    # Imported here, because Ray is an optional dependency.
    from fineweb_shards.executors.ray.cluster import Cluster
    from fineweb_shards.executors.ray.executor import RayExecutor

    return RayExecutor(
        spec,
        # Unwritten tokens may fill half of the memory of a cluster that is started here.
        Cluster(config.ray_address, budget.workers, 2 * budget.window_bytes, observer),
        scratch=config.pile_folder.parent.parent if config.has_own_pile_folder else None,
        window_bytes=budget.window_bytes,
        most_tasks=config.workers,
        quarantined=manifest.quarantined,
        observer=observer,
    )


def announce_plan(job: Job, manifest: Manifest, progress: Progress) -> Manifest:
    """Make and show the plan of the rest, or refuse it; return the manifest with the number of digits in file names."""
    plan = make_plan(job, trial_seconds=0, start=manifest.input_end, done_tokens=manifest.tokens, piles=manifest.piles)
    if error := split_error(plan):
        raise error
    lines = short_lines(plan)
    if after := resume_text(manifest):
        lines.append(f"{'resuming':<10} {after}")
    for line in lines:
        progress.tell(Event("plan", line))
    extent = plan.extent
    check_needs(plan.disk_needs, job.output, exact=extent.exact)
    total = Total(extent.tokens, exact=extent.exact, limit=job.config.max_tokens)
    first_ends = manifest.mix is not None and not manifest.mix.until_all
    progress.expect(total, partial(job.source.share_before, first_ends=first_ends), plan.forecast.available)
    digits = choose_digits(job.layout, job.output.shard_tokens, extent.tokens, exact=extent.exact)
    if manifest.shards or manifest.digits:
        if extent.exact and extent.tokens:
            manifest.numbering.check_width("train", {"val": 0, "train": extent.tokens - 1})
        return manifest
    return replace(manifest, digits=digits)


def run(job: Job, manifest: Manifest, executor: Executor, progress: Progress) -> Manifest:
    """Run all stages, from the manifest's cursors to the end of the stream; return the final manifest."""
    running = Running(job, manifest, executor, progress)
    running.disk.attempt(lambda: begin_output(job.output.store, manifest))
    packer = make_packer(job.output, manifest, job.config.max_tokens)
    begins_shard = True

    def on_slice(part: ShardSlice) -> None:
        """Wait for space before each shard, and report progress."""
        nonlocal begins_shard
        if begins_shard and part.tokens:  # only here is another shard certain to be written
            # If the length of the stream is unknown, don't wait: the shard may be tiny, and writing also notices a
            # full disk.
            left = progress.expected_left()
            if left is not None:
                needed = job.output.shard_format.size_bytes(min(left, job.output.shard_tokens))
                if free_disk_bytes(job.folder) < needed:  # recording may free the space of finished input
                    output.settle()
                running.disk.wait_for(needed)
        begins_shard = part.checkpoint or (begins_shard and not part.tokens)
        progress.advance(part.tokens, output.segments, part.end, part.taken)

    def on_record(records: Sequence[ShardRecord], end: Cursors) -> None:
        progress.finish_shards(records)
        job.source.release_before(end)

    output = Output(job.output, manifest, executor, running.disk, add_totals=running.add_totals, on_record=on_record)
    opened = running.open_stream(manifest.end, manifest.taken, output.advance, lambda: packer.left_tokens)
    with output:
        with opened as sections:  # closed before the last files are sealed, to read no more
            write_stream(sections, packer, output, on_slice)
        # While the first segment is not full, no file has its final name.
        if error := training_error(job.output, job.config, packer.first_segment_tokens):
            raise empty_part_error(job.config.mix, progress.shares) or error
        manifest = output.finish()
    job.source.release_before(job.source.ends)
    return manifest
