"""Whether a folder that was begun may go on with the settings of today: only if they give the same bytes."""

from __future__ import annotations

from typing import Any

from fineweb_shards.errors import ChangedError
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.vocabulary import Vocabulary


def check_settings(manifest: Manifest, settings: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Refuse to go on with settings that would give other bytes.

    A setting that did not exist when the folder was begun had its default: what it stands for is how things
    were done then.
    """
    for name in sorted(manifest.settings.keys() | settings.keys()):
        default = defaults.get(name)
        old, new = manifest.settings.get(name, default), settings.get(name, default)
        if old != new:
            if name == "exported_from":
                raise ChangedError("The shards to export are not those with which this folder was begun.")
            flag = f"--{name.replace('_', '-')}"
            raise ChangedError(f"{flag} was {_show(old)} when this folder was begun and is {_show(new)} now.")


def check_vocabulary(manifest: Manifest, vocabulary: Vocabulary) -> None:
    """Refuse to go on with tokens of another vocabulary."""
    if manifest.vocabulary != vocabulary:
        old, new = _describe(manifest.vocabulary), _describe(vocabulary)
        raise ChangedError(f"The vocabulary was {old} when this folder was begun and is {new} now.")


def _show(value: Any) -> str:
    """A setting's value in a sentence."""
    if value is None or value == "":
        return "not set"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _describe(vocabulary: Vocabulary) -> str:
    """What tells it from others, in a sentence."""
    hashed = f"SHA-256 {vocabulary.sha256[:8]}"
    return f"{vocabulary.name} ({vocabulary.size:,} ids, EOT {vocabulary.eot}, {hashed})"
