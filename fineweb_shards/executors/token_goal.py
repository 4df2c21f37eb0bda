"""Decide when the batches under way suffice for the tokens that are still wanted (`--max-tokens`).

What is given out beyond that is fetched and encoded for nothing, and bytes out of a bucket cost money. How
many tokens a byte makes is measured: a condition on documents, or limits of length, may leave few of them.
"""

from __future__ import annotations

from collections.abc import Callable

# Before anything is measured: a token of English has 4.6 bytes, so this is rather too much than too little.
_BYTES_PER_TOKEN = 6
_MARGIN = 1.25


class TokenGoal:
    """`wanted_tokens` returns how many tokens are still missing; None if there is no limit."""

    def __init__(self, wanted_tokens: Callable[[], int | None]) -> None:
        self._wanted_tokens = wanted_tokens
        self._first = wanted_tokens()

    def is_met_by(self, waiting_bytes: int, output_bytes: int) -> bool:
        """Return whether batches of `waiting_bytes` will probably make all that is missing, as those of
        `output_bytes` made what is there."""
        wanted = self._wanted_tokens()
        if wanted is None or self._first is None:
            return False
        made = self._first - wanted
        if output_bytes and not made:  # nothing was kept so far
            return False
        bytes_per_token = output_bytes / made if output_bytes else _BYTES_PER_TOKEN
        return waiting_bytes >= _MARGIN * wanted * bytes_per_token
