"""The two passes of --shuffle (stream/shuffle.py): into piles, and from the piles into shards.

    first    source ──► … ──► mix ──► piles           second    piles ──► executor ──► packer ──► output

The second pass is a normal build whose source is the piles, and its cursors are positions in them. A pile is deleted
once everything from it is recorded. If one is missing or damaged, the first pass is repeated and makes the same piles;
finished shards are kept. On a cluster that writes to a bucket the piles are there, too, until the end of the build.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from fineweb_shards.errors import ChangedError, ShardError
from fineweb_shards.events import Event, Observer
from fineweb_shards.executors.base import Executor
from fineweb_shards.formats.base import PileSettings, ReadSettings
from fineweb_shards.formats.piles import FOLDER, OBJECTS, digest_of, list_path, pile_errors, pile_name
from fineweb_shards.formats.registry import PILES
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.pile_objects import fetch_list, find_lost_object, remove_objects
from fineweb_shards.output.shard_files import sizes_of
from fineweb_shards.output.store import OutputSpec
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job
from fineweb_shards.run.stream import Running, write_stream
from fineweb_shards.sources.source import Parts, open_source
from fineweb_shards.storage.place import SCRATCH, InputFile
from fineweb_shards.stream.section import Section
from fineweb_shards.stream.shuffle import MOST_IN_BUCKET, MOST_PILES, PileState
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.stream.stitcher import add_cursors
from fineweb_shards.system.durable import FolderLock, output_errors, write_file
from fineweb_shards.system.own_files import WORK_FOLDER, is_plain_file, read_file, refuse_linked_folders
from fineweb_shards.tokenizers.encoder import TokenJoiner
from fineweb_shards.types import Cursor, Cursors, Taken
from fineweb_shards.units import show_number_of, show_seconds
from fineweb_shards.watching.progress import Progress
from fineweb_shards.watching.run_files import PASS_NAMES
from fineweb_shards.writing.piles import PileOutput, make_pile_packer
from fineweb_shards.writing.placement import begin_output

PILE_BYTES = 64 * 2**20  # so that the page cache holds a pile while its documents are read one by one
_FETCHED_BYTES = 2 * PILE_BYTES  # of a batch in a bucket: a whole pile, unless it is much larger than planned
# Settings of the input that do not apply to piles.
_OF_INPUT = (
    "input", "dataset", "name", "split", "revision", "parts", "weight", "epochs", "mix_until", "text_column",
    "template", "where", "sample", "sample_seed", "min_tokens", "max_document_tokens", "max_tokens", "engine",
)  # fmt: skip


def choose_count(expected_bytes: int | None, most: int = MOST_PILES) -> int:
    """Return the number of piles for this many bytes of tokens; None: unknown. It does not affect the order."""
    if expected_bytes is None:
        return most // 2
    return min(most, max(1, -(-expected_bytes // PILE_BYTES)))


def find_piles(
    spec: OutputSpec, config: Config, manifest: Manifest, observer: Observer, *, fetches_list: bool = True
) -> Manifest:
    """Check the piles and return the manifest; if a pile that is still needed is missing, with a first pass that begins
    again. If the piles are in a bucket, also fetch their list. Raise ChangedError if they are somewhere else."""
    state = manifest.piles
    if state is None:
        return manifest
    if state.in_bucket != config.has_piles_in_bucket:
        place, executor = ("in the bucket", "ray") if state.in_bucket else ("on the machine that began it", "local")
        raise ChangedError(
            f"{spec.store.location}: the piles of this shuffle are {place}, because its executor is {executor}.",
            f"Resume with --executor {executor}, or start over with --fresh.",
        )
    lost: Path | str | None
    if state.in_bucket:
        lost = find_lost_object(spec.store, state, spec.shard_format)
        path = list_path(config.pile_folder)
        if lost is None and fetches_list and not fetch_list(spec.store, state, path):
            lost = path
    else:
        lost = _find_lost(spec, config.pile_folder, manifest, state)
    if lost is None:
        return manifest
    text = f"{lost} is missing or has changed"
    if (earlier := _earlier_folder(config)) not in (None, config.pile_folder.absolute()):
        if earlier.exists():
            is_in_out = not config.bucket_url and earlier.is_relative_to(config.folder.absolute())
            scratch = "without --scratch" if is_in_out else f"--scratch {earlier.parents[2]}"
            raise ChangedError(
                f"{lost} is missing: the piles of this shuffle are in {earlier}.",
                f"Resume with the same --out and {scratch}, or start over with --fresh.",
            )
        text = f"{lost} is missing, and so are the piles in the earlier --scratch folder {earlier.parents[2]}"
    observer.tell(Event("piles", f"{text}: the first pass of the shuffle is repeated"))
    return replace(manifest, piles=state.again())


_NOTE_NAME = f"{WORK_FOLDER}/scratch"


def _scratch_note(config: Config) -> Path:
    """Return the file that names a pile folder outside the output, because the manifest holds no paths. A bucket gets a
    copy of it, as of every small file in the work folder."""
    return config.folder / _NOTE_NAME


def _earlier_folder(config: Config) -> Path | None:
    """Return the folder with the piles of earlier runs; None if unknown."""
    path = _scratch_note(config)
    if not os.path.lexists(path):
        return None if config.bucket_url else path.absolute().parent / FOLDER
    with output_errors(path):
        return Path(os.fsdecode(read_file(path)))


def note_scratch(config: Config) -> None:
    """Record where the piles are."""
    path = _scratch_note(config)
    if config.has_own_pile_folder or (config.bucket_url and not config.has_piles_in_bucket):
        write_file(path, os.fsencode(config.pile_folder.absolute()), path.parent)


def empty_piles(
    spec: OutputSpec, config: Config, expected_tokens: int | None, starts: Cursors, taken: tuple[Taken, ...] = ()
) -> PileState:
    """Return the state at the beginning of a stream of about that length."""
    in_bucket = config.has_piles_in_bucket
    expected_bytes = None if expected_tokens is None else spec.shard_format.size_bytes(expected_tokens)
    count = choose_count(expected_bytes, MOST_IN_BUCKET if in_bucket else MOST_PILES)
    return PileState.beginning(count, starts, taken, in_bucket=in_bucket)


def begin_piles(spec: OutputSpec, config: Config, manifest: Manifest, expected_tokens: int | None) -> Manifest:
    """Return the manifest with empty piles for a stream of about that length."""
    starts = (Cursor(0, 0),) * len(manifest.parts)
    taken = tuple(Taken() for _ in manifest.parts) if manifest.mix else ()
    return replace(manifest, piles=empty_piles(spec, config, expected_tokens, starts, taken))


def _find_lost(spec: OutputSpec, folder: Path, manifest: Manifest, state: PileState) -> Path | None:
    """Return a file of the first pass that is still needed, but is missing, too short or changed."""
    first = manifest.end[0].file if state.ended else 0
    *piles, (listed, list_bytes) = sizes_of(folder, state, spec.shard_format).items()
    needed = [(path, size) for path, size in piles[first:] if size]
    for path, size in needed:
        if not is_plain_file(path) or path.stat().st_size < size:
            return path
    if not list_bytes or (state.ended and not needed):
        return None
    with pile_errors(listed):
        is_there = is_plain_file(listed)
        return None if is_there and digest_of(listed, 0, list_bytes).hexdigest() == state.list_sha256 else listed


def make_piles(job: Job, manifest: Manifest, executor: Executor, progress: Progress) -> Manifest:
    """Make the first pass of a build, or the rest of it; return the manifest with all piles."""
    running = Running(job, manifest, executor, progress)
    if manifest.piles is None:
        manifest = begin_piles(job.output, job.config, manifest, progress.expected_tokens())
    state = manifest.piles
    assert state is not None
    running.disk.attempt(lambda: begin_output(job.output.store, manifest))
    running.disk.attempt(partial(note_scratch, job.config))
    packer = make_pile_packer(job.output, state, job.config.max_tokens)
    began = tell_begin(manifest, progress)
    output = PileOutput(
        job.output,
        job.config.pile_folder,
        manifest,
        executor,
        running.disk,
        add_totals=running.add_totals,
        on_record=job.source.release_before,
    )
    opened = running.open_stream(state.end, state.taken, output.advance, lambda: packer.left_tokens)
    with output:
        with opened as sections:
            write_stream(sections, packer, output, lambda part: progress.advance(part.tokens, 0, part.end, part.taken))
        manifest = output.finish()
    job.source.release_before(job.source.ends)
    tell_end(manifest, progress, began)
    return manifest


def tell_begin(manifest: Manifest, progress: Progress) -> float:
    """Report that a pass begins, and return when."""
    assert manifest.piles is not None
    after = f", after {progress.tokens:,} tokens" if progress.tokens else ""
    piles = show_number_of(manifest.piles.count, "pile")
    progress.tell(Event("pass", f"{PASS_NAMES[progress.pass_number]}; {piles}{after}", loud=False))
    return progress.seconds


def tell_end(manifest: Manifest, progress: Progress, began: float) -> None:
    """Report what a pass has made in all runs, and how long it took in this one."""
    state = manifest.piles
    assert state is not None
    piles, seconds = show_number_of(state.count, "pile"), show_seconds(progress.seconds - began)
    made, documents = f"{manifest.piled_tokens:,} tokens", show_number_of(state.documents, "document")
    where = f"in {piles}"
    if progress.pass_number == 2:
        made, documents = f"{manifest.tokens:,} tokens", show_number_of(manifest.documents, "document")
        where = f"from {piles} in {show_number_of(manifest.shard_count, 'shard')}"
    name = PASS_NAMES[progress.pass_number].partition(":")[0]
    progress.tell(Event("pass", f"{name} took {seconds}: {made}, {documents} {where}", loud=progress.pass_number == 1))


def second_pass(job: Job, manifest: Manifest) -> Job:
    """Return the job that makes shards from the piles."""
    plain = replace(
        job.config, **{name: getattr(Config, name) for name in _OF_INPUT}, tokens_column="documents", val_input=()
    )
    source = pile_source(job.output, job.config, manifest)
    return replace(job, config=plain, output=second_spec(job.output), source=source)


def second_spec(spec: OutputSpec) -> OutputSpec:
    """Return the output of the second pass, in which files for validation are the first pile."""
    return replace(spec, split_rule=SplitRule(val_files=(1,))) if any(spec.split_rule.val_files) else spec


def pile_source(spec: OutputSpec, config: Config, manifest: Manifest) -> Parts:
    state, shard_format = manifest.piles, spec.shard_format
    assert state is not None
    settings = ReadSettings(
        text_column="",
        separator="none",
        batch_bytes=_FETCHED_BYTES if state.in_bucket else config.batch_bytes,
        skip_bad=False,
        vocabulary=spec.vocabulary,
        max_outage_seconds=config.max_outage,
        tokens_column="documents",
        piles=PileSettings(
            len(state.tokens),
            state.list_bytes,
            shard_format.read_dtype,
            spec.layout.eot_first,
            f"{spec.store.location}/{OBJECTS}" if state.in_bucket else "",
        ),
    )
    files = [
        InputFile(
            index=number,
            path=str(config.pile_folder / pile_name(number)),
            name=f"pile {number}",
            format=PILES,
            compression=None,
            size_bytes=shard_format.size_bytes(tokens),
            mtime_ns=0,
            content_hash="",  # it is in the list
            for_validation=number == 0 and any(spec.split_rule.val_files),
            place=SCRATCH,
        )
        for number, tokens in enumerate(state.tokens)
    ]
    return Parts((open_source(tuple(files), settings),))


def read_piles(source: Parts, spec: OutputSpec, start: Cursors) -> Iterator[Section]:
    """Yield the stream of the second pass from a position in the piles on, read in this process."""
    joiner = TokenJoiner(spec.vocabulary, eot_first=spec.layout.eot_first)
    blocks = (joiner.join(chunk) for batch in source.batches(start) for chunk in source.chunks(batch))
    return map(Section.of, add_cursors(blocks, start))


@contextlib.contextmanager
def lock_scratch(config: Config) -> Iterator[None]:
    """Lock a pile folder outside the (locked) output for one run: runs on several machines may share it, with different
    outputs at the same path. A run that leaves no piles leaves no folder."""
    if not config.has_own_pile_folder:
        yield
        return
    with FolderLock(config.pile_folder.parent.parent, is_own=True) as lock:
        try:
            yield
        finally:
            if not config.pile_folder.exists():
                lock.remove()


def remove_piles(spec: OutputSpec, config: Config, observer: Observer) -> None:
    """Remove the piles and their folder if possible; nothing depends on it."""
    folder = config.pile_folder
    note = _scratch_note(config)
    if config.shuffle is not None and spec.store.is_remote:
        try:
            remove_objects(spec.store)
            if os.path.lexists(note):
                spec.store.remove([_NOTE_NAME])
        except ShardError as error:
            observer.tell(Event("note", f"{spec.store.location}/{OBJECTS} is left over: {error}"))
    with contextlib.suppress(OSError):
        note.unlink(missing_ok=True)
        refuse_linked_folders(folder / pile_name(0))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
