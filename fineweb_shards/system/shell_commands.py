"""Commands for the user to paste: the typed one, to resume it, and one that installs a package.

The Makefile passes a `make` command in an environment variable. Otherwise the program is named so that the command
works: `fineweb-shards` if the shell finds it, else the path it was started by.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "fineweb-shards"
# Set by the Makefile, as words for a shell. Removed from the environment, because child processes have other commands.
VARIABLE = "FINEWEB_SHARDS_COMMAND"
# The process that called the library, and whether it writes documents to standard input; set by api/process.py and
# removed in the same way.
CALLER_VARIABLE = "FINEWEB_SHARDS_CALLER"
_EXTRAS = {"tokenizers": "tokenizers", "sentencepiece": "sentencepiece", "obstore": "buckets", "ray": "ray"}
_NOT_RESUMED = ("--fresh", "--yes")
# In place of the command that resumes a build, if a Python program gives the documents.
NOT_RESUMABLE = "a Python program gave the documents, which can't be resumed: call build again with fresh=True"


@dataclass(frozen=True, slots=True)
class TypedCommand:
    """The words after the program's name, and the `make` command, if that was typed instead."""

    words: list[str]
    make_command: str | None = None
    caller: int | None = None  # the process that uses the library, if that started this command
    gives_documents: bool = False  # that process, to standard input

    def resume(self) -> str:
        """Return the command that resumes this one: without --fresh and --yes."""
        if self.gives_documents:
            return NOT_RESUMABLE
        kept = [word for word in self.words if word not in _NOT_RESUMED]
        if self.make_command and kept == self.words:
            return self.make_command
        return f"{program()} {shlex.join(kept)}"

    def with_flags(self, flags: str) -> str:
        """Return the command with more flags; `make` has them in its variable ARGS."""
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
    """Return the command that starts this program from the current folder; with `absolute`, from any folder."""
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
    """Return a recorded `build` command in a form that can be pasted here; None if it is not one.

    It may come from another machine, so this machine's program replaces the recorded one; `absolute` as for `program`.
    Its author is not trusted: several commands, or flags that `resume` leaves out, are not shown.
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
    """Split a command into words; none if a shell would interpret more than these words."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words if shlex.join(words) == command else []


def _is_make_setting(word: str) -> bool:
    """Return whether a word sets one of the Makefile's variables to a value that make does not expand."""
    name, _, value = word.partition("=")
    if name not in ("SAMPLE", "OUT", "WORKERS", "ARGS") or "$" in value or not value.isprintable():
        return False
    words = _words_of(value)  # make passes them to the shell unchanged
    return name != "ARGS" or not value or (bool(words) and _are_harmless(words))


def _are_harmless(words: list[str]) -> bool:
    return not any(word.startswith(_NOT_RESUMED) for word in words)


def relative_path(path: Path) -> Path:
    """Return the path relative to the current folder, such as `.venv/bin/…`, if it is below that."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path


def install_command(package: str) -> str:
    """Return the command that installs a PyPI package for the Python that runs this program; a plain `pip install`
    would use the first Python that the shell finds. For users of other installers it names our extra with the
    package, if there is one."""
    python = shlex.quote(str(relative_path(Path(sys.executable))))
    extra = _EXTRAS.get(package)
    return f"{python} -m pip install {package}" + (f" (the extra `{extra}` of fineweb_shards)" if extra else "")
