"""The two passes of a build with --shuffle (stream/shuffle.py): into piles, and from the piles into shards.

    first    source ──► … ──► mix ──► piles           second    piles ──► executor ──► packer ──► output

The second pass is a build like any other, whose source is piles: its cursors are places in them. A pile is deleted
once everything that it has given is recorded. If one is missing or damaged the first pass is made again, and gives the
same piles; finished shards are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

from fineweb_shards.events import Event
from fineweb_shards.executors.base import Executor
from fineweb_shards.formats.base import PileSettings, ReadSettings
from fineweb_shards.formats.piles import digest_of, pile_name
from fineweb_shards.formats.registry import PILES
from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job
from fineweb_shards.run.stream import Running
from fineweb_shards.sources.source import Parts, open_source
from fineweb_shards.storage.place import SCRATCH, InputFile
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.pile_files import sizes_of
from fineweb_shards.stream.shuffle import MOST_PILES, PileState
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.system.durable import output_errors
from fineweb_shards.system.own_files import WORK_FOLDER, is_plain_file
from fineweb_shards.types import ShardSlice, Taken
from fineweb_shards.watching.progress import Progress
from fineweb_shards.writing.piles import PileOutput, make_pile_packer
from fineweb_shards.writing.placement import begin_output

PILE_BYTES = 64 * 2**20  # a pile fits into the page cache while its documents are read one by one
_UNKNOWN_PILES = 256  # if the size of the stream is unknown
# Settings that are about the input, and not about piles.
_OF_INPUT = (
    "input", "dataset", "name", "split", "revision", "parts", "weight", "epochs", "mix_until", "text_column",
    "template", "where", "min_tokens", "max_document_tokens", "max_tokens", "engine",
)  # fmt: skip


def choose_count(expected_bytes: int | None) -> int:
    """Return the number of piles for so many bytes of tokens. It changes no order."""
    if expected_bytes is None:
        return _UNKNOWN_PILES
    return min(MOST_PILES, max(1, -(-expected_bytes // PILE_BYTES)))


def find_piles(job: Job, manifest: Manifest, progress: Progress) -> Manifest:
    """Return the manifest with the piles as they are: if any of them is missing that is still needed, the first pass
    begins anew. Where it has not begun, there are none."""
    state = manifest.piles
    if state is None or (lost := _find_lost(job, manifest, state)) is None:
        return manifest
    progress.tell(Event("piles", f"{lost} is not as it was written: the first pass of the shuffle begins anew"))
    # As many: cursors of finished shards are places in them.
    return dataclasses.replace(manifest, piles=_beginning(job, manifest, state.count))


def _beginning(job: Job, manifest: Manifest, count: int) -> PileState:
    taken = tuple(Taken() for _ in manifest.parts) if manifest.mix else ()
    return PileState.beginning(count, job.source.starts, taken)


def _find_lost(job: Job, manifest: Manifest, state: PileState) -> Path | None:
    """Return a file of the first pass that is still needed, and is missing or shorter than recorded."""
    folder, first = job.config.pile_folder, manifest.end[0].file if state.ended else 0
    sizes = list(sizes_of(folder, state, job.output.shard_format).items())
    for path, size in sizes[first:] if state.documents else ():
        if not is_plain_file(path) or path.stat().st_size < size:
            return path
    path, size = sizes[-1]
    with output_errors(path):
        return path if size and digest_of(path, size).hexdigest() != state.list_sha256 else None


def make_piles(job: Job, manifest: Manifest, executor: Executor, progress: Progress) -> Manifest:
    """Make the first pass, from where the manifest's piles end; return the manifest with all of them."""
    state = manifest.piles
    if state is None:
        expected = progress.expected_tokens()
        count = choose_count(None if expected is None else job.output.shard_format.size_bytes(expected))
        state = _beginning(job, manifest, count)
        manifest = dataclasses.replace(manifest, piles=state)
    running = Running(job, manifest, executor, progress)
    running.disk.attempt(lambda: begin_output(job.output.store, manifest))
    packer = make_pile_packer(job.output, state, job.config.max_tokens)
    folder = job.config.pile_folder
    output = PileOutput(
        job.output, folder, manifest, executor, running.disk, running.add_totals, job.source.release_before
    )

    def watched(slices: Iterator[ShardSlice]) -> Iterator[ShardSlice]:
        for part in slices:
            progress.advance(part.tokens, 0, part.end, part.taken)
            yield part

    with running.open_stream(state.end, state.taken, output.advance, lambda: packer.left_tokens) as sections:
        if not packer.ended:
            for section in sections:
                output.add(section, watched(packer.pack(section)))
                if packer.ended:
                    break
    manifest = output.finish()
    job.source.release_before(job.source.ends)
    return manifest


def second_pass(job: Job, manifest: Manifest) -> Job:
    """Return the job that makes shards of the piles."""
    state, config, spec = manifest.piles, job.config, job.output
    assert state is not None
    plain = dataclasses.replace(
        config, **{name: getattr(Config, name) for name in _OF_INPUT}, tokens_column="documents", val_input=()
    )
    has_val = any(spec.split_rule.val_files)
    settings = ReadSettings(
        text_column="",
        separator="none",
        batch_bytes=config.batch_bytes,
        skip_bad=False,
        vocabulary=spec.vocabulary,
        tokens_column=plain.tokens_column,
        piles=PileSettings(len(state.tokens), spec.shard_format.read_dtype, spec.layout.eot_first),
    )
    files = tuple(
        InputFile(
            index=number,
            path=str(config.pile_folder / pile_name(number)),
            name=f"pile {number}",
            format=PILES,
            compression=None,
            size_bytes=spec.shard_format.size_bytes(tokens),
            mtime_ns=0,
            content_hash=sha256,
            for_validation=has_val and number == 0,
            place=SCRATCH,
        )
        for number, (tokens, sha256) in enumerate(zip(state.tokens, state.sha256, strict=True))
    )
    output = dataclasses.replace(spec, split_rule=SplitRule(val_files=(1,))) if has_val else spec
    return dataclasses.replace(job, config=plain, output=output, source=Parts((open_source(files, settings),)))


def remove_piles(folder: Path) -> None:
    """Remove the folder of the piles, and those that were made for it alone."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    if folder.parent.name == WORK_FOLDER and not any(folder.parent.parent.glob("manifest.json")):
        with contextlib.suppress(OSError):
            folder.parent.rmdir()
            folder.parent.parent.rmdir()
