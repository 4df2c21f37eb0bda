"""The shards that a loader reads, in their order: files, or parts of a large one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fineweb_shards.errors import InputError
from fineweb_shards.reading.document_starts import (
    contains_eot,
    document_starts,
    ends_mid_document,
    file_before,
)
from fineweb_shards.reading.token_file import (
    TokenFile,
    has_eot_first,
    open_token_file,
    token_files,
    vocabulary_beside,
)
from fineweb_shards.store.files import growing_path
from fineweb_shards.types import Dtype, Places, Tokens
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

    @property
    def tokens(self) -> int:
        return self.file.tokens

    @property
    def label(self) -> str:
        """What a checkpoint says about it."""
        return f"{self.file.path.name} {self.tokens}"

    def map(self) -> Tokens:
        """Map the tokens into memory; pages are read when they are used."""
        return _map(self.file)

    def document_starts(self) -> Places:
        """Return where in the shard documents begin."""
        assert self.vocabulary is not None
        mid_document = self.before is not None and ends_mid_document(_map(self.before), self.vocabulary)
        return document_starts(
            self.map(), self.vocabulary, eot_first=self.eot_first, starts_mid_document=mid_document
        )

    def parts(self, most_tokens: int) -> Iterator[Shard]:
        """Yield the shard in parts of at most so many tokens."""
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
) -> FinishedShards:
    """Open the files of a folder with `split` in their name, or these files."""
    files = _open_files(shards, split, dtype)
    if not documents:
        return FinishedShards([Shard(file) for file in files])
    found = [_with_vocabulary(file, eot) for file in files]
    if eot is not None or not vocabulary_beside(files[0].path):
        _check_eot(files[0], with_eot(GPT2, eot))
    return FinishedShards(divide(found))


def divide(shards: Iterable[Shard]) -> list[Shard]:
    """Return the shards with large ones in parts, so that the table of a shard's documents stays small."""
    return [part for shard in shards for part in shard.parts(MOST_TOKENS)]


def _open_files(
    shards: str | Path | Sequence[str | Path], split: str, dtype: Dtype | None
) -> list[TokenFile]:
    if not isinstance(shards, (str, Path)):
        files = [open_token_file(Path(path), dtype) for path in shards]
    else:
        try:
            files = token_files(Path(shards), split, dtype)
        except OSError as error:
            raise InputError(f"{shards}: {error.strerror}.", "Name a folder of shards.") from error
    if not files:
        raise InputError(
            f"{shards}: there is no file of tokens with {split!r} in its name.", "Check the split."
        )
    return files


def _with_vocabulary(file: TokenFile, eot: int | None) -> Shard:
    """Find out which token separates the documents of a file: by the manifest beside it, or GPT-2's."""
    vocabulary = vocabulary_beside(file.path)
    if vocabulary is None and eot is None and file.dtype != GPT2.dtype:
        raise InputError(
            f"{file.path}: it has {file.dtype.name} tokens, and no manifest beside it says which of them "
            "separates documents.",
            "Name that token with eot=.",
        )
    eot_first = has_eot_first(file)
    before = None if eot_first else file_before(file)
    return Shard(file, with_eot(vocabulary or GPT2, eot), eot_first, before)


def with_eot(vocabulary: Vocabulary, eot: int | None) -> Vocabulary:
    """Return the vocabulary with the EOT that the caller has named, if any."""
    return vocabulary if eot is None else replace(vocabulary, eot=eot)


def _check_eot(file: TokenFile, vocabulary: Vocabulary) -> None:
    """Raise InputError if no token of a file is the EOT, which nobody has recorded."""
    if not contains_eot(file, vocabulary):
        raise InputError(
            f"{file.path}: it has no token {vocabulary.eot}, which should separate documents.",
            "Name the token that does with eot=.",
        )


def _map(file: TokenFile) -> Tokens:
    """Map a file that may still grow. Then it is in the work folder, until it is renamed, which may happen
    between the two attempts."""
    with contextlib.suppress(InputError):
        return file.map()
    with contextlib.suppress(InputError):
        return replace(file, path=growing_path(file.path)).map()
    return file.map()
