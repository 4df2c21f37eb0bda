"""The shards that a loader reads, in their order: files, or parts of a large one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fineweb_shards.errors import InputError
from fineweb_shards.loader.bucket_pieces import BucketPieces, open_bucket_files, open_bucket_folder
from fineweb_shards.loader.shard_cache import ShardCache
from fineweb_shards.reading.document_starts import (
    TokenSequence,
    contains_eot,
    document_starts,
    ends_mid_document,
    file_before,
)
from fineweb_shards.reading.token_file import (
    TokenFile,
    TokenFolder,
    has_eot_first,
    is_address,
    open_files_in,
    split_location,
    token_names,
    vocabulary_beside,
)
from fineweb_shards.store.folder_store import FolderStore
from fineweb_shards.types import Dtype, Positions
from fineweb_shards.vocabulary import GPT2, Vocabulary

# Where documents are looked up, their positions are kept in memory: a larger file counts as several shards.
MOST_TOKENS = 2**27


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
        mid_document = self.before is not None and ends_mid_document(self.before, self.vocabulary)
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
        """Those that were there when somebody last looked."""

    @property
    def complete(self) -> bool:
        """Whether no shard will be added."""

    def has(self, number: int) -> bool:
        """Return whether there is a shard of this number; wait while a build may still make it."""


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """Shards to which nobody adds any."""

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
        _check_eot(first, with_eot(GPT2, eot))
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


def _check_eot(file: TokenFile, vocabulary: Vocabulary) -> None:
    """Raise InputError if no token of a file is the EOT, which nobody has recorded."""
    if not contains_eot(file, vocabulary):
        raise InputError(
            f"{file.address}: it has no token {vocabulary.eot}, which should separate documents.",
            "Name the token that does with eot=.",
        )
