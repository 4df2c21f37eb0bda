"""The files that define a vocabulary, in one folder: the given one, and the one that fast engines load.

A build keeps them in its work folder, so that workers, a resume and `inspect` need nothing else.

A rank file (`.tiktoken`; Llama 3's `tokenizer.model` is one) has a line with base64 and a rank for every token; the
rank is the id. GPT-2's ranks ship with the package. Their hash is checked at every load: a single changed byte would
change the tokens of every run.

Fast engines load a Hugging Face `tokenizer.json`, made from ranks or from another one, without the special tokens, so
that their names are ordinary text in a document.
"""

from __future__ import annotations

import hashlib
import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from fineweb_shards.errors import InputError, ShardError, UsageError
from fineweb_shards.system.durable import write_file
from fineweb_shards.system.own_files import is_plain_file, read_file
from fineweb_shards.tokenizers.builtin_vocabularies import PATTERNS, Pattern, get_pattern
from fineweb_shards.vocabulary import GPT2, Vocabulary

Ranks = dict[bytes, int]
Merges = list[tuple[bytes, bytes]]
MOST_IDS = 2**24  # sixty times as many as in the largest vocabularies
RANKS_FILE = "gpt2.tiktoken"
FILE_NAMES = {  # by reference
    "tiktoken": "tokenizer.tiktoken",
    "tokenizers": "tokenizer.json",
    "sentencepiece": "tokenizer.model",
}
ENGINE_FILES = "engine-*.json"
# Put between texts for gigatoken. No end of it is also its beginning, so joining texts creates no further occurrences.
BOUNDARY = "\u0091fineweb-shards: a text ends here\u0092"
MOST_BYTES = 256 * 2**20  # the largest tokenizer file so far has 35 MB
_ENGINE_FILE_VERSION = 1  # raise it when the file's content changes
_AGAIN = "The file is damaged or incomplete: fetch it again, or export it again from its tokenizer."


def looks_like_ranks(data: bytes) -> bool:
    """Return whether the first line is that of a rank file."""
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
            f"{name}: {wrong[:60]!r} is not a line of a rank file.",
            "Each line holds a token in base64 and its rank, as in IQ== 0. Fetch the file again.",
        ) from None
    if not len(lines) == len(ranks) == len({*ranks.values()}):
        raise InputError(f"{name}: a token or a rank occurs twice.", _AGAIN)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise InputError(
            f"{name}: there is no token for the byte 0x{missing[0]:02x}; not every text could be encoded.", _AGAIN
        )
    return ranks


def format_ranks(ranks: Ranks) -> bytes:
    """Return the lines of a rank file, in the order of the ranks. The published files are exactly that."""
    tokens = sorted(ranks, key=ranks.__getitem__)
    return b"".join(b2a_base64(token, newline=False) + b" %d\n" % ranks[token] for token in tokens)


def _parse_line(line: bytes) -> tuple[bytes, int]:
    """Return token and rank; ValueError (binascii.Error is one) if the line holds anything else."""
    token, rank = line.split()
    number = int(rank)
    if not 0 <= number < MOST_IDS:
        raise ValueError("rank out of range")
    return a2b_base64(token, strict_mode=True), number


def _is_line(line: bytes) -> bool:
    try:
        return _parse_line(line)[0] != b""
    except ValueError:
        return False


def load_gpt2_ranks() -> Ranks:
    """Load the 50,256 byte strings of GPT-2 with their ranks, which are their token ids."""
    with open_gpt2_ranks() as path:
        # Without parsing the lines: the published file is in the order of the ranks.
        return {token: rank for rank, token in enumerate(map(a2b_base64, path.read_bytes().split()[::2]))}


@contextmanager
def open_gpt2_ranks() -> Iterator[Path]:
    """Provide the path of the rank file in the package; ShardError unless it is exactly the one that was released."""
    with resources.as_file(resources.files(__package__) / RANKS_FILE) as path:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != GPT2.sha256:
            raise ShardError(
                f"The GPT-2 vocabulary in the package is damaged: {RANKS_FILE} has SHA-256 {found}, not {GPT2.sha256}.",
                "Install fineweb_shards again.",
            )
        yield path


def is_gpt2_text(vocabulary: Vocabulary) -> bool:
    """Return whether texts have the same tokens as in GPT-2, whatever EOT is."""
    return (vocabulary.sha256, vocabulary.pattern) == (GPT2.sha256, GPT2.pattern)


def load_ranks(vocabulary: Vocabulary) -> Ranks:
    if vocabulary.sha256 == GPT2.sha256:
        return load_gpt2_ranks()
    return parse_ranks(load_definition(vocabulary), FILE_NAMES[vocabulary.reference])


def load_definition(vocabulary: Vocabulary) -> bytes:
    """Read the file that defines a vocabulary; UsageError if it is missing or has changed."""
    path = Path(vocabulary.folder, FILE_NAMES[vocabulary.reference])
    try:
        data = read_file(path, MOST_BYTES) if vocabulary.folder else None
    except OSError:
        data = None
    if data is None or hashlib.sha256(data).hexdigest() != vocabulary.sha256:
        raise _unreadable(vocabulary, "not here" if data is None else "changed")
    return data


def engine_file(vocabulary: Vocabulary) -> Path:
    """Return the path of the `tokenizer.json` that fast engines load. Its name is a hash of its origin, so that a
    resume finds exactly this one."""
    made_of = f"{_ENGINE_FILE_VERSION} {vocabulary.sha256} {vocabulary.pattern} {vocabulary.size}"
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    return Path(vocabulary.folder, ENGINE_FILES.replace("*", key))


def find_engine_file(vocabulary: Vocabulary) -> Path:
    """Return the path of the engine file; UsageError if it doesn't exist."""
    path = engine_file(vocabulary)
    if not is_plain_file(path):
        raise _unreadable(vocabulary, "not here")
    return path


def _unreadable(vocabulary: Vocabulary, why: str) -> UsageError:
    return UsageError(
        f"The vocabulary {vocabulary.name} ({vocabulary.size:,} ids) can't be read: the file that defines it is {why}.",
        "Give it with --tokenizer. `verify`, `export` and the loader work without it.",
    )


def list_merges(ranks: Ranks) -> Merges:
    """Return every pair of tokens that makes a third one, in the order of the third's rank.

    That is tiktoken's rule: it merges two neighbours if the result is a token, whichever merge created it in training.
    (In Llama 3, one merge for each token would leave 678 unreachable.)
    """
    merges: Merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return merges


def ranks_to_json(ranks: Ranks, merges: Merges, pattern: Pattern, added: list[dict[str, Any]]) -> str:
    letters = byte_letters()

    def spell(token: bytes) -> str:
        return token.decode("latin-1").translate(letters)

    is_gpt2 = pattern is PATTERNS["gpt2"]  # the only pattern built into ByteLevel
    split = {"type": "Split", "pattern": {"Regex": pattern.spelling}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": is_gpt2}
    sequence = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    unset = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": True}  # like tiktoken, look up whole pieces
    vocab = {spell(token): rank for token, rank in ranks.items()}
    pairs = [[spell(left), spell(right)] for left, right in merges]
    model = {"type": "BPE", **unset, **flags, "vocab": vocab, "merges": pairs}
    before = {"version": "1.0", "added_tokens": added, "normalizer": None}
    after = {"post_processor": None, "decoder": {"type": "ByteLevel"}, "model": model}
    return json.dumps({**before, "pre_tokenizer": byte_level if is_gpt2 else sequence, **after})


def prepare_engine_file(vocabulary: Vocabulary) -> None:
    """Make the engine file beside the vocabulary's own, unless an earlier run has: with the boundary as its only
    special token, and without truncation or padding."""
    path = engine_file(vocabulary)
    if is_plain_file(path):
        return
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    boundary = [{"id": vocabulary.size, "content": BOUNDARY, **no, "special": True}]
    if vocabulary.reference == "tiktoken":
        ranks = load_ranks(vocabulary)
        text = ranks_to_json(ranks, list_merges(ranks), get_pattern(vocabulary.pattern), boundary)
    else:
        tokenizer = json.loads(load_definition(vocabulary))
        added = [token for token in tokenizer.get("added_tokens", []) if not token["special"]]
        added += boundary if is_byte_level(tokenizer) else []
        changes = {"added_tokens": added, "truncation": None, "padding": None, "post_processor": None}
        text = json.dumps(tokenizer | changes)
    write_file(path, text.encode(), path.parent)
    for other in path.parent.glob(ENGINE_FILES):
        if other != path:
            other.unlink()


def byte_letters() -> dict[int, str]:
    """Return GPT-2's characters for the 256 bytes: printable Latin-1 unchanged, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {byte: chr(byte) if byte in printable else chr(next(others)) for byte in range(256)}


def is_byte_level(tokenizer: dict[str, Any]) -> bool:
    """Return whether a `tokenizer.json` encodes a text unchanged (without normalizing it), and its beginning like any
    other part (without a space before it)."""
    parts, normalizer = pre_tokenizers(tokenizer), tokenizer.get("normalizer")
    return (
        tokenizer["model"].get("type") == "BPE"
        and (normalizer is None or normalizer.get("normalizers") == [])
        and bool(parts)
        and parts[-1]["type"] == "ByteLevel"
        and not parts[-1].get("add_prefix_space")
        and all(part["type"] == "Split" for part in parts[:-1])
    )


def pre_tokenizers(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pre-tokenizers of a `tokenizer.json`, in order."""
    whole = tokenizer.get("pre_tokenizer") or {}
    parts: list[dict[str, Any]] = whole.get("pretokenizers", [whole] if whole else [])
    return parts
