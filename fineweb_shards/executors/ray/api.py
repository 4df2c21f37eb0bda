"""Import Ray, which is an extra, and say what to do if it is not there."""

from __future__ import annotations

import importlib
from typing import Any

from fineweb_shards.errors import UsageError
from fineweb_shards.system.install_command import install_command


def load_ray() -> Any:
    """Return the package `ray`; UsageError if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError(
            f"--executor ray needs the package ray, which can't be imported: {error}.",
            f"Install it: {install_command('ray')}. Where Ray has no wheel for this platform or Python, use "
            "--executor local.",
        ) from error
