"""`build`: run all stages, as drawn in docs/architecture.md:

source ──► executor ──► stitcher ──► mix ──► packer ──► output ──► manifest
              ▲                                           │
              └──── where tokens belong, what to seal ────┘

The executor is processes on this machine, or tasks on a Ray cluster (`--executor`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from fineweb_shards.errors import InputError, Interrupted, QuarantineError, ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import Executor, Lane, choose_first
from fineweb_shards.executors.encode_batch import WorkerSpec
from fineweb_shards.executors.local.executor import LocalExecutor
from fineweb_shards.layouts.base import choose_digits
from fineweb_shards.reading.verify import check_folder
from fineweb_shards.report.page import closing_lines, write_report
from fineweb_shards.run.config import DEFAULT_SHARD_TOKENS, Config
from fineweb_shards.run.job import Job, make_job, open_manifest, output_spec
from fineweb_shards.run.output_text import training_error
from fineweb_shards.run.plan import check_disk, make_plan, short_lines, split_error
from fineweb_shards.storage.hub_environment import check_addresses
from fineweb_shards.store.cleanup import refuse_planted_files, start_over, tidy_finished
from fineweb_shards.store.manifest import Manifest, load_manifest
from fineweb_shards.stream.length_limits import leave_out
from fineweb_shards.stream.mix import Mixer, mix
from fineweb_shards.stream.packer import Packer
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.stitcher import add_cursors, mend_seams
from fineweb_shards.system.durable import write_file
from fineweb_shards.system.memory_guard import MemoryGuard
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.system.retry import Disk
from fineweb_shards.tokenizers.encoder import make_mender
from fineweb_shards.types import Cursors, EncodedBlock, Quarantined, ShardRecord, ShardSlice, TokenBlock
from fineweb_shards.units import show_bytes, show_count, show_number_of, show_seconds
from fineweb_shards.watching.monitor import Monitor, StartObserver
from fineweb_shards.watching.progress import Progress, Total
from fineweb_shards.watching.run_files import EventLog, RunRecord, current_invocation, load_history
from fineweb_shards.watching.screen import Screen, WaitsOnScreen
from fineweb_shards.writing.placement import Output, begin_output, make_packer

QUARANTINE_NAME = "quarantine.jsonl"  # in the work folder
# Memory of a Ray cluster that a run starts on this machine, for each byte of text that may be in flight: tokens that
# are not written yet may fill half of it.
_STORE_COPIES = 2
# Of English, as if so many bytes of each part had been measured: files for validation make none of the tokens that a
# mix counts, and the first documents may all be left out.
_TOKENS_PER_BYTE, _GUESSED_BYTES = 0.2, 2**20
_EARLY_SHARE = 0.9  # of what was planned: a part that has less is told of
_FILTER_COUNTS = ("filtered_documents", "unknown_documents", "unsampled_documents", "short_documents", "long_documents")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a build."""

    job: Job
    manifest: Manifest
    new_shards: int  # including a file that has grown
    new_tokens: int
    seconds: float  # from the start of the run, with its waits, without verifying what earlier runs made
    run: RunRecord | None = None  # None: there was nothing to do

    def check(self) -> None:
        """Raise an error if the build went to its end, but documents were left out, or there were none."""
        manifest = self.manifest
        if manifest.quarantined:
            raise QuarantineError(
                f"{show_number_of(len(manifest.quarantined), 'document')} could not be encoded and had "
                f"to be left out: see {self.job.folder / WORK_FOLDER / QUARANTINE_NAME}."
            )
        if manifest.shards or manifest.totals["dropped_tokens"]:
            return
        if manifest.mix is not None and not manifest.mix.until_all:  # else the first part would have a token by now
            raise InputError(
                f"Part 1 ({manifest.parts[0].label}) gives no document, and the mix ends at its first turn: so there "
                "is no shard.",
                "Leave it out, or choose --mix-until all-exhausted; start over with --fresh.",
            )
        if any(manifest.totals.get(name) for name in _FILTER_COUNTS):
            raise InputError(
                "No document was kept, so there is no shard.",
                "The counts above say why: change --where, --sample or the limits, and run it again.",
            )
        raise InputError(
            "The input holds no document, so there is no shard.",
            "Check what --input or --dataset names, then start over with --fresh.",
        )


def build(
    config: Config,
    *,
    screen: Screen,
    command: str,
    fresh: bool = False,
    yes: bool = False,
    same_source: bool = False,
    when_done: Callable[[], None] = lambda: None,
) -> Outcome:
    """Make the shards, or the rest of them. `command` resumes the build after an interruption; with `yes`,
    --fresh deletes without asking; `when_done` is called when all is made and verified, before that is
    told."""
    observer = WaitsOnScreen(screen)
    with _locked_job(config, fresh=fresh, observer=observer, command=command) as job:
        if fresh:
            start_over(job.output.store, job.layout, screen.warn, yes=yes)
        manifest = open_manifest(job, same_source=same_source)
        if manifest.complete:
            tidy_finished(job.output.store, manifest)
            when_done()
            return Outcome(job, manifest, 0, 0, 0.0)
        refuse_planted_files(job.output.store, index=manifest.index)
        job = job.with_engine(job.folder / WORK_FOLDER)
        manifest = replace(manifest, versions=job.versions(), vocabulary=job.vocabulary)
        log = EventLog(job.folder)
        versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
        settings = ", ".join(f"{name}={value!r}" for name, value in config.non_default_settings().items())
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
def _locked_job(config: Config, *, fresh: bool, observer: Observer, command: str) -> Iterator[Job]:
    """Make the job and lock its store. A hub or a bucket is only asked once the store is locked; local files are found
    before, so that a misspelt name leaves no folder. `command` is for `status`."""
    config.check()
    if config.executor == "ray":  # can it be had?
        from fineweb_shards.executors.ray.cluster import check_reachable, find_address, load_ray

        load_ray()
        check_reachable(find_address(config.ray_address))
    store = config.open_store(observer)
    output_spec(config, store)
    if config.reads_hub:
        check_addresses()
    if not store.is_remote:
        begun = load_manifest(store.folder)  # refuses a folder of another program before anything is written
        if not config.reads_hub:
            job = make_job(config, store, begun=None if fresh else begun)
            with store.lock(observer):
                yield job
            return
    with store.lock(observer):
        begun = None if fresh else load_manifest(store.folder)
        done_tokens = begun.tokens if begun else 0
        invocation = current_invocation(command)
        shard_tokens = config.shard_tokens or DEFAULT_SHARD_TOKENS
        with StartObserver(observer, store.folder, invocation, done_tokens, shard_tokens) as start_observer:
            job = make_job(config, store, begun=begun, observer=start_observer)
        yield job


def _build_rest(
    job: Job, manifest: Manifest, log: EventLog, screen: Screen, command: str, when_done: Callable[[], None]
) -> Outcome:
    """Make the shards that are not in the manifest yet."""
    store = job.output.store
    history = load_history(job.folder)
    history.begin_run(manifest.tokens, job.budget.memory_bytes)
    progress = Progress(log, screen, history, finished=manifest.shards, parts=manifest.parts)
    store.observe(progress)
    executor = _make_executor(job, manifest, progress)
    job = replace(job, source=job.source.reopened(progress))
    invocation, page = current_invocation(command), (partial(write_report, store), partial(closing_lines, store))
    with Monitor(job.output, progress, executor, invocation, *page, is_remote=job.is_remote):
        with executor:
            # Workers take a second or two to start; meanwhile the plan is made.
            manifest = announce_plan(job, manifest, progress)
            result = run(job, manifest, executor, progress)
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
                        f"peak memory {show_bytes(executor.peak_bytes)}"))  # fmt: skip
    made = len({record.name for record in sealed})
    return Outcome(job, result, made, new_tokens, seconds, history.runs[-1])


def _make_executor(job: Job, manifest: Manifest, observer: Observer) -> Executor:
    """Return the executor of a job, which is not started yet."""
    spec = WorkerSpec(
        job.source,
        job.engine.name if job.engine else None,
        job.config.seed,
        job.output.shard_format,
        job.output.store,
        job.config.max_outage,
        job.config.priority,
        job.trial.selftest_sha256 if job.trial else "",
        job.trial.mistaken if job.trial else "",
    )
    budget = job.budget
    if job.config.executor == "local":
        guard = MemoryGuard(budget.worker_bytes)
        return LocalExecutor(spec, budget.workers, budget.window_bytes, guard, manifest.quarantined, observer)
    # Here, because Ray's part is an extra.
    from fineweb_shards.executors.ray.cluster import Cluster
    from fineweb_shards.executors.ray.executor import RayExecutor

    store_bytes = _STORE_COPIES * budget.window_bytes
    return RayExecutor(
        spec,
        Cluster(job.config.ray_address, budget.workers, store_bytes, observer),
        out=job.output.store.location,
        shared_folder=job.output.store.grows_in_place,
        window_bytes=budget.window_bytes,
        most_tasks=job.config.workers,
        quarantined=manifest.quarantined,
        observer=observer,
    )


def announce_plan(job: Job, manifest: Manifest, progress: Progress) -> Manifest:
    """Make and show the plan of what is still to do, and refuse what the disk can't hold. Return the manifest; in a new
    one, set the number of digits in the names of shards."""
    plan = make_plan(job, trial_seconds=0, start=manifest.end, done_tokens=manifest.tokens)
    if error := split_error(plan):
        raise error
    plan = replace(plan, fetched_bytes=progress.fetched_bytes)
    lines = short_lines(plan)
    if manifest.shards:
        finished = f"{show_number_of(manifest.shard_count, 'shard')}, {show_count(manifest.tokens)} tokens"
        lines.append(f"{'resuming':<10} after {finished}")
    for line in lines:
        progress.tell(Event("plan", line))
    check_disk(plan)
    extent = plan.extent
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
    disk = Disk(job.folder, job.config.max_outage, progress)
    disk.attempt(lambda: begin_output(job.output.store, manifest))
    before, starts = manifest, manifest.end
    packer = make_packer(job.output, manifest, job.config.max_tokens)
    quarantined = list(manifest.quarantined)

    def add_totals(manifest: Manifest) -> Manifest:
        """Add the figures about the work itself, up to now. The time is without waits."""
        return replace(
            manifest,
            quarantined=tuple(quarantined),
            seconds=before.seconds + progress.work_seconds,
            peak_memory_bytes=max(before.peak_memory_bytes, executor.peak_bytes),
        )

    def on_record(records: Sequence[ShardRecord], end: Cursors) -> None:
        progress.finish_shards(records)
        job.source.release_before(end)

    output = Output(job.output, manifest, executor, disk, add_totals=add_totals, on_record=on_record)
    mixer = _make_mixer(job, manifest)
    listings = [job.source.batches(starts)] if mixer is None else job.source.listings(starts)
    choose = choose_first if mixer is None else partial(choose_listing, mixer, manifest)
    # While no block comes, what is written is recorded all the same: an outage may last for long.
    encoding = executor.encode(listings, output.advance, lambda: packer.left_tokens, choose)
    with contextlib.closing(encoding) as encoded, output:
        told = report_problems(encoded, job, quarantined, disk, progress)
        mended = mend_seams(told, partial(make_mender, job.vocabulary))
        if any(job.length_limits):
            mended = leave_out(mended, job.length_limits, starts, eot_first=job.layout.eot_first)
        blocks = add_cursors(mended, starts)
        if mixer is None:
            sections: Iterator[Section] = map(Section.of, blocks)
        else:
            sections = mix(_note_ends(blocks, mixer, job, manifest, progress), mixer)
        _place_sections(job, sections, packer, output, disk, progress)
        encoding.close()  # nothing more is read while the last files are sealed
        # Of a segment that is not full no file has its name yet.
        if error := training_error(job.output, job.config, packer.first_segment_tokens):
            raise error
        manifest = output.finish()
    job.source.release_before(job.source.ends)
    return manifest


def report_problems(
    blocks: Iterable[EncodedBlock], job: Job, quarantined: list[Quarantined], disk: Disk, progress: Progress
) -> Iterator[EncodedBlock]:
    """Pass blocks on; report the problems of their input, and add documents left out to `quarantined`. They are also in
    `quarantine.jsonl`, one per line, for people: a resume reads the manifest. It is ASCII, so that `cat` is safe."""
    work = job.folder / WORK_FOLDER

    def file_name(document: Quarantined) -> str:
        return job.source.parts[document.part].file(document.file).name

    for block in blocks:
        for problem in block.problems:
            progress.tell(Event("note", f"note: {problem}"))
        for document in block.quarantined:
            quarantined.append(document)
            place = f"row {document.row:,}" if document.row is not None else f"position {document.position:,}"
            called = f" ({document.id})" if document.id else ""
            what = "a piece of a document" if document.piece_of_bytes else "a document"
            text = f"{what} of {document.text_bytes:,} bytes at {place}{called}: {document.cause}"
            progress.tell(Event("quarantine", f"quarantined: {file_name(document)}: {text}"))
        if block.quarantined:
            lines = [json.dumps({**asdict(one), "file": file_name(one)}) + "\n" for one in quarantined]
            disk.attempt(partial(write_file, work / QUARANTINE_NAME, "".join(lines).encode(), work))
        yield block


def _make_mixer(job: Job, manifest: Manifest) -> Mixer | None:
    """Return what mixes the parts, from where the manifest ends; None if they come one after the other."""
    if manifest.mix is None:
        return None
    taken, val_files = [one.tokens for one in manifest.taken], job.output.split_rule.val_files
    return Mixer(manifest.mix, manifest.end, taken, eot_first=job.layout.eot_first, val_files=val_files)


def choose_listing(mixer: Mixer, begun: Manifest, lanes: Mapping[int, Lane]) -> tuple[int, bool]:
    """Return the part of a mix of which batches are to be read next: the one that is waited for, if nothing of it is
    under way (True), else the one that will be the first to lack some (False). This decides how much has to be held,
    never the order."""
    awaited, known = mixer.next_part, mixer.known_tokens
    if awaited in lanes and not lanes[awaited].waiting_bytes:
        return awaited, True
    assert begun.mix is not None
    weights = begun.mix.weights

    def expected_key(part: int) -> float:
        lane, made = lanes[part], known[part] - begun.taken[part].tokens
        per_byte = (made + _TOKENS_PER_BYTE * _GUESSED_BYTES) / (lane.output_bytes + _GUESSED_BYTES)
        return (known[part] + lane.waiting_bytes * per_byte) / weights[part]

    return min(lanes, key=expected_key), False


def _note_ends(
    blocks: Iterable[TokenBlock], mixer: Mixer, job: Job, manifest: Manifest, progress: Progress
) -> Iterator[TokenBlock]:
    """Pass blocks on to a mix; where a part has no more documents, let its cursor say so. That is told, on the screen
    only if the plan had expected more: then the mix will be another one."""
    for block in blocks:
        if not block.ends_part:
            yield block
            continue
        tokens, planned = mixer.known_tokens[block.part], progress.planned_tokens[block.part : block.part + 1]
        text = f"part {block.part + 1} ({manifest.parts[block.part].label}) has run out after {tokens:,} tokens"
        is_early = any(one is not None and tokens < _EARLY_SHARE * one for one in planned)
        if is_early:
            text += f"; about {show_count(planned[0] or 0)} were planned"
        progress.tell(Event("part", text, loud=is_early))
        yield replace(block, end=job.source.ends[block.part])


def _place_sections(
    job: Job, sections: Iterable[Section], packer: Packer, output: Output, disk: Disk, progress: Progress
) -> None:
    """Cut the stream into slices of shards and have them written, up to its end or to --max-tokens."""
    begins_shard = True
    shard_tokens, size_bytes = job.output.shard_tokens, job.output.shard_format.size_bytes

    def watched(slices: Iterator[ShardSlice]) -> Iterator[ShardSlice]:
        """Pass slices on; wait for space before each shard, and note the progress."""
        nonlocal begins_shard
        for part in slices:
            if begins_shard and part.tokens:  # only here, where another shard is certain to be written
                # If the length of the stream is unknown, don't wait: the shard may be tiny, and a full disk is also
                # noticed in writing.
                left = progress.expected_left()
                if left is not None:
                    disk.wait_for(size_bytes(min(left, shard_tokens)))
            begins_shard = part.checkpoint or (begins_shard and not part.tokens)
            progress.advance(part.tokens, output.segments, part.end, part.taken)
            yield part

    if packer.ended:
        return
    for section in sections:
        output.add(section, watched(packer.pack(section)))
        if packer.ended:
            return
