"""Check that a resumed folder gets the same settings and vocabulary as before: other bytes are refused."""

from __future__ import annotations

from typing import Any

from fineweb_shards.errors import ChangedError
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.vocabulary import Vocabulary


def check_settings(manifest: Manifest, settings: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise ChangedError if a setting that changes the output differs from the manifest's.

    A setting that did not exist when the folder was begun counts as its default, which means the behaviour of
    that time.
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
    """Raise ChangedError if the folder was begun with another vocabulary."""
    if manifest.vocabulary != vocabulary:
        old, new = _describe(manifest.vocabulary), _describe(vocabulary)
        raise ChangedError(f"The vocabulary was {old} when this folder was begun and is {new} now.")


def _show(value: Any) -> str:
    """Format a setting's value for a sentence."""
    if value is None or value == "":
        return "not set"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _describe(vocabulary: Vocabulary) -> str:
    """Format what distinguishes a vocabulary from others."""
    hashed = f"SHA-256 {vocabulary.sha256[:8]}"
    pattern = f", pattern {vocabulary.pattern:.40}" if vocabulary.pattern else ""
    return f"{vocabulary.name} ({vocabulary.size:,} ids, EOT {vocabulary.eot}, {hashed}{pattern})"
