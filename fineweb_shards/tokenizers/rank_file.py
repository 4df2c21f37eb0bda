"""Read and write rank files (`.tiktoken`; Llama 3's `tokenizer.model` is one): a line with base64 and a rank
for every token. A token's rank is its id."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64

from fineweb_shards.errors import InputError

Ranks = dict[bytes, int]
MOST_IDS = 2**24  # sixty times those of the largest vocabularies


def looks_like_ranks(data: bytes) -> bool:
    """Return whether the first line is one of a rank file."""
    lines = data[:4096].splitlines()
    return bool(lines) and _is_line(lines[0])


def parse_ranks(data: bytes, name: str) -> Ranks:
    """Parse a rank file called `name`; InputError if it is damaged, or could not encode every text."""
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        ranks = dict(map(_parse_line, lines))
    except ValueError:
        wrong = next(line for line in lines if not _is_line(line))
        raise InputError(
            f"{name}: {wrong[:60]!r} is no line of a rank file.",
            "Each holds a token in base64 and its rank, as in IQ== 0. Fetch the file again.",
        ) from None
    if not len(lines) == len(ranks) == len({*ranks.values()}):
        raise InputError(f"{name}: a token or a rank is there twice.", _AGAIN)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise InputError(
            f"{name}: there is no token for the byte 0x{missing[0]:02x}; not every text could be encoded.",
            _AGAIN,
        )
    return ranks


def format_ranks(ranks: Ranks) -> bytes:
    """Return the lines of a rank file, in the order of the ranks. The published files are exactly that."""
    lines = (b2a_base64(token, newline=False) + b" %d\n" % rank for token, rank in sort_ranks(ranks))
    return b"".join(lines)


def sort_ranks(ranks: Ranks) -> list[tuple[bytes, int]]:
    """Return tokens and ranks in the order of the ranks."""
    return sorted(ranks.items(), key=lambda one: one[1])


def _parse_line(line: bytes) -> tuple[bytes, int]:
    """Return token and rank; ValueError (which binascii.Error is) if the line holds anything else."""
    token, rank = line.split()
    number = int(rank)
    if not 0 <= number < MOST_IDS:
        raise ValueError("no rank is that high")
    return a2b_base64(token, strict_mode=True), number


def _is_line(line: bytes) -> bool:
    try:
        return _parse_line(line)[0] != b""
    except ValueError:
        return False


_AGAIN = "The file is damaged or incomplete: fetch it again, or export it again from its tokenizer."
