"""The library's settings with their types, and the result of each function.

Results have the keys of the command's JSON output as fields, and settings those of a TOML file; tests/test_api.py keeps
them in sync.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Required, TypedDict

from fineweb_shards.watching.run_files import PartShare, Snapshot

AnyPath = str | PathLike[str]


class InputSettings(TypedDict, total=False):
    """Settings of the input that each of its parts may have."""

    format: str
    text_column: str
    tokens_column: str
    template: str
    where: str
    sample: float | str
    sample_seed: int
    min_tokens: int | str
    max_document_tokens: int | str
    separator: str
    val_input: AnyPath | Sequence[AnyPath]


class Part(InputSettings, total=False):
    """The settings of a part of the input, explained in docs/reference.md."""

    input: AnyPath | Sequence[AnyPath]
    dataset: str
    name: str
    split: str
    revision: str
    weight: float | str
    epochs: int


class MixedFolder(TypedDict, total=False):
    """A folder that `export` mixes with others."""

    folder: Required[AnyPath]
    weight: Required[float | str]
    epochs: int


class OutputSettings(TypedDict, total=False):
    """The settings of `export`. A count is a number, or a text such as "100M"."""

    layout: str
    shard_tokens: int | str
    max_tokens: int | str
    mix_until: Literal["first-exhausted", "all-exhausted"]
    shuffle: int
    scratch: AnyPath
    val_tokens: int | str
    val_documents: int | str
    val_ratio: float | str
    val_seed: int
    last_shard: Literal["keep", "drop"]
    gpus: int
    index: bool
    verify: bool


class Settings(InputSettings, OutputSettings, total=False):
    """The settings of `build` and `plan`, the keys of a TOML file, explained in docs/reference.md."""

    dataset: str | Sequence[str]
    name: str | Sequence[str]
    split: str | Sequence[str]
    revision: str | Sequence[str]
    parts: Sequence[Part]
    weight: float | str | Sequence[float | str]
    epochs: int | Sequence[int]
    download: bool
    keep_downloads: bool
    max_outage: int | str
    tokenizer: AnyPath
    pattern: str
    eot: str | int
    workers: int
    executor: Literal["local", "ray"]
    ray_address: str
    engine: str
    max_memory: int | str
    batch_bytes: int | str
    priority: Literal["background", "normal"]
    on_bad_file: Literal["stop", "skip"]
    seed: int


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build has made, in all runs and in this one: see `build --json` in docs/reference.md."""

    folder: str  # or the address of a bucket
    shards: int
    tokens: int
    documents: int
    bytes: int
    new_shards: int
    new_tokens: int
    seconds: float
    waited_seconds: float
    waits: Mapping[str, Mapping[str, float]]
    fetched_bytes: int
    text_bytes: int
    skipped_documents: int
    replaced_characters: int
    bad_parts: int
    filtered_documents: int
    unknown_documents: int
    short_documents: int
    long_documents: int
    unsampled_documents: int
    token_count_mismatches: int
    dropped_tokens: int
    quarantined: int
    quarantined_documents: int
    verified: bool
    peak_memory_bytes: int
    warnings: tuple[str, ...]
    parts: tuple[PartShare, ...]  # of a mix


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """What the stream would take from a part of the input. None: unknown before it is read."""

    weight: int | None  # a whole number; None without weights
    epochs: int
    available_tokens: int | None  # in all its epochs
    tokens: int | None  # taken, without the files of val_input
    share: float | None  # of the tokens of all parts
    ends_after_tokens: int | None  # of the stream; None also if the part does not run out


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What a build would do."""

    folder: str
    tokens: int | None  # None: unknown before the end, as with standard input
    tokens_exact: bool
    documents: int | None
    documents_exact: bool
    shards: int | None
    bytes: int | None  # still to be written
    fetched_bytes: int  # over the network; 0 if the input is on this machine
    done_tokens: int  # by earlier runs
    tokens_per_second: float | None  # in a one-second trial
    seconds: float | None
    parts: tuple[PlannedPart, ...]
    verdict: str
    warnings: tuple[str, ...]
    text: str  # the lines that `plan` prints

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export has made."""

    folder: str
    shards: int
    tokens: int
    documents: int
    bytes: int
    new_tokens: int
    seconds: float
    warnings: tuple[str, ...]
    parts: tuple[PartShare, ...]  # of a mix


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was checked; damage raises DamageError instead."""

    folder: str
    shards: int
    tokens: int
    complete: bool
    unfinished: tuple[str, ...]  # files of a build that is not complete


@dataclass(frozen=True, slots=True)
class StatusResult:
    """The progress of a build."""

    state: Literal["running", "stopped", "complete"]
    folder: str
    shards: int
    tokens: int
    documents: int
    bytes: int
    resume: str | None  # the command to resume with, if there is anything to do
    events: tuple[str, ...]  # the last lines of the log
    snapshot: Snapshot | None  # of the run, a few seconds old
    parts: tuple[PartShare, ...]  # of a mix, in finished shards
    shuffle: Mapping[str, int] | None  # its progress, if the build has one


@dataclass(frozen=True, slots=True)
class Inspection:
    """Statistics of shards: see `inspect --json` in docs/reference.md."""

    files: tuple[Mapping[str, Any], ...]
    eot_first: bool
    tokens: int
    documents: int
    rest_tokens: int
    longest_document_tokens: int
    text_bytes: int
    bytes_per_token: float
    tokens_outside_vocabulary: int
    document_lengths: tuple[Mapping[str, int], ...]
    frequent_tokens: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a folder, decoded."""

    document: int
    text: str


@dataclass(frozen=True, slots=True)
class Match:
    """A match of a text; `document` is -1 in the rest of a document that began in the previous shard."""

    document: int
    before: str
    text: str
    after: str
