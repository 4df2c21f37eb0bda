"""Text to GPT-2 tokens. `open_engine` is the way in; an engine is a small file beside this one."""

from __future__ import annotations

from fineweb_shards.errors import UsageError
from fineweb_shards.tokenizers.base import Engine
from fineweb_shards.tokenizers.fastokens_engine import FastokensEngine
from fineweb_shards.tokenizers.tiktoken_engine import TiktokenEngine

# The order is that of `auto`: the first that is installed.
ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (FastokensEngine, TiktokenEngine)}


def resolve_engine(name: str) -> type[Engine]:
    """The engine called `name`; `auto` is the first in the table that is installed."""
    if name == "auto":
        return next(engine for engine in ENGINES.values() if engine.installed_version())
    try:
        engine = ENGINES[name]
    except KeyError:
        raise UsageError(
            f"--engine {name}: no such engine.", f"Choose one of: auto, {', '.join(ENGINES)}."
        ) from None
    if not engine.installed_version():
        raise UsageError(
            f"--engine {name}: the package {name} is not installed here.",
            f"`pip install {name}`, or use --engine auto.",
        )
    return engine
