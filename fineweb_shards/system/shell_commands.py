"""Commands for the user to paste: the one that was typed, to resume it, and one that installs a package.

The Makefile passes a `make` command in an environment variable. Otherwise the program is named by something that works:
`fineweb-shards` if the shell finds it, else the path it was started by.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "fineweb-shards"
# Set by the Makefile, as words for a shell. Removed from the environment, because it is not the command of child
# processes.
VARIABLE = "FINEWEB_SHARDS_COMMAND"
# Set by the library (api/process.py), and removed in the same way: the process that has called it, and whether it
# writes documents to standard input.
CALLER_VARIABLE = "FINEWEB_SHARDS_CALLER"
_EXTRAS = {"tokenizers": "tokenizers", "sentencepiece": "sentencepiece", "obstore": "buckets", "ray": "ray"}
_NOT_RESUMED = ("--fresh", "--yes")
# In place of the command that resumes a build, if a Python program gives the documents.
NOT_RESUMABLE = "a Python program gave the documents, which can't be resumed: call build again with fresh=True"


@dataclass(frozen=True, slots=True)
class TypedCommand:
    """The words after the program's name, and the `make` command that was typed instead, if one was."""

    words: list[str]
    make_command: str | None = None
    caller: int | None = None  # the process that uses the library, if it has started this command
    gives_documents: bool = False  # by that process

    def resume(self) -> str:
        """Return the command that resumes this one: without --fresh and --yes."""
        if self.gives_documents:
            return NOT_RESUMABLE
        kept = [word for word in self.words if word not in _NOT_RESUMED]
        if self.make_command and kept == self.words:
            return self.make_command
        return f"{program()} {shlex.join(kept)}"

    def with_flags(self, flags: str) -> str:
        """Return the command with more flags; those of `make` are in its variable ARGS."""
        command = self.resume()
        if command != self.make_command:
            return f"{command} {flags}"
        words = shlex.split(command)
        arguments = next((word for word in words if word.startswith("ARGS=")), "ARGS=")
        kept = [word for word in words if word != arguments]
        return shlex.join([*kept, f"{arguments} {flags}".replace("= ", "=", 1)])


def take_typed_command(words: list[str]) -> TypedCommand:
    """Return this process's command, and remove the variables about it from the environment."""
    make_command, caller = os.environ.pop(VARIABLE, ""), os.environ.pop(CALLER_VARIABLE, "")
    process, _, given = caller.partition(" ")
    if process.isdecimal():
        kept = [word for word in words if word != "--json"]
        return TypedCommand(kept, caller=int(process), gives_documents=bool(given))
    try:
        return TypedCommand(words, shlex.join(shlex.split(make_command)) or None)
    except ValueError:  # unbalanced quotes: the command could not be pasted
        return TypedCommand(words)


def program(*, absolute: bool = False) -> str:
    """Return what to type in the current folder to start this program; with `absolute`, in any folder."""
    shown = Path.absolute if absolute else relative_path
    script = Path(sys.argv[0])
    if script.stem == PROGRAM and script.is_file():
        found = shutil.which(PROGRAM)
        on_path = found is not None and os.path.samefile(found, script)
        return PROGRAM if on_path else shlex.quote(str(shown(script)))
    typed = sys.orig_argv[0] if sys.orig_argv else ""
    python = typed if os.sep in typed else sys.executable
    return f"{shlex.quote(str(shown(Path(python))))} -m fineweb_shards"


def runnable_here(command: str, *, absolute: bool = False) -> str | None:
    """Return a recorded `build` command as it can be pasted here, or None if it is none.

    It may be from another machine, whose program is elsewhere, so that this one's takes its place; `absolute` as for
    `program`. And anybody may have written it: more than one command, and flags that `resume` leaves out, are not
    shown.
    """
    words = _words_of(command)
    if words[:2] == ["make", "shards"]:
        return command if all(map(_is_make_setting, words[2:])) else None
    name = words[0].rpartition("/")[2] if words else ""
    if name == PROGRAM:
        words = words[1:]
    elif name.startswith("python") and words[1:3] == ["-m", "fineweb_shards"]:
        words = words[3:]
    else:
        return None
    if words[:1] != ["build"] or not _are_harmless(words):
        return None
    return f"{program(absolute=absolute)} {shlex.join(words)}"


def _words_of(command: str) -> list[str]:
    """Split a command into words; none if a shell would see more in it than these words."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words if shlex.join(words) == command else []


def _is_make_setting(word: str) -> bool:
    """Tell whether a word sets one of the Makefile's variables, to something that make does not expand."""
    name, _, value = word.partition("=")
    if name not in ("SAMPLE", "OUT", "WORKERS", "ARGS") or "$" in value or not value.isprintable():
        return False
    words = _words_of(value)  # make puts them into a line for the shell as they are
    return name != "ARGS" or not value or (bool(words) and _are_harmless(words))


def _are_harmless(words: list[str]) -> bool:
    return not any(word.startswith(_NOT_RESUMED) for word in words)


def relative_path(path: Path) -> Path:
    """Return a relative path, such as `.venv/bin/…`, if it lies below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path


def install_command(package: str) -> str:
    """Return what to type to install a package of PyPI for the Python that runs this program: a plain `pip install`
    would install into whatever Python the shell finds first. If an extra of ours brings the package it is named, for
    those who install by other means than pip."""
    python = shlex.quote(str(relative_path(Path(sys.executable))))
    extra = _EXTRAS.get(package)
    return f"{python} -m pip install {package}" + (f" (the extra `{extra}` of fineweb_shards)" if extra else "")
