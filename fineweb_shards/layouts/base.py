"""What a layout is: a name rule, a header for n tokens, and the side EOT stands on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class Layout(ABC):
    """A pure description; the writer does the writing."""

    name: ClassVar[str]
    eot_first: ClassVar[bool]  # EOT stands before (True) or after each document
    header_bytes: ClassVar[int]

    @abstractmethod
    def shard_name(self, index: int) -> str:
        """The file name of a shard, below the output folder."""

    @abstractmethod
    def owns(self, name: str) -> bool:
        """Whether a file name could be a shard's: such a file is replaced, or deleted by --fresh."""

    @abstractmethod
    def header(self, tokens: int) -> bytes:
        """The bytes in front of `tokens` uint16 tokens; always `header_bytes` long."""

    @abstractmethod
    def loader_lines(self, folder: str) -> list[str]:
        """What a user writes to train on the shards in `folder`."""
