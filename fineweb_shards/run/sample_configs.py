"""Find the configs that come with the program by name: `demo`, `sample-10BT` and so on.

There is one copy of them, the folder `configs` of the project. A wheel has it inside the package (see
pyproject.toml); in a checkout, and so in an editable install, it lies beside the package.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from fineweb_shards.errors import UsageError, suggest

_PACKAGE = Path(__file__).parent.parent


@cache
def bundled_configs() -> dict[str, Path]:
    """Return the bundled configs: name to file."""
    places = [_PACKAGE / "configs"]
    if (_PACKAGE.parent / "pyproject.toml").is_file():  # else that folder belongs to another package
        places.append(_PACKAGE.parent / "configs")
    return {path.stem: path for place in places for path in sorted(place.glob("*.toml"))}


def find_config(text: str) -> Path:
    """Return the file that `--config TEXT` means: a bundled name, or the path of a TOML file."""
    if text in bundled_configs():
        return bundled_configs()[text]
    path = Path(os.path.expanduser(text))
    if os.path.isfile(path):
        return path
    here = {str(other) for other in path.parent.glob("*.toml") if other.name != "pyproject.toml"}
    what = (
        "is a folder, not a TOML file"
        if os.path.isdir(path)
        else "no such TOML file, and no sample of that name"
    )
    raise UsageError(f"--config {text}: {what}.", suggest(text, {*here, *bundled_configs()}, samples_hint()))


def samples_hint() -> str:
    """Return a hint that lists the bundled configs."""
    return f"The samples are {', '.join(bundled_configs())}."
