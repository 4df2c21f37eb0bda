"""The shards that a loader reads, in order: files, parts of large files, or the growing list of shards in a folder
where a build is still running.

The manifest names a shard once it is whole and durable. In a layout with one file per split, a shard is a segment of
that file, added by a checkpoint. The lock shows whether a build is running. A stopped build may be resumed, so it is an
error only after a while.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fineweb_shards.errors import ChangedError, InputError
from fineweb_shards.layouts.base import ShardFormat
from fineweb_shards.loader.shard_cache import BucketPieces, PiecedTokens, ShardCache
from fineweb_shards.output.bucket_store import BucketStore
from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest import parse_manifest
from fineweb_shards.output.opening import READING_OUTAGE_SECONDS
from fineweb_shards.output.shard_files import list_files
from fineweb_shards.reading.token_file import (
    TokenFile,
    TokenFolder,
    TokenSequence,
    document_starts,
    file_before,
    has_eot_first,
    is_address,
    open_files_in,
    split_location,
    token_names,
    vocabulary_beside,
)
from fineweb_shards.storage.bucket import Bucket
from fineweb_shards.system.retry import Clock
from fineweb_shards.types import Positions, ShardRecord
from fineweb_shards.units import show_number_of, show_seconds
from fineweb_shards.vocabulary import GPT2, Vocabulary

# If documents are needed, their positions are kept in memory: a larger file counts as several shards.
MOST_TOKENS = 2**27
_FIRST_PAUSE_SECONDS = 0.05
_FIRST_REMOTE_PAUSE_SECONDS = 1.0  # every look at a bucket takes two requests
_LONGEST_PAUSE_SECONDS = 5.0

Shuffle = Literal["rows", "documents"]


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """The settings that, with the shards, determine every batch; ShardLoader documents them."""

    batch_size: int
    seq_len: int
    world_size: int
    seed: int | None
    shuffle: Shuffle
    align: Literal["document"] | None
    eot: int | None
    follow: bool

    @property
    def needs_documents(self) -> bool:
        return self.align is not None or self.shuffle == "documents"


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive tokens of a file."""

    file: TokenFile  # under its final name
    vocabulary: Vocabulary | None = None  # None: documents are not needed
    eot_first: bool = True
    before: TokenFile | None = None  # the previous file of the stream, if EOT comes after documents
    bucket: BucketPieces | None = None  # where to fetch it from; None: it is on this machine

    def map(self) -> TokenSequence:
        """Map the tokens into memory; pages are read on use. A shard in a bucket is fetched."""
        return self.file.map() if self.bucket is None else PiecedTokens(self.file, self.bucket)

    def fetch_ahead(self) -> None:
        """Start fetching a shard in a bucket, because it will be needed soon."""
        if self.bucket is not None:
            PiecedTokens(self.file, self.bucket).fetch_ahead()

    def document_starts(self) -> Positions:
        assert self.vocabulary is not None
        mid_document = self.before is not None and self.before.ends_mid_document(self.vocabulary)
        return document_starts(self.map(), self.vocabulary, eot_first=self.eot_first, starts_mid_document=mid_document)


class Shards:
    """A list of shards, to which a running build may append more (FollowedShards). Its items never change."""

    def __init__(self, known: Sequence[Shard], *, complete: bool = True) -> None:
        self.known = known  # at the last look
        self.complete = complete  # no more shards will be added

    def has(self, number: int) -> bool:
        """Return whether there is a shard with this number; wait while a build may still make it."""
        return number < len(self.known)


def open_folder(location: str | Path, cache: ShardCache) -> TokenFolder:
    """Open a folder of shards. Nothing is fetched yet."""
    if not is_address(location):
        return TokenFolder(FolderStore(Path(location)))
    bucket = Bucket(location, READING_OUTAGE_SECONDS, refusal=InputError)
    return TokenFolder(BucketStore(bucket, cache.folder))


def open_shards(
    shards: str | Path | Sequence[str | Path], split: str, settings: LoaderSettings, cache: ShardCache
) -> Shards:
    """Open the files of a folder with `split` in their name, or these files. Those in a bucket are fetched to the
    cache."""
    if isinstance(shards, (str, Path)):
        folder = open_folder(shards, cache)
        try:
            names = token_names(folder, split)
            if folder.store.is_remote and folder.manifest:  # without those that a running build is about to record
                recorded = {record.name for record in folder.manifest.shards}
                names = [name for name in names if name in recorded]
        except OSError as error:
            raise InputError(f"{shards}: {error.strerror}.", "Name a folder of shards.") from error
        found = list(_open_in(folder, names, cache))
    else:  # files, perhaps of several folders
        by_folder: dict[str, list[str]] = {}
        for location in shards:
            parent, name = split_location(location)
            by_folder.setdefault(parent, []).append(name)
        opened = {parent: _open_in(open_folder(parent, cache), names, cache) for parent, names in by_folder.items()}
        found = [next(opened[split_location(location)[0]]) for location in shards]
    if not found:
        raise InputError(f"{shards}: there is no token file with {split!r} in its name.", "Check the split.")
    if not settings.needs_documents:
        return Shards(found)
    found = [_with_vocabulary(shard, settings.eot) for shard in found]
    first, vocabulary = found[0].file, with_eot(GPT2, settings.eot)
    is_recorded = settings.eot is None and vocabulary_beside(first)
    if not is_recorded and not any(map(vocabulary.count_eots, first.blocks())):
        raise InputError(
            f"{first.address}: it has no token {vocabulary.eot}, which should separate documents.",
            "Name the separating token with eot=.",
        )
    return Shards(divide(found))


def divide(shards: Iterable[Shard]) -> list[Shard]:
    """Split large shards, so that the table of a shard's documents stays small."""
    parts = []
    for shard in shards:
        file, before = shard.file, shard.before
        for begin in range(0, max(1, file.tokens), MOST_TOKENS):
            begin_bytes = file.header_bytes + begin * file.dtype.itemsize
            tokens = min(MOST_TOKENS, file.tokens - begin)
            part = replace(file, header_bytes=begin_bytes, tokens=tokens)
            parts.append(replace(shard, file=part, before=before))
            before = None if shard.eot_first else part
    return parts


def _open_in(folder: TokenFolder, names: Sequence[str], cache: ShardCache) -> Iterator[Shard]:
    """Open files of a folder. Those in a bucket must be in our manifest, which has their hashes; moreover, fetching the
    headers of thousands of shards would take minutes."""
    if not folder.store.is_remote:
        yield from map(Shard, open_files_in(folder, names))
        return
    manifest = folder.manifest
    known = {file.name: file for file in list_files(manifest.shards)} if manifest else {}
    for name in names:
        if manifest is None or name not in known:
            raise InputError(
                f"{folder.address(name)}: no manifest of a build has its hash, so it can't be checked.",
                "Copy the files to this machine: from there a loader reads those of any program.",
            )
        yield _recorded_shard(folder, manifest.shard_format, known[name].segments, cache)


def _recorded_shard(
    folder: TokenFolder, shard_format: ShardFormat, records: Sequence[ShardRecord], cache: ShardCache
) -> Shard:
    """Return consecutive segments of a file as a shard."""
    begin = max(records[0].offset, shard_format.header_bytes)
    tokens = sum(record.tokens for record in records)
    file = TokenFile(folder, records[0].name, shard_format.layout.name, begin, tokens, shard_format.read_dtype)
    return Shard(file, bucket=BucketPieces(folder.store, tuple(records), cache) if folder.store.is_remote else None)


def _with_vocabulary(shard: Shard, eot: int | None) -> Shard:
    """Determine the token that separates a file's documents: from the manifest beside it, or GPT-2's."""
    file, vocabulary = shard.file, vocabulary_beside(shard.file)
    if vocabulary is None and eot is None and file.dtype != GPT2.dtype:
        raise InputError(
            f"{file.address}: it has {file.dtype.name} tokens, and no manifest beside it names the one that "
            "separates documents.",
            "Name that token with eot=.",
        )
    eot_first = has_eot_first(file)
    before = None if eot_first else file_before(file)
    return replace(shard, vocabulary=with_eot(vocabulary or GPT2, eot), eot_first=eot_first, before=before)


def with_eot(vocabulary: Vocabulary, eot: int | None) -> Vocabulary:
    """Return the vocabulary with the caller's EOT, if any."""
    return vocabulary if eot is None else replace(vocabulary, eot=eot)


class FollowedShards(Shards):
    """Shards to which a build adds more, in the order in which they were made."""

    def __init__(
        self, folder: TokenFolder, split: str, settings: LoaderSettings, patience_seconds: float, cache: ShardCache
    ) -> None:
        """Wait at most `patience_seconds` while no build is running. The cache is for shards in a bucket."""
        super().__init__([], complete=False)
        if not folder.store.is_remote and not folder.store.folder.is_dir():
            raise InputError(
                f"{folder}: there is no such folder, so there is no build to follow.",
                "Start the build first, or create the folder if one is about to start.",
            )
        self._folder, self._split, self._settings, self._cache = folder, split, settings, cache
        self._patience_seconds = patience_seconds
        self._clock = Clock()
        self._records: tuple[ShardRecord, ...] = ()
        self._version: object = None  # of the last manifest read

    def has(self, number: int) -> bool:
        first_pause = _FIRST_REMOTE_PAUSE_SECONDS if self._folder.store.is_remote else _FIRST_PAUSE_SECONDS
        pause = first_pause
        last_sign = self._clock.now()  # of a running build
        while number >= len(self.known) and not self.complete:
            # Check this before looking: then a build that has just ended has already written everything.
            running = self._folder.store.is_locked()
            if self._look():
                pause, last_sign = first_pause, self._clock.now()
                continue
            if running:
                last_sign = self._clock.now()
            elif self._clock.now() - last_sign >= self._patience_seconds:
                raise self._stopped()
            self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return number < len(self.known)

    def _look(self) -> bool:
        """Read the manifest if it was replaced since the last look; return whether it was."""
        store = self._folder.store
        version = store.manifest_version()
        # A build that has just started has no manifest.
        data = store.read_manifest() if version not in (None, self._version) else None
        if data is None:
            return False
        manifest = parse_manifest(data, store.folder, store.location)
        for old, new in zip(self._records, manifest.shards, strict=False):
            if (old.name, old.offset, old.sha256) != (new.name, new.offset, new.sha256):
                raise ChangedError(
                    f"{self._folder}: {old.name} has changed since it was read: this is another build.",
                    "Restart the training, or restore the shards.",
                )
        self._version = version
        if len(manifest.shards) < len(self._records):  # a build makes lost files again
            return True
        documents, eot_first = self._settings.needs_documents, manifest.layout.eot_first
        vocabulary = with_eot(manifest.vocabulary, self._settings.eot) if documents else None
        last: dict[str, TokenFile] = {}  # the last shard of each stream
        shards = []
        for record in manifest.shards:
            shard = _recorded_shard(self._folder, manifest.shard_format, [record], self._cache)
            # With val_ratio the splits are two streams; otherwise training continues validation.
            stream = record.split if manifest.split_rule.val_ratio else ""
            if self._split in record.name:
                before = None if eot_first else last.get(stream)
                shards.append(replace(shard, vocabulary=vocabulary, eot_first=eot_first, before=before))
            last[stream] = shard.file
        self._records, self.known = manifest.shards, divide(shards) if documents else shards
        self.complete = manifest.complete
        return True

    def _stopped(self) -> InputError:
        """Return the error that no build is running here, with the next step."""
        waited = show_seconds(self._patience_seconds)
        if self._version is None:
            return InputError(
                f"{self._folder}: no build was started here within {waited}.", "Start the build, or check the folder."
            )
        finished = show_number_of(len({shard.file.name for shard in self.known}), "shard")
        return InputError(
            f"{self._folder}: the build followed here stopped before its end, with {finished} of "
            f"{self._split!r}, and was not resumed within {waited}.",
            f"`fineweb-shards status {shlex.quote(str(self._folder))}` shows why. Rerun the build and "
            "resume from your checkpoint, or train on the finished shards with follow=False.",
        )
