"""All errors shown to a user, with their exit codes and hints at the next step.

The user sees `message`, then `hint`, which defaults to the class's. Only other exceptions, which are bugs, show a
traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import traceback
from collections.abc import Iterable, Iterator


class ShardError(Exception):
    """Base of all errors shown as a sentence instead of a traceback."""

    exit_code = 1
    hint = "This should not happen; please report it with the log in .fineweb-shards/."

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)  # so that unpickling in another process restores both
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(ShardError):
    exit_code = 2  # a flag or a config key is wrong
    hint = "See `fineweb-shards build --help`."


class NoTrainingError(UsageError):
    """Unintentionally, all of the input would be for validation; the same command with `flags` leaves some for
    training."""

    def __init__(self, message: str, flags: str) -> None:
        super().__init__(message, flags)
        self.flags = flags


class InputError(ShardError):
    exit_code = 3  # an input is missing, can't be read or contains no document
    hint = "Check --input."


class BadFileError(InputError):  # one file, or a part of it, is damaged
    hint = "Repair or remove the file, or leave it out with --on-bad-file skip; rerun the same command to resume."


class HubError(InputError):  # the hub refuses, and no retry would change that
    hint = "Check --dataset, --name, --split and --revision; private datasets need HF_TOKEN."


class ChangedError(ShardError):
    exit_code = 4  # the source or a setting differs from the manifest
    hint = "Use the old value, another --out, or --fresh to start over."


class OutputError(ShardError):
    exit_code = 5  # the output folder can't be written
    hint = "Check --out."


class OutOfNumbersError(OutputError):
    """Unlike with other OutputErrors, finished work can still be recorded (writing/placement.py)."""


class DiskFullError(OutputError):  # no space is left for the shard being written
    hint = "Free some space and rerun the same command; every finished shard is kept."


class LockedError(ShardError):
    exit_code = 6  # another run holds the output folder
    hint = "Wait for that run to end, or choose another --out."


class DamageError(ShardError):
    exit_code = 7  # `verify` found damaged files
    hint = "Delete the files named above and rerun the same build, which remakes them."


class ExactnessError(ShardError):
    exit_code = 8  # tokens differ from the reference's
    hint = "Rerun with --engine set to the tokenizer's reference (tiktoken for GPT-2), and please report this."


class WorkerError(ShardError):
    exit_code = 9  # workers crash again and again, and no single document is the cause
    hint = "Everything finished is kept; rerun the same command to resume. See --max-memory and --workers."


class NetworkError(ShardError):
    exit_code = 10  # the hub or a bucket could not be reached for longer than --max-outage
    hint = "Everything finished is kept; rerun the same command when the network is back."


class QuarantineError(ShardError):
    exit_code = 11  # done, but some documents had to be left out
    hint = "The shards are usable. The list has the reasons; please report documents that crash an engine."


class NoMatch(ShardError):  # noqa: N818 - not an error, but scripts need the exit code
    """Nothing was found. As with grep, only the exit code shows it."""


class ReaderGone(ShardError):  # noqa: N818 - not an error: `fineweb-shards status | head -1`
    """The reader closed the pipe. As usual, only the exit code shows it."""

    exit_code = 141


class Interrupted(BaseException):
    """The run was stopped by Ctrl-C, SIGTERM or SIGHUP.

    A signal handler may raise it anywhere. Like KeyboardInterrupt it is a BaseException, because libraries mistake any
    Exception for their own error (`Thread.start` turns it into a KeyError).
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)
        self.message = message
        self.exit_code = exit_code

    def __str__(self) -> str:
        return self.message


@contextlib.contextmanager
def concerning(what: str) -> Iterator[None]:
    """Prefix the message of an error with its subject."""
    try:
        yield
    except ShardError as error:
        if what:
            error.message = f"{what}: {error.message}"
            error.args = (error.message, *error.args[1:])
        raise


def exit_code_of(error: BaseException | None) -> int:
    """Return the exit code of a run that ends with this error, or without one (None)."""
    if isinstance(error, MemoryError):
        return WorkerError.exit_code
    return error.exit_code if isinstance(error, (ShardError, Interrupted)) else int(error is not None)


def describe_error(error: BaseException) -> str:
    """Return an unexpected exception and its traceback as text."""
    return f"{type(error).__name__}: {error}\n" + "".join(traceback.format_exception(error)).rstrip()


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `word`, ignoring case; None if none is similar."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.7)
    return names[found[0]] if found else None


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the hint `Did you mean …?`, or `otherwise` if no known name is similar to `word`."""
    match = closest(word, known)
    return f"Did you mean {match}?" if match else otherwise
