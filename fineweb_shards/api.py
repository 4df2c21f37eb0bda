"""The library: what the command does, called from Python.

    import fineweb_shards as fs

    result = fs.build("sample-10BT", out="shards", max_tokens="1B")
    result.folder, result.tokens, result.warnings

Each function runs the command in a process of its own and reads the JSON that it prints. A build changes its process
for good: it lowers its priority, which only root may raise again; it handles signals, replaces the standard streams,
configures the hub's clients and starts threads. In a process of its own none of that reaches the caller, nor does a
lack of memory. So a function may be called in any thread, in a notebook and in a script without a `__main__` guard. If
the caller dies, the command notices and stops (`stop_with_caller` in system/signals.py).
"""

from __future__ import annotations

import dataclasses
import inspect as inspect_module
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from os import PathLike, fspath
from typing import Any, Literal, Required, TypedDict, TypeVar, Unpack, overload

from fineweb_shards.api_documents import Documents, is_documents, json_lines
from fineweb_shards.api_process import CommandProcess, OnEvent
from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.events import Event
from fineweb_shards.system.json_values import make
from fineweb_shards.watching.run_files import PartShare, Snapshot

AnyPath = str | PathLike[str]
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


class Part(TypedDict, total=False):
    """The settings of a part of the input; docs/reference.md has them."""

    input: AnyPath | Sequence[AnyPath]
    format: str
    dataset: str
    name: str
    split: str
    revision: str
    weight: float | str
    epochs: int
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


class MixedFolder(TypedDict, total=False):
    """A folder that `export` mixes with others."""

    folder: Required[AnyPath]
    weight: Required[float | str]
    epochs: int


class OutputSettings(TypedDict, total=False):
    """The settings of `export`; a count may be a number or a text such as "100M"."""

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


class Settings(OutputSettings, total=False):
    """The settings of `build` and `plan`: the keys of a TOML file, which docs/reference.md explains."""

    format: str
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
    text_column: str
    tokens_column: str
    template: str
    where: str
    sample: float | str
    sample_seed: int
    min_tokens: int | str
    max_document_tokens: int | str
    separator: str
    tokenizer: AnyPath
    pattern: str
    eot: str | int
    val_input: AnyPath | Sequence[AnyPath]
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
    """What a build has made, in all its runs and in this one: docs/reference.md, `build --json`."""

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
    """What the stream would take of a part of the input. None: unknown before it is read."""

    weight: int | None  # a whole number; None without weights
    epochs: int
    available_tokens: int | None  # in all its epochs
    tokens: int | None  # of these, without files that are for validation
    share: float | None  # in the tokens of all parts
    ends_after_tokens: int | None  # of the stream; None also if the part does not run out


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What a build would do."""

    folder: str
    tokens: int | None  # None: unknown before the input is read, as with standard input
    tokens_exact: bool
    documents: int | None
    documents_exact: bool
    shards: int | None
    bytes: int | None  # still to be written
    fetched_bytes: int  # over the network; 0 if the input is here
    done_tokens: int  # by earlier runs
    tokens_per_second: float | None  # in a trial of one second
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
    """What was checked; damage is a DamageError."""

    folder: str
    shards: int
    tokens: int
    complete: bool
    unfinished: tuple[str, ...]  # files of a build that is not complete


@dataclass(frozen=True, slots=True)
class StatusResult:
    """How far a build is."""

    state: Literal["running", "stopped", "complete"]
    folder: str
    shards: int
    tokens: int
    documents: int
    bytes: int
    resume: str | None  # the command, if there is something left to do
    events: tuple[str, ...]  # the last lines of the log
    snapshot: Snapshot | None  # the run a few seconds ago
    parts: tuple[PartShare, ...]  # of a mix, in finished shards
    shuffle: Mapping[str, int] | None  # how far a shuffle is


@dataclass(frozen=True, slots=True)
class Inspection:
    """Statistics of shards; docs/reference.md, `inspect --json`."""

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
    """A place where a text was found; `document` is -1 in the rest of one that began in the shard before."""

    document: int
    before: str
    text: str
    after: str


def _with_signature(settings: type[Any]) -> Callable[[Function], Function]:
    """Show each of the settings in a function's signature, and so in `help`, in place of `**settings`."""

    def decorate(function: Function) -> Function:
        shown = inspect_module.signature(function)
        named = [one for one in shown.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name, kind in settings.__annotations__.items():
            text = getattr(kind, "__forward_arg__", kind)
            named.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=f"{text} | None"))
        function.__signature__ = shown.replace(parameters=named)  # type: ignore[attr-defined]
        return function

    return decorate


@_with_signature(Settings)
def build(
    target: AnyPath | None = None,
    *,
    input: AnyPath | Sequence[AnyPath] | Documents | None = None,  # noqa: A002 - the setting's name
    out: AnyPath | None = None,
    fresh: bool = False,
    same_source: bool = False,
    quiet: bool = False,
    on_event: OnEvent | None = None,
    **settings: Unpack[Settings],
) -> BuildResult:
    """Make the shards, or resume an interrupted build.

    `target` is a sample, such as "sample-10BT", or a TOML file; settings override it. `input` is a path, a glob, a list
    of them, or documents: any other iterable of texts or mappings. Documents are read once, front to back, so that such
    a build can't be resumed: a folder that holds a build refuses them. `fresh` deletes what an earlier build has made
    in `out`. Events go to `on_event`: a Snapshot every second and at the end, and an Event for whatever happens;
    without it a progress bar is shown, unless `quiet`.

    Errors are ShardErrors, with `exit_code` and `hint`. After a KeyboardInterrupt everything finished is kept, and the
    same call resumes.
    """
    words = ["build", *_words(target), *_flags(settings), *_flags({"out": out})]
    words += ["--fresh", "--yes"] if fresh else []
    words += ["--same-source"] if same_source else []
    documents = None
    if input is not None and is_documents(input):
        if settings.get("format") is not None:
            raise UsageError("format is for files, and input is documents.", "Leave it out.")
        documents = json_lines(input, _text_key(target, settings))
        words += ["--input=-", "--format=jsonl"]
    else:
        words += _flags({"input": input})
    try:
        return _make(BuildResult, _run(words, on_event, quiet=quiet, documents=documents))
    except InputError as error:
        if documents is None and isinstance(input, (list, tuple)) and not any(map(os.path.exists, input)):
            error.hint = f"{error.hint} If these are texts, and not paths: input=iter(texts)."
        raise


@_with_signature(Settings)
def plan(
    target: AnyPath | None = None,
    *,
    input: AnyPath | Sequence[AnyPath] | None = None,  # noqa: A002 - the setting's name
    out: AnyPath | None = None,
    **settings: Unpack[Settings],
) -> PlanResult:
    """Return what a build with these arguments would do, without writing anything."""
    if input is not None and is_documents(input):
        raise UsageError("input is documents, which can be read only once: there is no plan for them.", "Build them.")
    words = ["plan", *_words(target), *_flags(settings), *_flags({"out": out, "input": input})]
    return _make(PlanResult, _run(words, quiet=True))


@_with_signature(OutputSettings)
def export(
    folder: AnyPath | None = None,
    out: AnyPath | None = None,
    *,
    mix: Sequence[MixedFolder] = (),
    fresh: bool = False,
    quiet: bool = False,
    on_event: OnEvent | None = None,
    **settings: Unpack[OutputSettings],
) -> ExportResult:
    """Copy finished shards into another layout, without tokenizing; or those of several folders, mixed by tokens: `mix`
    has the `folder`, `weight` and `epochs` of each. `quiet` and `on_event` are those of `build`."""
    words = ["export", *_words(folder), *_flags(settings), *_flags({"out": out})]
    for one in _mappings("mix", mix or ()):
        if lost := {"folder", "weight"} - {name for name, value in one.items() if value is not None}:
            raise UsageError(f"mix: {one!r} has no {min(lost)}.", "Each needs a folder and its weight.")
        words.append(f"--mix={fspath(one['folder'])}={one['weight']},epochs={one.get('epochs') or 1}")
    words += ["--fresh", "--yes"] if fresh else []
    return _make(ExportResult, _run(words, on_event, quiet=quiet))


def verify(folder: AnyPath, *, quiet: bool = False, on_event: OnEvent | None = None) -> VerifyResult:
    """Read every shard back and check it; raise DamageError, with a note for each damaged file. `quiet` and `on_event`
    are those of `build`."""
    return _make(VerifyResult, _run(["verify", fspath(folder)], on_event, quiet=quiet))


def status(folder: AnyPath) -> StatusResult:
    """Return how far a build is, from any process."""
    values = _run(["status", fspath(folder)], quiet=True)
    heartbeat = values.pop("heartbeat")
    return _make(StatusResult, {**values, "snapshot": make(Snapshot, heartbeat["snapshot"]) if heartbeat else None})


@overload
def inspect(path: AnyPath) -> Inspection: ...
@overload
def inspect(path: AnyPath, *, document: int) -> Document: ...
@overload
def inspect(path: AnyPath, *, grep: str) -> tuple[Match, ...]: ...
def inspect(
    path: AnyPath, *, document: int | None = None, grep: str | None = None
) -> Inspection | Document | tuple[Match, ...]:
    """Return statistics of shards, a file or a folder of any trainer's; or one document; or all places where a text is
    found."""
    words = ["inspect", fspath(path), *_flags({"document": document, "grep": grep})]
    if grep is not None:
        return tuple(_make(Match, match) for match in CommandProcess(words).run(_ignore))
    values = _run(words, quiet=True)
    return _make(Inspection, values) if document is None else _make(Document, values)


def _run(
    words: Sequence[str],
    on_event: OnEvent | None = None,
    *,
    quiet: bool = False,
    documents: Iterator[str] | None = None,
) -> dict[str, Any]:
    """Run the command, and return the one object that is its result."""
    command = CommandProcess(words, documents)
    if on_event is not None or quiet:
        (values,) = command.run(on_event or _ignore)
    else:
        with _Bar() as bar:
            (values,) = command.run(bar.show)
            for warning in values.get("warnings", ()):
                bar.show(Event("warning", f"{'WARNING':<10} {warning}"))
    return values


class _Bar:
    """A progress bar of tqdm, in its form for notebooks there."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, event: Snapshot | Event) -> None:
        if isinstance(event, Event):
            write = print if self._bar is None else self._bar.write
            write(event.text, file=sys.stderr)
            return
        if self._bar is None:
            with warnings.catch_warnings():  # in a notebook without ipywidgets: a bar of text is fine
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
            # A class of our own without tqdm's thread, which would stay in the caller's process for good.
            bar = type("Bar", (tqdm,), {"monitor_interval": 0})
            self._bar = bar(unit=" tokens", unit_scale=True, initial=event.resumed_tokens)
        self._bar.total, done = event.expected_tokens, event.tokens
        if event.pass_number and event.share is not None:  # one bar for both passes
            done = round(event.share * (event.expected_tokens or 0))
        self._bar.set_postfix_str(event.reason or event.pass_name or event.state, refresh=False)
        self._bar.update(done - self._bar.n)


def _words(target: AnyPath | None) -> list[str]:
    return [] if target is None else [fspath(target)]


def _ignore(event: Snapshot | Event) -> None:
    pass


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as flags of the command."""
    words = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif name == "parts":
            words += [f"--part={_part_words(part)}" for part in _mappings(name, value)]
        elif isinstance(value, (list, tuple)):
            words += [f"{flag}={fspath(item) if isinstance(item, PathLike) else item}" for item in value]
        else:
            words.append(f"{flag}={value}")
    return words


def _mappings(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    """Return a list of mappings, or raise UsageError if it is none."""
    if isinstance(value, (list, tuple)) and all(isinstance(one, Mapping) for one in value):
        return value
    raise UsageError(f"{name} is {value!r:.100}: it must be a list of mappings.", f"Write {name}=[{{...}}, {{...}}].")


def _text_key(target: AnyPath | None, settings: Mapping[str, Any]) -> str | None:
    """Return the key under which a text is a document; None if the settings want mappings."""
    names = ("text_column", "template", "tokens_column")
    given = {name: settings[name] for name in names if settings.get(name) is not None}
    if target is not None:
        # Here: it loads NumPy, and few have documents and a file with settings.
        from fineweb_shards.commands.targets import find_config, is_config
        from fineweb_shards.run.config_sources import load_config

        if is_config(fspath(target)):
            config = load_config(find_config(fspath(target)), given)
            given = {name: value for name in names if (value := getattr(config, name)) is not None}
    return None if {"template", "tokens_column"} & given.keys() else given.get("text_column", "text")


def _part_words(part: Mapping[str, Any]) -> str:
    """Return the settings of a part as `--part` has them."""
    lists = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in part.items()}
    return shlex.join(f"{name}={item}" for name, items in lists.items() for item in items if item is not None)


def _make(kind: type[Result], values: Mapping[str, Any]) -> Result:
    """Make a dataclass of JSON; lists become tuples, and keys that it has no field for are left out."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if "parts" in names:
        part_kind: type[Any] = PlannedPart if kind is PlanResult else PartShare
        frozen["parts"] = tuple(make(part_kind, part) for part in frozen["parts"])
    return kind(**{name: value for name, value in frozen.items() if name in names})
