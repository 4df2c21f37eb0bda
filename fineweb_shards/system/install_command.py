"""The command that installs an optional package where this program runs.

People have it in a .venv (of make, of pip, or of uv, which leaves pip out), by pipx or by `uv tool`. A plain
`pip install` would install into whatever Python the shell finds first.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import re
import shlex
import sys
from pathlib import Path

from fineweb_shards.system.resume_command import relative_path

_PIPX_RECORD = "pipx_metadata.json"  # in the folder of an environment that pipx has made


def install_command(package: str) -> str:
    """Return what to type to install a package of PyPI, in a version that was tested."""
    requirement, environment = shlex.quote(_requirement(package)), Path(sys.prefix)
    if (environment / _PIPX_RECORD).exists():
        return f"pipx inject {shlex.quote(environment.name)} {requirement}"
    python = shlex.quote(str(relative_path(Path(sys.executable))))
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python} {requirement}"
    return f"{python} -m pip install {requirement}"


def _requirement(package: str) -> str:
    """Return the package as our own metadata asks for it in an extra, or its name."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # run out of a folder
        for line in importlib.metadata.requires("fineweb_shards") or ():
            if re.match(rf"{re.escape(package)}\b(?![\[-])", line):
                return line.partition(";")[0].replace(" ", "")
    return package
