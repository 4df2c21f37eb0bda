"""Check that a resumed folder gets the same settings and vocabulary as before: other bytes are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fineweb_shards.errors import ChangedError
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.vocabulary import Vocabulary


def check_settings(before: Manifest, now: Manifest, defaults: Mapping[str, Any]) -> None:
    """Raise ChangedError if a setting that changes the output, or the vocabulary, is not the one with which
    the folder was begun.

    A setting that did not exist when the folder was begun counts as its default, which means the behaviour of
    that time.
    """
    if len(before.parts) != len(now.parts):
        counts = f"{len(before.parts):,} parts when this folder was begun and has {len(now.parts):,} now."
        raise ChangedError(f"The input had {counts}")
    for old_part, new_part in zip(before.parts, now.parts, strict=True):
        old_settings, new_settings = before.settings | old_part.settings, now.settings | new_part.settings
        for name in sorted(old_settings.keys() | new_settings.keys()):
            default = defaults.get(name)
            old, new = old_settings.get(name, default), new_settings.get(name, default)
            if old == new:
                continue
            if name == "exported_from":
                raise ChangedError("The shards to export are not those with which this folder was begun.")
            flag = f"--{name.replace('_', '-')}"
            raise ChangedError(f"{flag} was {_show(old)} when this folder was begun and is {_show(new)} now.")
    if before.vocabulary != now.vocabulary:
        old, new = _describe(before.vocabulary), _describe(now.vocabulary)
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
