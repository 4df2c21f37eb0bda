"""The HTTP library of huggingface_hub, under one name: httpx up to its version 1, httpx2 from its version 2 on.

The sessions and errors of the hub's clients are objects of that library, with the same names in both. Supporting both
lets this package share an environment with projects that pin huggingface_hub below 2.0 (OLMo-core) or 1.4 (litgpt).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import huggingface_hub

if TYPE_CHECKING or not huggingface_hub.__version__.startswith("1."):
    import httpx2 as httpx
else:
    import httpx

__all__ = ["httpx"]
