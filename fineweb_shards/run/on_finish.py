"""Run the user's command at the end of a build, however it ends (--on-finish):

    --on-finish 'notify-send "shards: $FINEWEB_SHARDS_OUTCOME" "$FINEWEB_SHARDS_MESSAGE"'

The command finds the outcome in its environment, so nothing has to be quoted. Its own failure does not change
the exit code of the build.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fineweb_shards.errors import Interrupted, QuarantineError, ShardError, exit_code_of
from fineweb_shards.store.manifest import Manifest, load_manifest
from fineweb_shards.system.terminal import printable

_LONGEST_SECONDS = 60.0
_LONGEST_SECONDS_AFTER_INTERRUPT = 5.0  # the user wants the program to end now


def run_command(
    command: str, folder: Path, error: BaseException | None, location: str | None = None
) -> str | None:
    """Run the command with the outcome in FINEWEB_SHARDS_…; return a message if the command failed.
    `location` is where the shards are, if it is not the folder."""
    longest = _LONGEST_SECONDS_AFTER_INTERRUPT if isinstance(error, Interrupted) else _LONGEST_SECONDS
    environment = {**os.environ, **describe_outcome(folder, error, location)}
    try:
        done = subprocess.run(
            command,
            shell=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,  # standard output is for the result, or for --json
            timeout=longest,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"--on-finish: the command was stopped after {longest:.0f} s"
    except OSError as failure:
        return f"--on-finish: {failure.strerror}"
    return f"--on-finish: the command ended with exit code {done.returncode}" if done.returncode else None


def describe_outcome(
    folder: Path, error: BaseException | None, location: str | None = None
) -> dict[str, str]:
    """Return the environment variables that describe how the build ended."""
    manifest = _manifest_of(folder)
    outcome = "failed"
    if error is None or isinstance(error, QuarantineError):
        outcome = "complete"
    elif isinstance(error, Interrupted):
        outcome = "interrupted"
    message = printable(str(error)) if error is not None else "The shards are complete."
    values = {
        "OUTCOME": outcome,
        "EXIT_CODE": str(exit_code_of(error)),
        "MESSAGE": message,
        "FOLDER": location or str(folder),
        "SHARDS": str(manifest.shard_count if manifest else 0),
        "TOKENS": str(manifest.tokens if manifest else 0),
        "DOCUMENTS": str(manifest.documents if manifest else 0),
        "QUARANTINED": str(len(manifest.quarantined) if manifest else 0),
        "SECONDS": str(round(manifest.seconds if manifest else 0)),
    }
    return {f"FINEWEB_SHARDS_{name}": value for name, value in values.items()}


def _manifest_of(folder: Path) -> Manifest | None:
    try:
        return load_manifest(folder)
    except ShardError:
        return None  # an unreadable manifest may be the very reason why the build failed
