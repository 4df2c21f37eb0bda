"""The library: what the command does, called from Python.

    import fineweb_shards as fs

    result = fs.build("sample-10BT", out="shards", max_tokens="1B")
    result.folder, result.tokens, result.warnings

Each function runs the command in a separate process and reads the JSON that it prints. A build changes its process
permanently: it lowers its priority, which only root may raise again, handles signals, replaces the standard streams,
configures the hub's clients and starts threads. A separate process protects the caller from all that, and from running
out of memory. So the functions work in any thread, in a notebook, and in a script without a `__main__` guard. If the
caller dies, the command stops (`stop_with_caller` in system/signals.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect as inspect_module
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from os import PathLike, fspath
from typing import Any, TypeGuard, TypeVar, Unpack, overload

from fineweb_shards.api.process import CommandProcess, OnEvent
from fineweb_shards.api.values import (
    AnyPath,
    BuildResult,
    Document,
    ExportResult,
    Inspection,
    Match,
    MixedFolder,
    OutputSettings,
    PlannedPart,
    PlanResult,
    Settings,
    StatusResult,
    VerifyResult,
)
from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.events import Event
from fineweb_shards.storage.place import STANDARD_INPUT
from fineweb_shards.system.json_values import make
from fineweb_shards.watching.run_files import PartShare, Snapshot

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
Documents = Iterable[str | Mapping[str, Any]]

# Documents are passed on as JSON lines, together when they have this many characters, or after this time: a slow
# iterator must not delay the events of the build for long.
_MOST_CHARACTERS = 1 << 20
_MOST_SECONDS = 1.0


def _with_signature(settings: type[Any]) -> Callable[[Function], Function]:
    """List every setting in a function's signature, and so in `help`, in place of `**settings`."""

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
    of them, or documents: any other iterable of texts or mappings. Documents are read once, front to back, so such a
    build can't be resumed, and a folder that already holds a build refuses them. `fresh` deletes what an earlier build
    made in `out`. `on_event` receives a Snapshot every second and at the end, and an Event for whatever happens;
    without it there is a progress bar, unless `quiet`.

    Errors are ShardErrors, with `exit_code` and `hint`. A KeyboardInterrupt keeps everything finished; repeat the call
    to resume.
    """
    words = ["build", *_words(target), *_flags(settings), *_flags({"out": out})]
    words += ["--fresh", "--yes"] if fresh else []
    words += ["--same-source"] if same_source else []
    documents = None
    if input is not None and _is_documents(input):
        if settings.get("format") is not None:
            raise UsageError("format is for files, but input is documents.", "Leave it out.")
        documents = _json_lines(input, _text_key(target, settings))
        words += ["--input=-", "--format=jsonl"]
    else:
        words += _flags({"input": input})
    try:
        return _make(BuildResult, _run(words, on_event, quiet=quiet, documents=documents))
    except InputError as error:
        if documents is None and isinstance(input, (list, tuple)) and not any(map(os.path.exists, input)):
            error.hint = f"{error.hint} If these are texts, not paths: input=iter(texts)."
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
    if input is not None and _is_documents(input):
        raise UsageError("input is documents, which can be read only once, so they can't be planned.", "Build them.")
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
    """Copy finished shards into another layout, without tokenizing, or mix those of several folders by tokens: `mix`
    has the `folder`, `weight` and `epochs` of each. `quiet` and `on_event` are those of `build`."""
    words = ["export", *_words(folder), *_flags(settings), *_flags({"out": out})]
    words += [f"--mix={_mixed_words(number, one)}" for number, one in enumerate(_mappings("mix", mix or ()), 1)]
    words += ["--fresh", "--yes"] if fresh else []
    return _make(ExportResult, _run(words, on_event, quiet=quiet))


def verify(folder: AnyPath, *, quiet: bool = False, on_event: OnEvent | None = None) -> VerifyResult:
    """Read every shard back and check it; raise DamageError, with a note for each damaged file. `quiet` and `on_event`
    are those of `build`."""
    return _make(VerifyResult, _run(["verify", fspath(folder)], on_event, quiet=quiet))


def status(folder: AnyPath) -> StatusResult:
    """Return the progress of a build, from any process."""
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
    """Return statistics of a file or a folder of shards, made by this program or not; or one document; or all matches
    of a text."""
    words = ["inspect", fspath(path), *_flags({"document": document, "grep": grep})]
    if grep is not None:
        return tuple(_make(Match, match) for match in CommandProcess(words).run(_ignore))
    values = _run(words, quiet=True)
    return _make(Inspection, values) if document is None else _make(Document, values)


def _is_documents(value: object) -> TypeGuard[Documents]:
    """Tell whether `input` is documents (else it names files); UsageError if it is neither."""
    paths = list(value) if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(path, (str, PathLike)) for path in paths):
        if any(str(path) == STANDARD_INPUT for path in paths):
            hint = "Pass documents, such as input=iter(sys.stdin) for one per line."
            raise UsageError(f"input={STANDARD_INPUT!r}: standard input belongs to your program.", hint)
        if not paths:
            raise UsageError("input is an empty list.", "Name files, or leave it out.")
        return False
    # A data frame or a mapping would yield the names of its columns.
    if not isinstance(value, Iterable) or isinstance(value, (bytes, bytearray, Mapping)) or hasattr(value, "columns"):
        raise UsageError(
            f"input is a {type(value).__name__}, neither paths nor documents: {value!r:.100}.",
            "Pass a path, a list of paths, or an iterable of texts or mappings, such as the rows of a data frame: "
            'frame.to_dict("records") in pandas, frame.iter_rows(named=True) in Polars.',
        )
    return True


def _json_lines(documents: Documents, key: str | None) -> Iterator[str]:
    """Yield documents as JSON lines, many at a time. `key` is that of texts; None: there can't be texts."""
    wanted = "mappings with the keys that template or tokens_column names"
    if key is not None:
        wanted = f"texts, or mappings whose key {key!r} holds the text; for files a list: input=list(paths)"
    lines: list[str] = []
    size, due = 0, time.monotonic() + _MOST_SECONDS
    for number, document in enumerate(documents):
        values = {key: document} if isinstance(document, str) and key is not None else document
        if not isinstance(values, Mapping):
            given = f"{document!r:.100} ({type(document).__name__})"
            raise InputError(f"Document {number:,} of input is {given}.", f"Pass {wanted}.")
        try:
            lines.append(json.dumps(dict(values), default=_to_plain) + "\n")
        except (TypeError, ValueError) as error:
            raise InputError(
                f"Document {number:,} of input has a value that JSON can't hold ({error}): {document!r:.100}",
                "Leave it out if the build does not need it, or convert it, for example with str().",
            ) from error
        size += len(lines[-1])
        if size >= _MOST_CHARACTERS or time.monotonic() >= due:
            yield "".join(lines)
            lines, size, due = [], 0, time.monotonic() + _MOST_SECONDS
    yield "".join(lines)


def _to_plain(value: Any) -> Any:
    """Convert NumPy scalars and arrays to what JSON can hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r:.100}, a {type(value).__name__}")


def _run(
    words: Sequence[str],
    on_event: OnEvent | None = None,
    *,
    quiet: bool = False,
    documents: Iterator[str] | None = None,
) -> dict[str, Any]:
    command = CommandProcess(words, documents)
    if on_event is not None or quiet:
        (values,) = command.run(on_event or _ignore)
    else:
        with contextlib.closing(_Bar()) as bar:
            (values,) = command.run(bar.show)
            for warning in values.get("warnings", ()):
                bar.show(Event("warning", f"{'WARNING':<10} {warning}"))
    return values


class _Bar:
    """tqdm's progress bar, as a widget in notebooks."""

    def __init__(self) -> None:
        self._bar: Any = None

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, event: Snapshot | Event) -> None:
        if isinstance(event, Event):
            write = print if self._bar is None else self._bar.write
            write(event.text, file=sys.stderr)
            return
        if self._bar is None:
            with warnings.catch_warnings():  # about a missing ipywidgets: a text bar is fine
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
            # A subclass without tqdm's thread, which would never end in the caller's process.
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
    words = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif name == "parts":
            for part in _mappings(name, value):
                lists = {key: one if isinstance(one, (list, tuple)) else [one] for key, one in part.items()}
                pairs = [f"{key}={item}" for key, items in lists.items() for item in items if item is not None]
                words.append(f"--part={shlex.join(pairs)}")
        elif isinstance(value, (list, tuple)):
            words += [f"{flag}={fspath(item) if isinstance(item, PathLike) else item}" for item in value]
        else:
            words.append(f"{flag}={value}")
    return words


def _mappings(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(value, (list, tuple)) and all(isinstance(one, Mapping) for one in value):
        return value
    raise UsageError(f"{name} is {value!r:.100}: it must be a list of mappings.", f"Write {name}=[{{...}}, {{...}}].")


def _text_key(target: AnyPath | None, settings: Mapping[str, Any]) -> str | None:
    """Return the key for documents that are texts; None if the settings require mappings."""
    names = ("text_column", "template", "tokens_column")
    given = {name: settings[name] for name in names if settings.get(name) is not None}
    if target is not None:
        # Here, because it loads NumPy, and few calls have both documents and a TOML file.
        from fineweb_shards.commands.arguments import find_config, is_config
        from fineweb_shards.run.config_sources import load_config

        if is_config(fspath(target)):
            config = load_config(find_config(fspath(target)), given)
            given = {name: value for name in names if (value := getattr(config, name)) is not None}
    return None if {"template", "tokens_column"} & given.keys() else given.get("text_column", "text")


def _mixed_words(number: int, part: Mapping[str, Any]) -> str:
    given = {name: value for name, value in part.items() if value is not None}
    if {"folder", "weight"} - given.keys() or given.keys() - MixedFolder.__annotations__:
        hint = "Each part needs a folder and a weight, and may have epochs."
        raise UsageError(f"mix: part {number} has {', '.join(given) or 'nothing'}.", hint)
    return f"{fspath(given['folder'])}={given['weight']},epochs={given.get('epochs', 1)}"


def _make(kind: type[Result], values: Mapping[str, Any]) -> Result:
    """Make a dataclass from JSON values; lists become tuples, and unknown keys are ignored."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if "parts" in names:
        part_kind: type[Any] = PlannedPart if kind is PlanResult else PartShare
        frozen["parts"] = tuple(make(part_kind, part) for part in frozen["parts"])
    return kind(**{name: value for name, value in frozen.items() if name in names})
