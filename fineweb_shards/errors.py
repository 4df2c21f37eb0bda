"""Every error a user can meet: its exit code and the next step.

    ShardError                      1   something this program did not expect
    ├── NoMatch                     1   `inspect --grep` found nothing; as grep has it
    ├── UsageError                  2   a flag or a config key is wrong
    ├── InputError                  3   an input is missing, can't be read or holds no document
    │   ├── BadFileError            3   one file, or a part of it, is damaged (see --on-bad-file)
    │   └── HubError                3   the hub has no such dataset, config, split or file for us
    ├── ChangedError                4   the source or a setting is not what the manifest says
    ├── OutputError                 5   the output folder can't be written
    │   └── DiskFullError           5   no space left
    ├── LockedError                 6   another run holds the output folder
    ├── DamageError                 7   `verify` found damaged files
    ├── ExactnessError              8   tokens differ from tiktoken's
    ├── WorkerError                 9   workers end again and again, and no document is to blame
    ├── NetworkError               10   the hub could not be reached for longer than --max-outage
    ├── QuarantineError            11   everything is done, but some documents had to be left out
    ├── ReaderGone                141   of a verb that only prints: whoever read its output has left
    └── Interrupted               130   Ctrl-C (143 for SIGTERM, 129 for a closed terminal)

A user sees `message`, then `hint`. Only a bare exception, never one of these, shows a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ShardError(Exception):
    """Base of all errors that are told in a sentence instead of a traceback."""

    exit_code = 1
    hint = "This should not happen; please report it with the log in .fineweb-shards/."

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)  # both, so that the error survives a pickle between processes
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(ShardError):
    """A flag or a config key is wrong."""

    exit_code = 2
    hint = "See `fineweb-shards build --help`."


class InputError(ShardError):
    """An input is missing, or is not what it was said to be."""

    exit_code = 3
    hint = "Check --input."


class BadFileError(InputError):
    """One file, or a part of it, is damaged; `--on-bad-file skip` goes on without it."""

    hint = "Mend or remove it, or leave it out with --on-bad-file skip; the same command goes on."


class HubError(InputError):
    """The hub answers, and says no. Waiting would not help."""

    hint = "Check --dataset, --name, --split and --revision; private datasets need HF_TOKEN."


class ChangedError(ShardError):
    """The source or a setting that changes bytes is not what the manifest says."""

    exit_code = 4
    hint = "Use the old value, another --out, or --fresh to start over."


class OutputError(ShardError):
    """The output folder can't be used."""

    exit_code = 5
    hint = "Check --out."


class DiskFullError(OutputError):
    """No space is left for the shard being written."""

    hint = "Free some space and run the same command again; every finished shard is kept."


class LockedError(ShardError):
    """Another run writes into this folder."""

    exit_code = 6
    hint = "Wait for it, or choose another --out."


class DamageError(ShardError):
    """`verify` found files that are not what the manifest says."""

    exit_code = 7
    hint = "Delete the files named above and run the same build again; it makes them anew."


class ExactnessError(ShardError):
    """An engine's tokens differ from tiktoken's."""

    exit_code = 8
    hint = "Run again with --engine tiktoken, and please report the document named above."


class WorkerError(ShardError):
    """Workers end again and again, and no single document is to blame."""

    exit_code = 9
    hint = "Everything finished is kept; the same command tries again. See --max-memory and --workers."


class NetworkError(ShardError):
    """The hub could not be reached for longer than --max-outage."""

    exit_code = 10
    hint = "Everything finished is kept; run the same command again when the network is back."


class QuarantineError(ShardError):
    """The shards are complete, but for documents that nobody could encode."""

    exit_code = 11
    hint = "The shards can be used. Please report the documents, so that this can be mended."


class NoMatch(ShardError):  # noqa: N818 - it is no error, but a script may want to know
    """`inspect --grep` found nothing. Like grep, it says so by its exit code only."""

    exit_code = 1
    hint = ""

    def __init__(self) -> None:
        super().__init__("")


class ReaderGone(ShardError):  # noqa: N818 - it is no error: `fineweb-shards status | head -1`
    """Whoever read standard output has closed it. Said by the exit code only, like any program in a pipe."""

    exit_code = 141
    hint = ""

    def __init__(self) -> None:
        super().__init__("")


class Interrupted(ShardError):  # noqa: N818 - it is no error, but it ends the run like one
    """Ctrl-C, SIGTERM or SIGHUP."""

    hint = ""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `word`, if any is; upper and lower case count as alike."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.7)
    return names[found[0]] if found else None


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint: `Did you mean …?`, or `otherwise` where no name is like it."""
    match = closest(word, known)
    return f"Did you mean {match}?" if match else otherwise
