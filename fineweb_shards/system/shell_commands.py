"""Commands for the user to paste: the typed one, to resume it, and one that installs a package.

They name the program so that they work: `fineweb-shards` if the shell finds the one that runs, else this Python.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "fineweb-shards"
# The process that called the library, and whether it writes documents to standard input. Set by api/process.py; removed
# from the environment at the start, because it is not about child processes.
CALLER_VARIABLE = "FINEWEB_SHARDS_CALLER"
_EXTRAS = {"tokenizers": "tokenizers", "sentencepiece": "sentencepiece", "obstore": "buckets", "ray": "ray"}
_NOT_RESUMED = ("--fresh", "--yes")
# In place of the command that resumes a build, if a Python program supplies the documents.
NOT_RESUMABLE = "a Python program gave the documents, which can't be resumed: call build again with fresh=True"


@dataclass(frozen=True, slots=True)
class TypedCommand:
    """The words after the program's name."""

    words: list[str]
    caller: int | None = None  # the process that uses the library, if that started this command
    gives_documents: bool = False  # whether that process writes documents to standard input

    def resume(self) -> str:
        """Return the command that resumes this one: without --fresh and --yes."""
        if self.gives_documents:
            return NOT_RESUMABLE
        kept = [word for word in self.words if word not in _NOT_RESUMED]
        return f"{program()} {shlex.join(kept)}"


def take_typed_command(words: list[str]) -> TypedCommand:
    """Return this process's command, and remove the variable about its caller from the environment."""
    process, _, given = os.environ.pop(CALLER_VARIABLE, "").partition(" ")
    if not process.isdecimal():
        return TypedCommand(words)
    return TypedCommand([word for word in words if word != "--json"], int(process), gives_documents=bool(given))


def program(*, absolute: bool = False) -> str:
    """Return the command that starts this program from the current folder; with `absolute`, from any folder."""
    script, found = sys.argv[0], shutil.which(PROGRAM)
    if found is not None and os.path.exists(script) and os.path.samefile(found, script):
        return PROGRAM
    python = Path(sys.executable)
    return f"{shlex.quote(str(python.absolute() if absolute else relative_path(python)))} -m fineweb_shards"


def runnable_here(command: str, *, absolute: bool = False) -> str | None:
    """Return a recorded `build` command in a form that can be pasted here; None if it is not one.

    It may come from another machine, so this machine's program replaces the recorded one; `absolute` as for `program`.
    Its author is not trusted: several commands, or flags that `resume` leaves out, are not shown.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if shlex.join(words) != command:  # a shell would interpret more than these words
        return None
    name = words[0].rpartition("/")[2] if words else ""
    if name == PROGRAM:
        words = words[1:]
    elif name.startswith("python") and words[1:3] == ["-m", "fineweb_shards"]:
        words = words[3:]
    else:
        return None
    if words[:1] != ["build"] or any(word.startswith(_NOT_RESUMED) for word in words):
        return None
    return f"{program(absolute=absolute)} {shlex.join(words)}"


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
