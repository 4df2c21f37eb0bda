"""HTML that can't be injected into: every text is escaped unless it was made here.

What is not plainly printable (terminal escapes, bidi controls, NUL …) never reaches the page.
"""

from __future__ import annotations

import html

from fineweb_shards.system.terminal import printable

_VOID = frozenset({"meta", "link", "br", "hr"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element. `class_` and `for_` lose their underscore, others turn theirs into a hyphen."""
    spelled = (f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    start = f"<{name}{''.join(spelled)}>"
    return Markup(start if name in _VOID else f"{start}{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Children one after the other, escaped where they are text."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def escape(text: str) -> Markup:
    """Text as HTML shows it."""
    return Markup(html.escape(printable(text)))
