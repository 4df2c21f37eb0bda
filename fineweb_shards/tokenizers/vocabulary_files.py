"""The files that define a vocabulary, in one folder: the one that was given, and what the fast engines load.

A build keeps them in its work folder, so that workers, a resume and `inspect` need nothing else. GPT-2's ship
with the package.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fineweb_shards.errors import UsageError
from fineweb_shards.system.own_files import is_plain_file, read_file
from fineweb_shards.tokenizers.gpt2 import load_gpt2_ranks
from fineweb_shards.tokenizers.rank_file import Ranks, format_ranks, parse_ranks
from fineweb_shards.vocabulary import GPT2, Vocabulary

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
