"""The files that define a vocabulary, in one folder: the one that was given, and what the fast engines load.

A build keeps them in its work folder, so that workers, a resume and `inspect` need nothing else.

A rank file (`.tiktoken`; Llama 3's `tokenizer.model` is one) has a line with base64 and a rank for every
token; the rank is the id. GPT-2's ranks and merges ship with the package. Their hashes are checked at every
load: a single changed byte would change the tokens of every run.
"""

from __future__ import annotations

import hashlib
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from fineweb_shards.errors import InputError, ShardError, UsageError
from fineweb_shards.system.own_files import is_plain_file, read_file
from fineweb_shards.vocabulary import GPT2, Vocabulary

Ranks = dict[bytes, int]
Merges = list[tuple[bytes, bytes]]
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


RANKS_FILE = "gpt2.tiktoken"
# For every token of two bytes or more, in the order of the ids, the length of the left of the two tokens that
# it was merged from. Deriving them takes half a second, which every worker would spend.
SPLITS_FILE = "gpt2.splits"
_SPLITS_SHA256 = "e2ff5d25561ae97d2fdc48177cb3dddb1c9a2be0c6bb9e9ce1dd3b1351e483e7"


def load_gpt2_ranks() -> Ranks:
    """Load the 50,256 byte strings of GPT-2 with their ranks, which are their token ids."""
    return check_gpt2_ranks(_read(RANKS_FILE))


def load_gpt2_merges(ranks: Ranks) -> Merges:
    """Load the merges from which GPT-2's ranks were made, one for each token of two bytes or more."""
    return parse_splits(_read(SPLITS_FILE), ranks)


def check_gpt2_ranks(data: bytes) -> Ranks:
    """Parse the bytes of `gpt2.tiktoken`; raise ShardError unless they are exactly the published ones."""
    _check(RANKS_FILE, data, GPT2.sha256)
    # No line has to be looked at: they are the published ones, in the order of the ranks.
    return {token: rank for rank, token in enumerate(map(a2b_base64, data.split()[::2]))}


@contextmanager
def open_gpt2_ranks() -> Iterator[Path]:
    """Provide the path of the checked file of ranks, for a library that reads it itself."""
    with resources.as_file(resources.files(__package__) / RANKS_FILE) as path:
        _check(RANKS_FILE, path.read_bytes(), GPT2.sha256)
        yield path


def _read(name: str) -> bytes:
    return (resources.files(__package__) / name).read_bytes()


def _check(name: str, data: bytes, expected: str) -> None:
    """Raise ShardError unless a file of the package is exactly the one that was released."""
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise ShardError(
            f"The GPT-2 vocabulary in the package is damaged: {name} has SHA-256 {found}, not {expected}.",
            "Install fineweb_shards again.",
        )


def parse_splits(data: bytes, ranks: Ranks) -> Merges:
    """Parse the bytes of `gpt2.splits`; raise ShardError unless they are the right ones."""
    _check(SPLITS_FILE, data, _SPLITS_SHA256)
    longer = (token for token, _ in sort_ranks(ranks) if len(token) > 1)
    return [(token[:length], token[length:]) for token, length in zip(longer, data, strict=True)]


# By the reference, which is the same for all files of a kind.
FILE_NAMES = {
    "tiktoken": "tokenizer.tiktoken",
    "tokenizers": "tokenizer.json",
    "sentencepiece": "tokenizer.model",
}
ENGINE_FILES = "engine-*.json"
MOST_BYTES = 256 * 2**20  # a tokenizer's file has 35 MB at most, so far
_ENGINE_FILE_VERSION = 1  # to be raised when it is made in another way


def is_gpt2_text(vocabulary: Vocabulary) -> bool:
    """Return whether texts have the tokens that they have in GPT-2, whatever EOT is."""
    return (vocabulary.sha256, vocabulary.pattern) == (GPT2.sha256, GPT2.pattern)


def load_ranks(vocabulary: Vocabulary) -> Ranks:
    """Load the ranks of a vocabulary that a rank file defines."""
    if vocabulary.sha256 == GPT2.sha256:
        return load_gpt2_ranks()
    data = load_definition(vocabulary)
    return parse_ranks(data, FILE_NAMES[vocabulary.reference])


def has_definition(vocabulary: Vocabulary) -> bool:
    """Return whether the file that defines a vocabulary is there."""
    return bool(vocabulary.folder) and is_plain_file(
        Path(vocabulary.folder, FILE_NAMES[vocabulary.reference])
    )


def load_definition(vocabulary: Vocabulary) -> bytes:
    """Read the file that defines a vocabulary; UsageError if it is not there, or not the same any more."""
    path = Path(vocabulary.folder, FILE_NAMES[vocabulary.reference])
    try:
        data = read_file(path, MOST_BYTES) if vocabulary.folder else None
    except OSError:
        data = None
    if data is None or hashlib.sha256(data).hexdigest() != vocabulary.sha256:
        raise _unreadable(vocabulary, "not here" if data is None else "changed")
    return data


def load_gpt2_definition() -> bytes:
    """Return GPT-2's rank file."""
    return format_ranks(load_gpt2_ranks())


def engine_file(vocabulary: Vocabulary) -> Path:
    """Return the path of the `tokenizer.json` that fast engines load. Its name says of what it was made, so
    that a resume finds it, and never another one's."""
    made_of = f"{_ENGINE_FILE_VERSION} {vocabulary.sha256} {vocabulary.pattern} {vocabulary.size}"
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    return Path(vocabulary.folder, ENGINE_FILES.replace("*", key))


def find_engine_file(vocabulary: Vocabulary) -> Path:
    """Return the path of the engine file; UsageError if nobody has made it."""
    path = engine_file(vocabulary)
    if not is_plain_file(path):
        raise _unreadable(vocabulary, "not here")
    return path


def _unreadable(vocabulary: Vocabulary, why: str) -> UsageError:
    return UsageError(
        f"The vocabulary {vocabulary.name} ({vocabulary.size:,} ids) can't be read: the file that defines it "
        f"is {why}.",
        "Give it with --tokenizer. `verify`, `export` and the loader work without it.",
    )
