"""`Did you mean …?`: what somebody may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `word`, if any is; upper and lower case count as alike."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.7)
    return names[found[0]] if found else None


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint: `Did you mean …?`, or `otherwise` where no name is like it."""
    match = closest(word, known)
    return f"Did you mean {match}?" if match else otherwise
