"""The command as it was typed, so that it can be pasted to go on.

`make` tells what was typed in an environment variable. Otherwise the program is named in a way that works:
`fineweb-shards` where the shell finds it, else the path it was started by.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "fineweb-shards"
# Set by the Makefile, as words for a shell. Not handed on: a command started by this one is another one.
VARIABLE = "FINEWEB_SHARDS_COMMAND"


@dataclass(frozen=True, slots=True)
class TypedCommand:
    """The words behind the program's name, and the `make` command that stands for them, if one does."""

    words: list[str]
    make_command: str | None = None

    def resume(self, secret_flag: str | None = None) -> str:
        """The command that goes on where this one stopped: not with --fresh and its --yes, and without a flag
        whose value may be a secret."""
        kept: list[str] = []
        skip_value = False
        for word in self.words:
            secret = secret_flag is not None and word.startswith(secret_flag)
            if not skip_value and word not in ("--fresh", "--yes") and not secret:
                kept.append(word)
            skip_value = word == secret_flag
        if self.make_command and kept == self.words:
            return self.make_command
        return f"{program()} {shlex.join(kept)}"


def take_typed_command(words: list[str]) -> TypedCommand:
    """This process's command; what `make` said about it is taken out of the environment."""
    told = os.environ.pop(VARIABLE, "")
    try:
        return TypedCommand(words, shlex.join(shlex.split(told)) or None)
    except ValueError:  # quotes that don't close: nothing that could be pasted
        return TypedCommand(words)


def program() -> str:
    """What to type, in this folder, to start this program again."""
    script = Path(sys.argv[0])
    if script.stem == PROGRAM and script.is_file():
        found = shutil.which(PROGRAM)
        on_path = found is not None and os.path.samefile(found, script)
        return PROGRAM if on_path else shlex.quote(_from_here(script))
    typed = sys.orig_argv[0] if sys.orig_argv else ""
    python = typed if os.sep in typed else sys.executable
    return f"{shlex.quote(_from_here(Path(python)))} -m fineweb_shards"


def runnable_here(command: str) -> str:
    """A command from another terminal. There the shell may have found a program that this one does not."""
    name, _, rest = command.partition(" ")
    return f"{program()} {rest}" if name == PROGRAM and shutil.which(PROGRAM) is None else command


def _from_here(path: Path) -> str:
    """The shorter way where it lies below this folder: `.venv/bin/…`."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else str(path)
