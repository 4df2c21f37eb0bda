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
import json
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

from fineweb_shards.api_process import CommandProcess, OnEvent
from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.events import Event
from fineweb_shards.system.json_values import make
from fineweb_shards.watching.run_files import PartShare, Snapshot

AnyPath = str | PathLike[str]
Documents = Iterable[str | Mapping[str, Any]]
Result = TypeVar("Result")

_FED_CHARACTERS = 1 << 20  # of documents that are written to the process at a time


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
    parts: Sequence[Mapping[str, Any]]
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
    a build can't be resumed. `fresh` deletes what an earlier build has made in `out`. Events go to `on_event`: a
    Snapshot every second, and an Event for whatever happens; without it a progress bar is shown, unless `quiet`.

    Errors are ShardErrors, with `exit_code` and `hint`. After a KeyboardInterrupt everything finished is kept, and the
    same call resumes.
    """
    words = ["build", *_words(target), *_flags(settings), *_flags({"out": out})]
    words += ["--fresh", "--yes"] if fresh else []
    words += ["--same-source"] if same_source else []
    if input is None or _is_paths(input):
        return _make(BuildResult, _run([*words, *_flags({"input": input})], on_event, quiet=quiet))
    if "format" in settings:
        raise UsageError("format is for files, and input is documents.", "Leave it out.")
    column = None if "template" in settings else settings.get("text_column", "text")
    documents = _json_lines(cast(Documents, input), column)
    words += ["--input=-", "--format=jsonl"]
    return _make(BuildResult, _run(words, on_event, quiet=quiet, documents=documents))


def plan(
    target: AnyPath | None = None,
    *,
    input: AnyPath | Sequence[AnyPath] | None = None,  # noqa: A002 - the setting's name
    out: AnyPath | None = None,
    **settings: Unpack[Settings],
) -> PlanResult:
    """Return what a build with these arguments would do, without writing anything."""
    words = ["plan", *_words(target), *_flags(settings), *_flags({"out": out, "input": input})]
    return _make(PlanResult, _run(words, quiet=True))


def export(
    folder: AnyPath | None = None,
    out: AnyPath | None = None,
    *,
    mix: Sequence[Mapping[str, Any]] = (),
    fresh: bool = False,
    **settings: Unpack[OutputSettings],
) -> ExportResult:
    """Copy finished shards into another layout, without tokenizing; or those of several folders, mixed by tokens: `mix`
    has the `folder`, `weight` and `epochs` of each."""
    words = ["export", *_words(folder), *_flags(settings), *_flags({"out": out})]
    words += [f"--mix={_mixed_words(number, one)}" for number, one in enumerate(mix, 1)]
    return _make(ExportResult, _run([*words, *(["--fresh", "--yes"] if fresh else [])]))


def verify(folder: AnyPath) -> VerifyResult:
    """Read every shard back and check it; raise DamageError, with a note for each damaged file."""
    return _make(VerifyResult, _run(["verify", fspath(folder)]))


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
            words += [f"--part={_part_words(part)}" for part in value]
        elif isinstance(value, (list, tuple)):
            words += [f"{flag}={fspath(item) if isinstance(item, PathLike) else item}" for item in value]
        else:
            words.append(f"{flag}={value}")
    return words


def _part_words(part: Mapping[str, Any]) -> str:
    """Return the settings of a part as `--part` has them."""
    lists = {name: value if isinstance(value, (list, tuple)) else [value] for name, value in part.items()}
    return shlex.join(f"{name}={item}" for name, items in lists.items() for item in items if item is not None)


def _mixed_words(number: int, part: Mapping[str, Any]) -> str:
    """Return a folder to mix as `--mix` has it."""
    hint = "Each has a folder and a weight, and may have epochs."
    for key in ("folder", "weight"):
        if key not in part:
            raise UsageError(f"mix: part {number} has no {key}.", hint)
    for key in part.keys() - {"folder", "weight", "epochs"}:
        raise UsageError(f"mix: part {number}: unknown key {key!r}.", hint)
    return f"{fspath(part['folder'])}={part['weight']},epochs={part.get('epochs', 1)}"


def _is_paths(value: object) -> bool:
    """Tell whether `input` names files. Everything else is documents."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (str, PathLike)) for item in value)
    return isinstance(value, (str, PathLike))


def _json_lines(documents: Documents, column: str | None) -> Iterator[str]:
    """Yield documents as JSON lines, many at a time; `column` is the key of the text, None with a template."""
    hint = f"Pass texts, or mappings whose key {column!r} holds the text."
    if column is None:
        hint = "Pass mappings with the keys that the template names."
    lines: list[str] = []
    size = 0
    for number, document in enumerate(documents):
        try:
            lines.append(json.dumps(_to_mapping(document, column)) + "\n")
        except (TypeError, ValueError) as error:
            raise InputError(f"Document {number:,} of input can't be read: {error}.", hint) from error
        size += len(lines[-1])
        if size >= _FED_CHARACTERS:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


def _to_mapping(document: str | Mapping[str, Any], column: str | None) -> dict[str, Any]:
    if not isinstance(document, str):
        return dict(document)
    if column is None:
        raise TypeError("it is a text, without keys")
    return {column: document}


def _make(kind: type[Result], values: Mapping[str, Any]) -> Result:
    """Make a dataclass of JSON; lists become tuples, and keys that it has no field for are left out."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if "parts" in names:
        part_kind: type[Any] = PlannedPart if kind is PlanResult else PartShare
        frozen["parts"] = tuple(make(part_kind, part) for part in frozen["parts"])
    return kind(**{name: value for name, value in frozen.items() if name in names})
