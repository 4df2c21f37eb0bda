"""Run the command in a separate process, for the library, and turn its JSON into events, results and errors.

The caller's callback and its iterator over documents run in the caller's thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from fineweb_shards import errors
from fineweb_shards.errors import Interrupted, QuarantineError, ShardError, UsageError, WorkerError
from fineweb_shards.events import Event
from fineweb_shards.storage.local import END_MARK
from fineweb_shards.system.json_values import make
from fineweb_shards.system.shell_commands import CALLER_VARIABLE
from fineweb_shards.watching.run_files import Snapshot

OnEvent = Callable[[Snapshot | Event], None]
# With our sys.path it imports the same modules as this process, whatever the current folder holds.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from fineweb_shards.__main__ import main; sys.exit(main())"
)
_JOIN_SECONDS = 5.0
# The flags in a text of the command, except in commands to paste, which are in backticks.
_FLAG = re.compile(
    r"`[^`]*`|(?<![\w/.=-])--(?P<no>no-)?(?P<name>[a-z]+(?:-[a-z]+)*)(?: (?P<number>\d(?:[\d.,]*\d)?)(?![\w/]))?"
)
_HELP = re.compile(r"`[^`]* (\w+) --help`")
_NAMES = {"part": "parts", "config": "target"}  # flags with another name in Python
_SWITCHES = {"fresh", "same-source", "index", "verify", "download", "keep-downloads"}
_ANSWERS = (0, 1, 20, 21)  # exit codes of `inspect --grep` and `status` that are no errors


class CommandProcess:
    """One run of the command in a separate process; the constructor starts it."""

    def __init__(self, words: Sequence[str], documents: Iterator[str] | None = None) -> None:
        self._documents = documents
        self._events: queue.SimpleQueue[tuple[IO[str], str]] = queue.SimpleQueue()
        self._printed: list[str] = []  # on standard output, except events
        self._complaints: list[str] = []  # on standard error
        self._open_streams = 2
        self._result: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        # Ctrl-C in a terminal signals a whole process group. This process gets its own group, and its signal from us.
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python ignores all others, too
        try:
            self._process: subprocess.Popen[str] = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(path), *words, "--json"],
                stdin=subprocess.DEVNULL if documents is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, CALLER_VARIABLE: f"{os.getpid()} {'documents' * (documents is not None)}"},
                encoding="utf-8",
                errors="backslashreplace",
                process_group=0 if os.name == "posix" else None,
            )
        except (OSError, ValueError) as error:  # too long, or with a null character
            raise UsageError(
                f"The command could not be started: {getattr(error, 'strerror', error)}.",
                "Pass a folder or a glob instead of a very long list of paths; if these are texts: input=iter(texts).",
            ) from error

    def run(self, on_event: OnEvent) -> list[dict[str, Any]]:
        """Pass events on, in this thread, until the process ends; return its results, or raise its error."""
        process = self._process
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        readers = [threading.Thread(target=self._read, args=(stream,), daemon=True) for stream in streams]
        try:
            for reader in readers:
                reader.start()
            if self._documents is not None:
                self._feed(self._documents, on_event)
            while self._open_streams:
                self._handle(*self._events.get(), on_event)
        except BaseException:
            self._interrupt()
            raise
        finally:
            self._wait()
            for reader, stream in zip(readers, streams, strict=True):
                reader.join(_JOIN_SECONDS)
                stream.close()
        return self._results()

    def _read(self, stream: IO[str]) -> None:
        try:
            with contextlib.suppress(ValueError):  # closed
                for line in stream:
                    self._events.put((stream, line))
        finally:
            self._events.put((stream, ""))

    def _feed(self, documents: Iterator[str], on_event: OnEvent) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its error says why
            for lines in documents:
                pipe.write(lines)
                pipe.flush()
                while not self._events.empty():
                    self._handle(*self._events.get(), on_event)
            pipe.write(END_MARK.decode())
            pipe.close()

    def _handle(self, stream: IO[str], line: str, on_event: OnEvent) -> None:
        """Handle a line printed by the process; an empty one is the end of the stream."""
        if not line:
            self._open_streams -= 1
            return
        if stream is self._process.stderr:
            self._complaints.append(in_python(line.rstrip()))
            on_event(Event("warning", self._complaints[-1]))
            return
        values = json.loads(line) if line.startswith('{"time"') else {}
        values.pop("time", None)
        match values.pop("event", None):
            case "message":
                on_event(Event(values["kind"], in_python(values["text"])))
            case "progress":
                on_event(make(Snapshot, values))
            case "result":
                self._result = values
                for name in {"warnings", "verdict"} & values.keys():
                    value = values[name]
                    values[name] = in_python(value) if isinstance(value, str) else [in_python(one) for one in value]
            case "error":
                self._error = {**values, "message": in_python(values["message"]), "hint": in_python(values["hint"])}
            case _:
                self._printed.append(line)

    def _wait(self) -> None:
        """Wait for the process to end; if Ctrl-C comes meanwhile, interrupt it again, which ends it at once."""
        try:
            self._process.wait()
        except KeyboardInterrupt:
            self._interrupt()
            self._process.wait()
            raise
        finally:
            if self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()

    def _interrupt(self) -> None:
        """Stop the process as Ctrl-C does, so that finished work is kept."""
        if os.name == "posix":
            self._process.send_signal(signal.SIGINT)
        else:
            self._process.terminate()

    def _results(self) -> list[dict[str, Any]]:
        if self._error is not None:
            kind = getattr(errors, self._error["type"], ShardError)
            if kind is Interrupted:  # not by us
                raise self._noted(WorkerError(f"Something else stopped the command: {self._error['message']}"))
            if kind is not QuarantineError:
                raise self._noted(kind(self._error["message"], self._error["hint"]))
        if self._result is not None:
            if self._error is not None:  # complete, but some documents were left out
                self._result["warnings"].append(self._error["message"])
            return [self._result]
        code = self._process.returncode
        if code in _ANSWERS and (self._printed or not self._complaints):
            objects, decoder, text = [], json.JSONDecoder(), "".join(self._printed).strip()
            while text:
                value, end = decoder.raw_decode(text)
                objects.append(value)
                text = text[end:].lstrip()
            return objects
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise self._noted(WorkerError(f"The command's process {how}."))

    def _noted(self, error: ShardError) -> ShardError:
        """Add what the process printed before its error, such as the names of damaged files."""
        for line in self._complaints:
            error.add_note(line)
        return error


def in_python(text: str) -> str:
    """Return a text of the command with keyword arguments for flags, such as `fresh=True` for --fresh."""

    def rename(found: re.Match[str]) -> str:
        if found["name"] is None:
            return _HELP.sub(r"`help(fineweb_shards.\1)`", found[0])
        name = _NAMES.get(found["name"], found["name"].replace("-", "_"))
        if found["name"] in _SWITCHES:
            return f"{name}={not found['no']}"
        return f"{name}={found['number'].replace(',', '_')}" if found["number"] else name

    return _FLAG.sub(rename, text)
