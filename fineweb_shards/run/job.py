"""Resolve settings into a job, which `plan` describes and `build` runs.

`open_manifest` finds where a run begins: after what the manifest records, if input and settings are unchanged.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

import fineweb_shards
from fineweb_shards.errors import ChangedError, UsageError, concerning
from fineweb_shards.events import Observer
from fineweb_shards.formats.base import ReadSettings
from fineweb_shards.formats.columns import parse_template
from fineweb_shards.formats.random_sample import RandomSample
from fineweb_shards.formats.registry import FORMATS
from fineweb_shards.formats.text_samples import AUTO, recorded_separators, settle_separators
from fineweb_shards.formats.where import parse_where
from fineweb_shards.layouts import LAYOUTS, get_layout
from fineweb_shards.layouts.base import Layout
from fineweb_shards.output import resume_rules
from fineweb_shards.output.cleanup import holds_work, refuse_untracked_shards
from fineweb_shards.output.manifest import (
    FILE_NAME,
    InputPart,
    Manifest,
    divide_settings,
    has_our_fields,
    load_manifest,
)
from fineweb_shards.output.store import OutputSpec, Store
from fineweb_shards.run.config import DEFAULT_SHARD_TOKENS, OF_DATASET, Config
from fineweb_shards.run.resources import Budget, plan_budget
from fineweb_shards.run.tokenizer import find_definition
from fineweb_shards.sources.discovery import OpenBucket, Search
from fineweb_shards.sources.files import check_same_files, files_to_json, find_files
from fineweb_shards.sources.hub_files import DOWNLOAD_FOLDER, Listing
from fineweb_shards.sources.source import Parts, Source, open_source
from fineweb_shards.storage.bucket import UPLOAD_MEMORY_BYTES, is_web, open_remote
from fineweb_shards.storage.bucket_address import is_url
from fineweb_shards.storage.hub_environment import check_addresses, quiet_clients
from fineweb_shards.storage.place import HubRef, InputFile
from fineweb_shards.stream.length_limits import LengthLimits
from fineweb_shards.stream.split import SplitRule, make_split_rule
from fineweb_shards.system.own_files import WORK_FOLDER, open_own
from fineweb_shards.system.retry import Retrier
from fineweb_shards.tokenizers import resolve_engine
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.definition import Definition
from fineweb_shards.tokenizers.trial import Trial, try_engines
from fineweb_shards.vocabulary import GPT2, Vocabulary

# Most fields of a manifest are at its beginning, and a foreign file of the same name may be huge.
_HEAD_BYTES = 1 << 20
# One search for all layouts: an input may have a hundred thousand names.
_OURS = re.compile("|".join([re.escape(FILE_NAME), *(f"(?:{one.pattern})" for one in LAYOUTS.values())]))


@dataclass(frozen=True)
class Job:
    """Everything that a build needs, resolved and checked before anything is read or written."""

    config: Config
    output: OutputSpec
    definition: Definition  # of the tokenizer
    source: Parts
    budget: Budget
    trial: Trial | None = None  # which engine encodes; for tokenizers other than GPT-2, see `with_engine`
    notes: tuple[str, ...] = ()  # from the search for input

    @property
    def folder(self) -> Path:
        return self.output.folder

    @property
    def layout(self) -> Layout:
        return self.output.layout

    @property
    def vocabulary(self) -> Vocabulary:
        return self.output.vocabulary

    @property
    def is_remote(self) -> bool:
        """Whether the input comes over the network."""
        return any(part.costs_requests for part in self.source.parts)

    @property
    def length_limits(self) -> tuple[LengthLimits, ...]:
        return tuple(LengthLimits(one.min_tokens, one.max_document_tokens) for one in self.config.part_configs)

    @property
    def engine(self) -> type[Engine] | None:
        """The engine that encodes; None if the input is tokens."""
        if not self.config.encodes:
            return None
        assert self.trial is not None, "with_engine must be called first"
        return self.trial.engine

    def with_engine(self, folder: Path) -> Job:
        """Return the job with its engine; the files of other tokenizers than GPT-2's are saved in `folder`."""
        if not self.definition.data or self.trial is not None:
            return self
        vocabulary, trial = self.definition.save(folder), None
        if self.config.encodes:
            special, added = self.definition.special_tokens, self.definition.added_tokens
            trial = try_engines(self.config.engine, vocabulary, special, added)
        return replace(self, output=replace(self.output, vocabulary=vocabulary), trial=trial)

    def versions(self) -> dict[str, str]:
        """Return the versions in use, for the manifest. A resume may use others, because the output is the same."""
        return {
            "fineweb_shards": fineweb_shards.__version__,
            **({self.engine.name: str(self.engine.installed_version())} if self.engine else {}),
            "numpy": np.__version__,
            "python": platform.python_version(),
        }


def make_job(config: Config, store: Store, *, begun: Manifest | None = None, observer: Observer | None = None) -> Job:
    """Resolve names, find the files and divide the memory. `begun` is the store's manifest if this is a resume."""
    observer = observer or Observer()
    definition = find_definition(config, begun, observer)
    output = output_spec(config, store, definition.vocabulary)
    resolve_engine(config.engine)  # fails early if it is not installed
    uploads = UPLOAD_MEMORY_BYTES if store.is_remote else 0
    budget = plan_budget(config.workers, config.max_memory, config.batch_bytes, output.vocabulary, uploads)
    has_work = begun is not None and holds_work(store, begun)
    opener = _Opener(output, budget, begun, observer, has_work, [])
    parts: list[Source] = []
    own = config.part_configs
    recorded = begun.parts if begun and len(begun.parts) == len(own) else [None] * len(own)
    for number, (part, before) in enumerate(zip(own, recorded, strict=True), bool(config.parts)):
        with concerning(f"Part {number}" if number else ""):
            parts.append(opener.open_part(part, number, before))
    val_files = tuple(part.val_files for part in parts)
    if any(val_files):
        output = replace(output, split_rule=SplitRule(val_files=val_files))
    encodes_gpt2 = config.encodes and not definition.data
    trial = try_engines(config.engine, definition.vocabulary) if encodes_gpt2 else None
    return Job(config, output, definition, Parts(tuple(parts)), budget, trial, tuple(opener.notes))


def output_spec(config: Config, store: Store, vocabulary: Vocabulary = GPT2) -> OutputSpec:
    """Return the output that the settings describe; --val-input is not in its split yet, as no files are read."""
    config.check()
    layout = get_layout(config.layout)
    shard_tokens, drop = config.shard_tokens or DEFAULT_SHARD_TOKENS, config.last_shard == "drop"
    if drop and layout.one_file:
        hint = "Leave it out, or choose a layout with shards."
        raise UsageError(f"--last-shard drop: --layout {layout.name} has no last shard, only one file per split.", hint)
    most_tokens = layout.most_tokens(layout.dtype(vocabulary))
    if most_tokens is not None and shard_tokens > most_tokens:
        raise UsageError(
            f"--shard-tokens {shard_tokens}: {layout.name} can't read a file of more than "
            f"{layout.largest_bytes:,} bytes.",
            f"Choose at most {most_tokens:,}.",
        )
    default = layout.default_split_rule(shard_tokens)
    split_rule = make_split_rule(config.fingerprint(), (), default)
    return OutputSpec(store, layout, vocabulary, shard_tokens, split_rule, drop, config.gpus)


def open_manifest(job: Job, *, same_source: bool) -> Manifest:
    """Return the folder's manifest, checked against this job, or a new one, without versions yet."""
    config = job.config
    settings, _ = divide_settings(config.fingerprint())
    parts = []
    for own, part in zip(config.part_configs, job.source.parts, strict=True):
        commit = part.settings.hub.commit if part.settings.hub else None
        parts.append(InputPart(divide_settings(own.fingerprint())[1], files_to_json(part.files), commit))
    new = Manifest(settings, tuple(parts), {}, vocabulary=job.vocabulary, index=config.index)

    def check(recorded: Manifest) -> None:
        check_resumed_settings(recorded, new)
        for number, (part, before) in enumerate(zip(job.source.parts, recorded.parts, strict=True), 1):
            with concerning(f"Part {number} ({before.label})" if config.parts else ""):
                check_same_files(part.files, before.files, same_source=same_source)
        resume_rules.check_batch_bytes(recorded.quarantined, config.batch_bytes)

    return resume_manifest(job.output.store, job.layout, new, check)


def check_resumed_settings(recorded: Manifest, new: Manifest) -> None:
    """Raise ChangedError if settings differ, except --max-tokens, unless it decides what is shuffled."""
    if not recorded.is_shuffled:
        new = replace(new, settings={**new.settings, "max_tokens": recorded.settings["max_tokens"]})
    resume_rules.check_settings(recorded, new, Config().fingerprint())


def resume_manifest(store: Store, layout: Layout, new: Manifest, check: Callable[[Manifest], None]) -> Manifest:
    """Return the recorded manifest, adapted to the limit and index of `new`. Return `new` if there is none, or if
    `check` raises ChangedError and nothing is recorded in it."""
    recorded = load_manifest(store.folder)
    if recorded is not None:
        try:
            check(recorded)
        except ChangedError:
            if holds_work(store, recorded):
                raise
            recorded = None
    if recorded is None:
        refuse_untracked_shards(store, layout, set())
        return new
    # Before trimming drops the records after a lost file: those shards still exist, and a new limit must not be before
    # their end.
    moved = resume_rules.move_limit(recorded, new.settings["max_tokens"], store)
    return resume_rules.trim_to_whole_files(resume_rules.add_index(moved, store, asked=new.index), store)


def find_earlier_outputs(open_bucket: OpenBucket) -> Callable[[str], bool]:
    """Return a function that tells whether a path or address is one of our manifests, or a shard or sidecar beside one,
    which would be read as JSON lines or text. Each folder's manifest is read at most once."""

    @cache
    def is_ours(folder: str) -> bool:
        if is_web(folder):  # only single files are named there
            return False
        if is_url(folder):
            bucket = open_bucket(folder)
            info = bucket.head(FILE_NAME)
            size = min(info.size_bytes, _HEAD_BYTES) if info else 0
            return has_our_fields(bucket.read_range(FILE_NAME, 0, size) if size else b"")
        try:
            with open_own(Path(folder, FILE_NAME), "rb", follow_links=True) as file:
                return has_our_fields(file.read(_HEAD_BYTES))
        except OSError:  # missing or unreadable
            return False

    def is_earlier_output(path: str) -> bool:
        folder, name = os.path.split(path)
        return _OURS.fullmatch(name) is not None and is_ours(folder)

    return is_earlier_output


@dataclass(frozen=True)
class _Opener:
    """Opens the parts of the input; `begun` is the store's manifest if this is a resume."""

    output: OutputSpec
    budget: Budget
    begun: Manifest | None
    observer: Observer
    has_work: bool  # whether anything was made with the settings in `begun`
    notes: list[str]  # from the search for input

    def open_part(self, config: Config, number: int, recorded: InputPart | None) -> Source:
        """Return a part of the input; `recorded` is its entry in the manifest. The only part has the number 0."""
        hub = None
        if config.dataset:
            files, hub = self._list_dataset(config, number, recorded)
        else:
            files = self._find_files(config)
        settings = ReadSettings(
            text_column=config.text_column,
            tokens_column=config.tokens_column,
            separator=config.separator,
            batch_bytes=config.batch_bytes,
            skip_bad=config.on_bad_file == "skip",
            vocabulary=self.output.vocabulary,
            where=None if config.where is None else parse_where(config.where),
            sample=RandomSample(config.sample, config.sample_seed) if config.sample < 1 else None,
            template=None if config.template is None else parse_template(config.template),
            max_outage_seconds=config.max_outage,
            largest_page_bytes=self.budget.largest_page_bytes,
            hub=hub,
        )
        source = replace(open_source(files, settings, self.observer), epochs=config.epochs)
        _refuse_files_without_columns(config, source)
        if config.separator != AUTO:
            return source
        if recorded is not None and self.has_work:
            return replace(source, files=recorded_separators(source.files, recorded.files))
        files, note = settle_separators(source.files)
        self.notes.extend(filter(None, [note]))
        return replace(source, files=files)

    def _find_files(self, config: Config) -> tuple[InputFile, ...]:
        store, layout = self.output.store, self.output.layout

        def is_output(path: str) -> bool:
            name = os.path.basename(path)
            return (name == FILE_NAME or layout.owns(name)) and store.has_inside(path)

        open_bucket = partial(open_remote, max_outage_seconds=config.max_outage, observer=self.observer)
        return find_files(
            config.input,
            config.format,
            is_output,
            is_earlier_output=find_earlier_outputs(open_bucket),
            val_inputs=config.val_input,
            skip_bad=config.on_bad_file == "skip",
            find_separators=config.separator == AUTO and not (self.begun and self.begun.shards),
            note=self.notes.append,
            open_bucket=open_bucket,
        )

    def _list_dataset(
        self, config: Config, number: int, recorded: InputPart | None
    ) -> tuple[tuple[InputFile, ...], HubRef]:
        """Return the files of a dataset: those in the manifest, unless others are requested, else those on the hub."""
        check_addresses()
        quiet_clients()  # both must come before the clients are imported
        work_folder = self.output.store.folder / WORK_FOLDER
        listing = None
        if recorded and recorded.commit and recorded.files and _are_same(config, recorded, *OF_DATASET):
            listing = Listing.from_manifest(config.dataset, recorded.commit, recorded.files)
        if listing is None or listing != listing.with_validation(config.val_input):
            from fineweb_shards.sources.hub_listing import list_dataset

            revision = pinned_commit(config, recorded, has_work=self.has_work) or config.revision
            retrier = Retrier(config.max_outage, self.observer)
            search = Search(config.format, note=self.notes.append)
            listing = list_dataset(config.dataset, config.name, config.split, revision, retrier, work_folder, search)
            listing = listing.with_validation(config.val_input)
        hub = HubRef(
            dataset=config.dataset,
            name=config.name,
            hub_split=config.split,
            commit=listing.commit,
            work_folder=str(work_folder),
            keep_downloads=config.keep_downloads,
        )
        # Files of two datasets may have the same name.
        folder = work_folder / DOWNLOAD_FOLDER / (str(number) if number else "")
        format_name = "" if config.split else config.format
        return listing.input_files(folder, download=config.download, format_name=format_name), hub


def _refuse_files_without_columns(config: Config, source: Source) -> None:
    """Raise UsageError for a file whose format can't support --where, --template or --tokens-column."""
    for file in source.files:
        entry = FORMATS[file.format]
        kind = file.format.upper() if entry.has_columns else "plain text"
        for flag, value, has_it, what in (
            ("--where", config.where, entry.has_columns, "columns"),
            ("--template", config.template and repr(config.template), entry.has_columns, "columns"),
            ("--tokens-column", config.tokens_column, entry.has_ids, "lists of ids"),
        ):
            if value is not None and not has_it:
                hint = "Name only parquet files and JSON lines; add --format jsonl if it holds JSON lines."
                raise UsageError(f"{flag} {value}: {file.path} is {kind}, which has no {what}.", hint)


def pinned_commit(config: Config, recorded: InputPart | None, *, has_work: bool) -> str | None:
    """Return the commit in the manifest; None if nothing was made and another dataset or revision is requested."""
    if recorded is None:
        return None
    return recorded.commit if has_work or _are_same(config, recorded, "dataset", "revision") else None


def _are_same(config: Config, recorded: InputPart, *names: str) -> bool:
    return all(recorded.settings.get(name) == getattr(config, name) for name in names)
