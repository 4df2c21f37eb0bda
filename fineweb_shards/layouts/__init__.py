"""Describe the output layouts: file names, headers, token width, and what their readers need.

Each layout has a file of its own. No I/O.
"""

from __future__ import annotations

from fineweb_shards.errors import UsageError, suggest
from fineweb_shards.layouts.automodel import Automodel
from fineweb_shards.layouts.base import Layout
from fineweb_shards.layouts.build_nanogpt import BuildNanoGPT
from fineweb_shards.layouts.datatrove import Datatrove
from fineweb_shards.layouts.llm_c import LlmC
from fineweb_shards.layouts.megatron import Megatron
from fineweb_shards.layouts.modded_nanogpt import ModdedNanoGPT
from fineweb_shards.layouts.nanogpt import NanoGPT
from fineweb_shards.layouts.olmo_core import OlmoCore
from fineweb_shards.layouts.plain import Plain
from fineweb_shards.layouts.torchtitan import Torchtitan

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (
    BuildNanoGPT(), LlmC(), ModdedNanoGPT(), NanoGPT(), Plain(),
    Megatron(), OlmoCore(), Datatrove(), Torchtitan(), Automodel(),
)}  # fmt: skip


def get_layout(name: str) -> Layout:
    try:
        return LAYOUTS[name]
    except KeyError:
        hint = suggest(name, LAYOUTS, f"Choose one of: {', '.join(LAYOUTS)}.")
        raise UsageError(f"--layout {name}: no such layout.", hint) from None
