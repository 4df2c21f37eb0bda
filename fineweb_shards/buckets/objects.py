"""What is known about an object: its description in a listing, and the version that a write replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object. `name` is relative to the address under which it was found."""

    name: str
    size_bytes: int
    etag: str  # without quotes; empty if the store gives none
    modified_seconds: float


@dataclass(frozen=True, slots=True)
class Version:
    """Which content an object has, for `Bucket.write`. Stores compare one of the two values, or both."""

    etag: str | None
    version: str | None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Version:
        """Return the version in an answer of obstore."""
        return cls(answer["e_tag"], answer["version"])


def plain_etag(etag: str | None) -> str:
    """Return an ETag without quotes: some stores have them in listings, and some only in answers."""
    return etag.removeprefix("W/").strip('"') if etag else ""
