"""Pure, no I/O: token blocks in order in, slices of shards out."""

from __future__ import annotations

from collections.abc import Iterator

from fineweb_shards.types import Counts, ShardSlice, TokenBlock


class Packer:
    """Cuts the stream every `shard_tokens` tokens, and ends it after `max_tokens`."""

    def __init__(self, shard_tokens: int, *, skip_tokens: int = 0, max_tokens: int | None = None) -> None:
        self._shard_tokens = shard_tokens
        self._skip_tokens = skip_tokens  # already in finished shards
        self._left_tokens = max_tokens  # of the whole stream
        self._room_tokens = shard_tokens  # in the current shard

    @property
    def ended(self) -> bool:
        """Whether `max_tokens` are packed."""
        return self._left_tokens == 0

    def pack(self, block: TokenBlock) -> Iterator[ShardSlice]:
        """The slices that a block is cut into. What is behind `max_tokens` is dropped."""
        position = min(self._skip_tokens, len(block.tokens))
        self._skip_tokens -= position
        if position == len(block.tokens):  # nothing new, but its counts may be
            yield ShardSlice(block.tokens[:0], block.counts, block.end, fills_shard=False)
        while position < len(block.tokens) and not self.ended:
            length = min(self._room_tokens, len(block.tokens) - position)
            if self._left_tokens is not None:
                length = min(length, self._left_tokens)
                self._left_tokens -= length
            self._room_tokens -= length
            tokens = block.tokens[position : position + length]
            position += length
            last = position == len(block.tokens)
            full = self._room_tokens == 0
            end = block.end if last else block.start.after(position)
            yield ShardSlice(tokens, block.counts if last else Counts(), end, fills_shard=full)
            if full:
                self._room_tokens = self._shard_tokens
