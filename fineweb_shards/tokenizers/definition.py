"""Read the file that defines a tokenizer: ranks, a `tokenizer.json` or a SentencePiece model; and choose its EOT, the
token that separates documents.

The kind follows from the content, not the name: Llama 3's `tokenizer.model` holds ranks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fineweb_shards.errors import InputError, UsageError
from fineweb_shards.system.durable import output_error, write_file
from fineweb_shards.system.own_files import is_plain_file, make_folder, read_file
from fineweb_shards.system.standard_streams import without_errors_on_screen
from fineweb_shards.tokenizers.base import is_failure
from fineweb_shards.tokenizers.builtin_vocabularies import BUILTINS, PATTERNS, get_pattern, resolve_pattern
from fineweb_shards.tokenizers.references import require_reference
from fineweb_shards.tokenizers.vocabulary_files import (
    FILE_NAMES,
    MOST_BYTES,
    MOST_IDS,
    format_ranks,
    is_byte_level,
    load_definition,
    looks_like_ranks,
    parse_ranks,
    pre_tokenizers,
)
from fineweb_shards.vocabulary import GPT2, CutRule, Vocabulary

# Converts a pickled tiktoken.Encoding, such as nanochat's, to a rank file.
_CONVERT = """Loading a pickle can run any program. If you trust this one, convert it:
    import base64, pickle; e = pickle.load(open("tokenizer.pkl", "rb")); r = e._mergeable_ranks
    open("ranks.tiktoken", "w").writelines(f"{base64.b64encode(t).decode()} {r[t]}\\n" for t in r)
    print(e._pat_str, e._special_tokens)  # for --pattern and --eot"""


@dataclass(frozen=True, slots=True)
class Definition:
    """A tokenizer as its file defines it."""

    vocabulary: Vocabulary
    data: bytes  # of the file, in the form that is hashed; empty for GPT-2, which the package includes
    special_tokens: Mapping[str, int]
    added_tokens: tuple[str, ...] = ()  # those of a `tokenizer.json` that are not special, but matched first in a text

    def save(self, folder: Path) -> Vocabulary:
        """Write the file into a folder, unless it exists; return the vocabulary that refers to it."""
        if not self.data:
            return self.vocabulary
        path = folder / FILE_NAMES[self.vocabulary.reference]
        if len(self.data) > MOST_BYTES:  # the copy could not be read
            raise InputError(
                f"{self.vocabulary.name}: {len(self.data):,} bytes; at most {MOST_BYTES:,} are allowed for a "
                "tokenizer.",
                "Check --tokenizer.",
            )
        try:
            make_folder(folder)
            is_saved = is_plain_file(path) and read_file(path, MOST_BYTES) == self.data
        except OSError as error:
            raise output_error(path, error) from error
        if not is_saved:
            write_file(path, self.data, folder)
        return replace(self.vocabulary, folder=str(folder))


def read_definition(data: bytes, name: str, *, pattern: str, eot: str) -> Definition:
    """Parse the content of a tokenizer's file. `name` is for messages and the manifest; `pattern` and `eot` are the
    user's settings, or empty."""
    if looks_like_ranks(data):
        return _read_ranks(data, name, pattern, eot)
    if pattern:
        raise UsageError(
            f"--pattern {pattern}: {name} is not a rank file, and has its own pattern.", "Leave --pattern out."
        )
    if data[:1] == b"\x80":
        raise UsageError(f"{name}: pickled tokenizers are not supported.", _CONVERT)
    if data.lstrip()[:1] == b"{":
        return _read_json(data, name, eot)
    # The first field of a SentencePiece model is its pieces.
    definition = _read_sentencepiece(data, name, eot) if data[:1] == b"\n" else None
    if definition is None:
        raise InputError(
            f"{name}: not a tokenizer file of a supported kind.",
            "Supported are rank files (.tiktoken), Hugging Face's tokenizer.json and SentencePiece's .model.",
        )
    return definition


def copy_definition(vocabulary: Vocabulary, folder: Path) -> None:
    """Copy a tokenizer's file, if it has one, into another folder."""
    path = Path(vocabulary.folder, FILE_NAMES[vocabulary.reference])
    if vocabulary != GPT2 and vocabulary.folder and is_plain_file(path):
        Definition(vocabulary, load_definition(vocabulary), {}).save(folder)


GPT2_DEFINITION = Definition(GPT2, b"", {"<|endoftext|>": GPT2.eot})


def _read_ranks(data: bytes, name: str, pattern: str, eot: str) -> Definition:
    ranks = parse_ranks(data, name)
    data = format_ranks(ranks)
    sha256 = hashlib.sha256(data).hexdigest()
    known_name, known = next(
        ((one, builtin) for one, builtin in BUILTINS.items() if builtin.sha256 == sha256), (name, None)
    )
    if not pattern and known is None:
        raise UsageError(
            f"{name}: a rank file does not contain the pattern that splits text into pieces.",
            f"Give it with --pattern: {', '.join(PATTERNS)}, or a regular expression.",
        )
    pattern = resolve_pattern(pattern or (known.pattern if known else ""))
    special = known.special_tokens if known else {}
    texts = {rank: token.decode("utf-8", "backslashreplace") for token, rank in ranks.items()}
    number = choose_eot(eot, special, texts, known_name)
    size = 1 + max(*ranks.values(), *special.values(), number)
    cut_rule = get_pattern(pattern).cut_rule
    vocabulary = Vocabulary(known_name, sha256, size, number, pattern=pattern, cut_rule=cut_rule)
    return GPT2_DEFINITION if vocabulary == GPT2 else Definition(vocabulary, data, special)


def _read_json(data: bytes, name: str, eot: str) -> Definition:
    try:
        tokenizer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not valid JSON ({error}).", "Fetch the file again.") from error
    if not isinstance(tokenizer.get("model"), dict):
        raise InputError(
            f"{name}: it is JSON, but not a tokenizer: it has no `model`.",
            "Name the tokenizer.json of Hugging Face's tokenizers, not vocab.json or tokenizer_config.json.",
        )
    require_reference("tokenizers", name)
    import tokenizers

    try:
        with without_errors_on_screen():  # a panic prints lines of Rust
            loaded = tokenizers.Tokenizer.from_str(data.decode())
    except BaseException as error:
        if not is_failure(error):
            raise
        why = f"{name}: Hugging Face's tokenizers can't load it ({error})."
        raise InputError(why, "Fetch the file again, or update the package tokenizers.") from error
    if tokenizer["model"].get("dropout"):
        raise UsageError(
            f"{name}: it has a dropout of {tokenizer['model']['dropout']}: the same text would get different "
            "tokens each time.",
            'Set "dropout" to null in a copy of the file.',
        )
    added = tokenizer.get("added_tokens") or []
    for token in added:
        if (found := loaded.token_to_id(token["content"])) != token["id"]:
            raise InputError(
                f"{name}: it gives the added token {token['content']!r} the id {token['id']}, but the tokenizers "
                f"library gives it {found}.",
                "The ids of added tokens must follow those of the model, in order and without gaps.",
            )
    special = {token["content"]: token["id"] for token in added if token["special"]}
    texts = {number: token for token, number in loaded.get_vocab().items() if token not in special}
    if not texts or max(texts) >= MOST_IDS:
        raise InputError(f"{name}: it has no tokens, or ids of {MOST_IDS:,} or more.", "Check the file.")
    number = choose_eot(eot, special, texts, name)
    size = 1 + max(*texts, *special.values(), number)
    vocabulary = Vocabulary(
        name, hashlib.sha256(data).hexdigest(), size, number, "", "tokenizers", _cut_rule_of(tokenizer)
    )
    others = tuple(token["content"] for token in added if not token["special"])
    return Definition(vocabulary, data, special, others)


def _read_sentencepiece(data: bytes, name: str, eot: str) -> Definition | None:
    require_reference("sentencepiece", name)
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        pieces = range(processor.vocab_size())
    except (RuntimeError, TypeError):
        return None
    special = {processor.id_to_piece(i): i for i in pieces if processor.is_control(i)}
    texts = {i: processor.id_to_piece(i) for i in pieces if not processor.is_control(i)}
    number = choose_eot(eot, special, texts, name)
    size = max(processor.vocab_size(), number + 1)
    vocabulary = Vocabulary(name, hashlib.sha256(data).hexdigest(), size, number, "", "sentencepiece")
    return Definition(vocabulary, data, special)


def _cut_rule_of(tokenizer: dict[str, Any]) -> CutRule | None:
    """Return the rule for cutting long documents under a `tokenizer.json`: that of its pattern, if it is a known one
    and nothing else changes a text."""
    parts = pre_tokenizers(tokenizer)
    has_text_added = any(not token["special"] for token in tokenizer.get("added_tokens") or [])
    if not is_byte_level(tokenizer) or has_text_added or len(parts) > 2:
        return None
    if len(parts) == 1:
        return "words" if parts[0].get("use_regex", True) else None
    regex = parts[0]["pattern"].get("Regex")
    known = any(regex in (pattern.regex, pattern.spelling) for pattern in PATTERNS.values())
    isolated = parts[0]["behavior"] == "Isolated" and not parts[0]["invert"]
    return "words" if known and isolated and not parts[1].get("use_regex", True) else None


# Usual names of the token that ends a text. If a tokenizer has exactly one of them, there is no doubt.
_USUAL_NAMES = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<EOT>", "<｜end▁of▁sentence｜>"}
_MOST_LISTED = 12


def choose_eot(wanted: str, special: Mapping[str, int], texts: Mapping[int, str], name: str) -> int:
    """Return the id of EOT in the tokenizer `name`: the `wanted` one, by name or id, or else the only usual one.
    `special` are its special tokens, `texts` those that stand for text."""
    free = {token: number for token, number in special.items() if number not in texts}
    usual = [number for token, number in free.items() if token in _USUAL_NAMES]
    highest = max([*texts, *special.values()])
    if not wanted and len(usual) == 1:
        return usual[0]
    if wanted in free:
        return free[wanted]
    if not wanted:
        problem = f"{name}: it is not obvious which token ends a document."
    elif not wanted.isdecimal():
        problem = f"--eot {wanted}: {name} has no special token of this name."
    elif int(wanted) in texts:
        problem = f"--eot {wanted}: in {name} this id stands for the text {texts[int(wanted)][:40]!r}."
    elif int(wanted) > 2 * highest + 1000:
        raise UsageError(
            f"--eot {wanted}: the ids of {name} end at {highest:,}.", f"The next free one is {highest + 1}."
        )
    else:
        return int(wanted)
    listed = [f"{token} ({number})" for token, number in sorted(special.items(), key=lambda one: one[1])]
    more = f" and {len(listed) - _MOST_LISTED:,} more" if len(listed) > _MOST_LISTED else ""
    hint = f"Name one with --eot NAME or --eot ID: {', '.join(listed[:_MOST_LISTED])}{more}."
    if not special:
        hint = f"Name one with --eot ID. The ids of its tokens end at {highest}, so {highest + 1} is free."
    raise UsageError(problem, hint)
