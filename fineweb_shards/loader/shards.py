"""The shards that a loader reads, in their order: files, or parts of a large one; and, as they come, those of
a folder in which a build may still be running.

The manifest names a shard when it is whole and on the disk. In a layout whose splits are one file each, a
shard is a segment of that file: what a checkpoint has added to it. Whether a build is running, its lock says.
One that has stopped may be resumed, so that its end is only an error after a while.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fineweb_shards.errors import ChangedError, InputError
from fineweb_shards.loader.shard_cache import (
    BucketPieces,
    ShardCache,
    open_bucket_files,
    open_bucket_folder,
    pieces_of,
    token_file,
)
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
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.store.manifest import Manifest, parse_manifest
from fineweb_shards.system.retry import Clock
from fineweb_shards.types import Dtype, Positions, ShardRecord
from fineweb_shards.units import show_number_of, show_seconds
from fineweb_shards.vocabulary import GPT2, Vocabulary

# Where documents are looked up, their positions are kept in memory: a larger file counts as several shards.
MOST_TOKENS = 2**27
_FIRST_PAUSE_SECONDS = 0.05
_FIRST_REMOTE_PAUSE_SECONDS = 1.0  # every look at a bucket is two requests
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Shard:
    """Tokens that follow each other in a file. Where nobody asks for documents there is no vocabulary."""

    file: TokenFile  # under its final name
    vocabulary: Vocabulary | None = None
    eot_first: bool = True
    before: TokenFile | None = None  # what comes before it in the stream, if EOT comes after documents
    bucket: BucketPieces | None = None  # where it is fetched from; None: it is on this machine

    @property
    def tokens(self) -> int:
        return self.file.tokens

    @property
    def size_bytes(self) -> int:
        return self.tokens * self.file.dtype.itemsize

    @property
    def label(self) -> str:
        """What a checkpoint says about it."""
        return f"{self.file.name} {self.tokens}"

    def map(self) -> TokenSequence:
        """Map the tokens into memory; pages are read when they are used. What is in a bucket is fetched."""
        return self.file.map() if self.bucket is None else self.bucket.map(self.file)

    def fetch_ahead(self) -> None:
        """Begin to fetch what is in a bucket, because its turn comes soon."""
        if self.bucket is not None:
            self.bucket.fetch_ahead(self.file)

    def document_starts(self) -> Positions:
        """Return where in the shard documents begin."""
        assert self.vocabulary is not None
        mid_document = self.before is not None and self.before.ends_mid_document(self.vocabulary)
        return document_starts(
            self.map(), self.vocabulary, eot_first=self.eot_first, starts_mid_document=mid_document
        )

    def parts(self, most_tokens: int) -> Iterator[Shard]:
        """Yield the shard in parts of at most `most_tokens` tokens."""
        before, width_bytes = self.before, self.file.dtype.itemsize
        for begin in range(0, max(1, self.tokens), most_tokens):
            part = replace(
                self.file,
                header_bytes=self.file.header_bytes + begin * width_bytes,
                tokens=min(most_tokens, self.tokens - begin),
            )
            yield replace(self, file=part, before=before)
            before = None if self.eot_first else part


class Shards(Protocol):
    """A list of shards to which a running build may add more. Those that it has never change."""

    @property
    def known(self) -> Sequence[Shard]:
        """Those that were there at the last look."""

    @property
    def complete(self) -> bool:
        """Whether no shard will be added."""

    def has(self, number: int) -> bool:
        """Return whether there is a shard of this number; wait while a build may still make it."""


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """Shards of a folder in which no build is running."""

    known: Sequence[Shard]
    complete: bool = True

    def has(self, number: int) -> bool:
        return number < len(self.known)


def open_shards(
    shards: str | Path | Sequence[str | Path],
    split: str,
    *,
    documents: bool,
    eot: int | None,
    dtype: Dtype | None = None,
    cache: ShardCache,
) -> FinishedShards:
    """Open the files of a folder with `split` in their name, or these files. Those that are in a bucket are
    fetched into the cache."""
    found = _open_files(shards, split, dtype, cache)
    if not found:
        raise InputError(
            f"{shards}: there is no file of tokens with {split!r} in its name.", "Check the split."
        )
    if not documents:
        return FinishedShards(found)
    first = found[0].file
    found = [_with_vocabulary(shard, eot) for shard in found]
    if eot is not None or not vocabulary_beside(first):
        vocabulary = with_eot(GPT2, eot)  # nobody has recorded it
        if not first.contains_eot(vocabulary):
            raise InputError(
                f"{first.address}: it has no token {vocabulary.eot}, which should separate documents.",
                "Name the token that does with eot=.",
            )
    return FinishedShards(divide(found))


def divide(shards: Iterable[Shard]) -> list[Shard]:
    """Return the shards with large ones in parts, so that the table of a shard's documents stays small."""
    return [part for shard in shards for part in shard.parts(MOST_TOKENS)]


def open_folder(location: str | Path, cache: ShardCache) -> TokenFolder:
    """Open a folder of shards. Nothing is fetched yet."""
    if is_address(location):
        return open_bucket_folder(location, cache)
    return TokenFolder(FolderStore(Path(location)))


def _open_files(
    shards: str | Path | Sequence[str | Path], split: str, dtype: Dtype | None, cache: ShardCache
) -> list[Shard]:
    if not isinstance(shards, (str, Path)):
        return _open_list(shards, dtype, cache)
    folder = open_folder(shards, cache)
    try:
        names = token_names(folder, split)
    except OSError as error:
        raise InputError(f"{shards}: {error.strerror}.", "Name a folder of shards.") from error
    return _open_in(folder, names, dtype, cache)


def _open_list(locations: Sequence[str | Path], dtype: Dtype | None, cache: ShardCache) -> list[Shard]:
    """Open files by their paths or addresses, which may be in several folders."""
    folders: dict[str, TokenFolder] = {}
    names: dict[str, list[str]] = {}
    for location in locations:
        folder, name = split_location(location)
        if folder not in folders:
            folders[folder] = open_folder(folder if is_address(location) else Path(folder), cache)
        names.setdefault(folder, []).append(name)
    opened = {folder: iter(_open_in(folders[folder], names[folder], dtype, cache)) for folder in names}
    return [next(opened[split_location(location)[0]]) for location in locations]


def _open_in(
    folder: TokenFolder, names: Sequence[str], dtype: Dtype | None, cache: ShardCache
) -> list[Shard]:
    if not folder.store.is_remote:
        return [Shard(file) for file in open_files_in(folder, names, dtype)]
    return [Shard(file, bucket=pieces) for file, pieces in open_bucket_files(folder, names, dtype, cache)]


def _with_vocabulary(shard: Shard, eot: int | None) -> Shard:
    """Find out which token separates the documents of a file: by the manifest beside it, or GPT-2's."""
    file, vocabulary = shard.file, vocabulary_beside(shard.file)
    if vocabulary is None and eot is None and file.dtype != GPT2.dtype:
        raise InputError(
            f"{file.address}: it has {file.dtype.name} tokens, and no manifest beside it says which of them "
            "separates documents.",
            "Name that token with eot=.",
        )
    eot_first = has_eot_first(file)
    before = None if eot_first else file_before(file)
    return replace(shard, vocabulary=with_eot(vocabulary or GPT2, eot), eot_first=eot_first, before=before)


def with_eot(vocabulary: Vocabulary, eot: int | None) -> Vocabulary:
    """Return the vocabulary with the EOT that the caller has named, if any."""
    return vocabulary if eot is None else replace(vocabulary, eot=eot)


class FollowedShards:
    """Shards to which a build adds more. They are in the order in which they were made."""

    def __init__(
        self,
        folder: TokenFolder,
        split: str,
        *,
        documents: bool,
        eot: int | None,
        patience_seconds: float,
        cache: ShardCache,
    ) -> None:
        """Wait at most `patience_seconds` for a build that is not running. The cache is for shards in a
        bucket."""
        if not folder.store.is_remote and not folder.store.folder.is_dir():
            raise InputError(
                f"{folder}: there is no such folder, so no build to follow.",
                "Start the build first, or make the folder if one is about to start.",
            )
        self.known: Sequence[Shard] = []
        self.complete = False
        self._folder, self._split, self._documents, self._eot = folder, split, documents, eot
        self._patience_seconds = patience_seconds
        self._cache = cache
        self._first_pause = _FIRST_REMOTE_PAUSE_SECONDS if folder.store.is_remote else _FIRST_PAUSE_SECONDS
        self._clock = Clock()
        self._records: tuple[ShardRecord, ...] = ()
        self._version: object = None  # of the manifest that was read last

    def has(self, number: int) -> bool:
        pause = self._first_pause
        last_sign = self._clock.now()  # of a running build
        while number >= len(self.known) and not self.complete:
            # First: a build that ends now has then written everything.
            running = self._folder.store.is_locked()
            if self._look():
                pause, last_sign = self._first_pause, self._clock.now()
                continue
            if running:
                last_sign = self._clock.now()
            elif self._clock.now() - last_sign >= self._patience_seconds:
                raise self._stopped()
            self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return number < len(self.known)

    def _look(self) -> bool:
        """Read the manifest if it is another one than last time; return whether it is."""
        store = self._folder.store
        version = store.manifest_version()
        # A build that has just started has none.
        data = store.read_manifest() if version not in (None, self._version) else None
        if data is None:
            return False
        manifest = parse_manifest(data, store.folder, store.location)
        self._check_unchanged(manifest.shards)
        self._version = version
        if len(manifest.shards) >= len(self._records):  # fewer: a build makes lost files again
            self._records = manifest.shards
            self.known = self._list_shards(manifest)
            self.complete = manifest.complete
        return True

    def _check_unchanged(self, records: Sequence[ShardRecord]) -> None:
        """Raise ChangedError if shards that were read are not the same any more."""
        for old, new in zip(self._records, records, strict=False):
            if (old.name, old.offset, old.sha256) != (new.name, new.offset, new.sha256):
                raise ChangedError(
                    f"{self._folder}: {old.name} has changed since it was read: this is another build.",
                    "Restart the training, or restore the shards.",
                )

    def _list_shards(self, manifest: Manifest) -> list[Shard]:
        shard_format = manifest.shard_format
        vocabulary = with_eot(manifest.vocabulary, self._eot) if self._documents else None
        eot_first = manifest.layout.eot_first
        by_document = bool(manifest.split_rule.val_ratio)
        last: dict[str, TokenFile] = {}  # the last shard of each stream
        shards = []
        for record in manifest.shards:
            file = token_file(self._folder, shard_format, record.name, record.offset, record.tokens)
            pieces = pieces_of(self._folder, [record], self._cache) if self._folder.store.is_remote else None
            # Documents that are chosen one by one make two streams; else training continues validation.
            stream = record.split if by_document else ""
            if self._split in record.name:
                before = None if eot_first else last.get(stream)
                shards.append(Shard(file, vocabulary, eot_first, before, pieces))
            last[stream] = file
        return divide(shards) if self._documents else shards

    def _stopped(self) -> InputError:
        """Return an error that says that no build is running here, and the next step."""
        waited = show_seconds(self._patience_seconds)
        if self._version is None:
            return InputError(
                f"{self._folder}: no build has begun here for {waited}.",
                "Start the build, or check the folder.",
            )
        finished = show_number_of(len({shard.file.name for shard in self.known}), "shard")
        return InputError(
            f"{self._folder}: the build that is followed here has stopped before its end, with {finished} of "
            f"{self._split!r}, and has not been resumed for {waited}.",
            f"`fineweb-shards status {shlex.quote(str(self._folder))}` says why. Rerun the build and "
            "resume from your checkpoint, or train on what is finished with follow=False.",
        )
