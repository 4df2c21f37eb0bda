"""The shards of a folder in which a build may still be running: those that its manifest names, as they come.

The manifest names a shard when it is whole and on the disk. In a layout whose splits are one file each, a
shard is a segment of that file: what a checkpoint has added to it.

Whether a build is running, its lock says. One that has stopped may be resumed, so that its end is only an
error after a while.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fineweb_shards.errors import ChangedError, InputError
from fineweb_shards.loader.bucket_pieces import pieces_of, token_file
from fineweb_shards.loader.shard_cache import ShardCache
from fineweb_shards.loader.shards import Shard, divide, with_eot
from fineweb_shards.reading.token_file import TokenFile, TokenFolder
from fineweb_shards.store.manifest import Manifest, parse_manifest
from fineweb_shards.system.retry import Clock
from fineweb_shards.types import ShardRecord
from fineweb_shards.units import show_number_of, show_seconds

_FIRST_PAUSE_SECONDS = 0.05
_FIRST_REMOTE_PAUSE_SECONDS = 1.0  # every look at a bucket is two requests
_LONGEST_PAUSE_SECONDS = 5.0


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
        last_sign = self._clock.now()  # of somebody working here
        while number >= len(self.known) and not self.complete:
            running = (
                self._folder.store.is_locked()
            )  # first: a build that ends now has then written everything
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
                    "Begin the training anew, or restore the shards.",
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
        """Return an error that says that nobody works here, and the next step."""
        waited = show_seconds(self._patience_seconds)
        if self._version is None:
            return InputError(
                f"{self._folder}: no build has begun here for {waited}.",
                "Start the build, or check the folder.",
            )
        finished = show_number_of(len({shard.file.name for shard in self.known}), "shard")
        return InputError(
            f"{self._folder}: the build that is followed here has stopped before its end, with {finished} of "
            f"{self._split!r}, and nobody has resumed it for {waited}.",
            f"`fineweb-shards status {shlex.quote(str(self._folder))}` says why. Rerun the build and "
            "resume from your checkpoint, or train on what is finished with follow=False.",
        )
