"""Encode text as tokens, exactly as a vocabulary's reference does, and decode it. Each engine has a file of its own."""

from __future__ import annotations

from fineweb_shards.errors import UsageError
from fineweb_shards.system.shell_commands import install_command
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.fastokens_engine import FastokensEngine
from fineweb_shards.tokenizers.gigatoken_engine import GigatokenEngine
from fineweb_shards.tokenizers.references import REFERENCES

# `auto` takes the first that is installed and can encode with the vocabulary.
FAST_ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (GigatokenEngine, FastokensEngine)}
ENGINES: dict[str, type[Engine]] = FAST_ENGINES | REFERENCES


def resolve_engine(name: str) -> type[Engine]:
    """Return the engine called `name`; for `auto`, the first in the table that is installed."""
    if name == "auto":
        return next(engine for engine in ENGINES.values() if engine.installed_version())
    try:
        engine = ENGINES[name]
    except KeyError:
        raise UsageError(f"--engine {name}: no such engine.", f"Choose one of: auto, {', '.join(ENGINES)}.") from None
    if not engine.installed_version():
        raise UsageError(
            f"--engine {name}: the package {name} is not installed here.",
            f"Install it: {install_command(name)}; or use --engine auto.",
        )
    return engine
