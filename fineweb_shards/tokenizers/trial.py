"""Find, before a run, the fastest engine that can encode with a vocabulary: it must pass the self-test.

The self-test encodes difficult strings and compares the tokens with the reference's. It catches an engine that was
updated, miscompiled, or uses another pattern, before any shard is written. Every worker encodes a few hundred strings,
in milliseconds, and compares their hash with the reference's, which it receives from the parent. GPT-2's hash is known,
so it needs no trial. For other vocabularies the trial also encodes their own tokens.

The trial runs in a separate process: loading a vocabulary of 200,000 tokens into every engine takes half a gigabyte,
and some engines print when they fail. It also makes the file that fast engines load.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fineweb_shards.errors import ExactnessError, InputError, ShardError, UsageError, WorkerError
from fineweb_shards.texts import Ids, Texts
from fineweb_shards.tokenizers import ENGINES, FAST_ENGINES, resolve_engine
from fineweb_shards.tokenizers.base import Engine, Reference, is_failure
from fineweb_shards.tokenizers.builtin_vocabularies import PATTERNS
from fineweb_shards.tokenizers.references import REFERENCES, load_token_bytes, make_reference
from fineweb_shards.tokenizers.unicode_differences import agreed_characters
from fineweb_shards.tokenizers.vocabulary_files import is_gpt2_text, prepare_engine_file
from fineweb_shards.vocabulary import Vocabulary

# The result of `digest_tokens` for tiktoken's tokens of `hostile_strings` in GPT-2; a test checks it.
GPT2_SHA256 = "f84f803c8e6f78f5adbfe2c06c140d4dedf49b49a7fbaf28953069adc202d400"
_OWN_TOKENS = 4000  # how many of a vocabulary's tokens are tried, alone and beside others
_MOST_MISTAKEN = 5000  # with more, another engine may be better
_OUT_OF_MEMORY_EXIT_CODE = 112

Encode = Callable[[Texts], list[Ids]]

_WORDS = ["a", "Hello", "don't", "I'LL", "we've", "'s", "'S", "naïve", "Straße", "你好", "日本語", "สวัสดี"]
_WORDS += ["العربية", "हिन्दी", "한국어", "🙂", "👩‍👩‍👧", "é", "e\u0301", "ﬁ", "ǅ", "ª", "ᾳ"]
_NUMBERS = ["7", "1234567890", "٣", "Ⅷ", "½", "²", "①", "𝟘"]
_SIGNS = ["!", "...", "<|endoftext|>", "'", "''", "’", "_", "$", "—", "\u200b", "\ufeff", "\ufffd", "\0"]
_SIGNS += ["\u180e", "\U000e0001", "\x7f", "\u202e", "\ud800", "\udfff", "\U0010ffff"]
_SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\xa0", "\u3000", "\u2028", "\x85", "\x1f"]


def hostile_strings() -> list[str]:
    """Return strings in which all kinds of characters meet, in both orders, with and without spaces between them."""
    atoms = [*_WORDS, *_NUMBERS, *_SIGNS, *_SPACES]
    strings = ["", *atoms, *(atom * 40 for atom in atoms)]
    partners = ["a", "7", "!", " ", "\n", "'s", "你"]
    strings += [left + right for left, right in itertools.product(atoms, partners)]
    strings += [f"{atom} {partner}" for atom, partner in itertools.product(atoms, ["x", " 9", "  ?"])]
    strings += ["".join(atoms), " ".join(atoms), "\n".join(atoms)]
    return strings


def digest_tokens(documents: Iterable[Ids]) -> str:
    digest = hashlib.sha256()
    for tokens in documents:
        digest.update(len(tokens).to_bytes(4, "little") + tokens.astype("<u4").tobytes())
    return digest.hexdigest()


def check_engine(encode: Encode, name: str, reference: Reference, expected: str) -> None:
    """Raise ExactnessError for the first string whose tokens differ from the reference's.

    The reference is only loaded if the hash is not the expected one: loading it takes a worker longer than the test.
    """
    strings = hostile_strings()
    documents = encode(Texts.from_strings(strings))
    if digest_tokens(documents) != expected:
        _compare(strings, documents, name, reference)


def _compare(strings: Sequence[str], documents: list[Ids], name: str, reference: Reference) -> None:
    right = reference.encode(Texts.from_strings(strings))
    for text, tokens, expected in zip(strings, documents, right, strict=True):
        if tokens.tolist() != expected.tolist():
            raise ExactnessError(
                f"The self-test failed: {name} encodes {text[:40]!r} as {tokens[:20].tolist()}, "
                f"{reference.name} as {expected[:20].tolist()}."
            )


@dataclass(frozen=True, slots=True)
class Trial:
    """The engine to use, and the expected result of a worker's self-test."""

    engine: type[Engine]
    selftest_sha256: str
    refusals: tuple[str, ...] = ()  # why faster engines are not used
    mistaken: str = ""  # characters that the engine misclassifies


def try_engines(
    wanted: str, vocabulary: Vocabulary, special_tokens: Iterable[str] = (), added_tokens: Iterable[str] = ()
) -> Trial:
    """Return the engine called `wanted`, or for `auto` the fastest; UsageError if it can't encode with this vocabulary,
    whose files must be saved. The names of special and other added tokens are tried as text."""
    engine = resolve_engine(wanted)
    if wanted in REFERENCES and wanted != vocabulary.reference:
        raise UsageError(
            f"--engine {wanted}: the reference for {vocabulary.name} is {vocabulary.reference}.",
            f"Use --engine auto, or --engine {vocabulary.reference}.",
        )
    if is_gpt2_text(vocabulary):
        return Trial(engine, GPT2_SHA256)
    names = tuple(special_tokens), tuple(added_tokens)
    # Twice: whatever killed the first process, such as a brief lack of memory, may be over.
    found = _try_in_process(wanted, vocabulary, *names)
    if isinstance(found, str):
        found = _try_in_process(wanted, vocabulary, *names)
    if isinstance(found, str) and wanted == "auto":  # the reference alone takes least memory
        why = f"the process that tried faster engines {found}, twice"
        found = _try_in_process(vocabulary.reference, vocabulary, *names)
        if isinstance(found, Trial):
            return replace(found, refusals=(why,))
    if isinstance(found, str):
        raise WorkerError(
            f"The tokenizer {vocabulary.name} could not be tried: each process that tried it died, the last "
            f"one {found}.",
            f"Free some memory and run the same command again, or try --engine {vocabulary.reference}.",
        )
    return found


def _try_in_process(
    wanted: str, vocabulary: Vocabulary, special_tokens: tuple[str, ...], added_tokens: tuple[str, ...]
) -> Trial | str:
    """Try the engines in a separate process; if it was killed or ran out of memory, return a phrase that says so."""
    command = [sys.executable, "-P", "-m", __name__]  # -P: import nothing from the current folder
    request = pickle.dumps((wanted, vocabulary, special_tokens, added_tokens))
    done = subprocess.run(command, input=request, capture_output=True, check=False)
    if done.returncode < 0:
        return f"was killed by signal {-done.returncode}"
    if done.returncode == _OUT_OF_MEMORY_EXIT_CODE:
        return "ran out of memory"
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace")[-300:]
        raise ShardError(
            f"The tokenizer {vocabulary.name} could not be tried: the process ended with {done.returncode}: {said}",
            f"Try --engine {vocabulary.reference}, and please report this.",
        )
    answer: Trial | ShardError = pickle.loads(done.stdout)
    if isinstance(answer, ShardError):
        raise answer
    return answer


def _try_here(
    wanted: str, vocabulary: Vocabulary, special_tokens: tuple[str, ...], added_tokens: tuple[str, ...]
) -> Trial:
    try:
        reference = make_reference(vocabulary)
        check_reference(reference, special_tokens)
        expected = digest_tokens(reference.encode(Texts.from_strings(hostile_strings())))
    except BaseException as error:
        if isinstance(error, ShardError) or not is_failure(error):
            raise
        raise InputError(
            f"{vocabulary.name}: {vocabulary.reference} fails on ordinary texts with it ({_shorten(error)}).",
            "Check the patterns in it: nested repetitions such as (a+)+ take too many steps. Or use another tokenizer.",
        ) from error
    if wanted in REFERENCES:
        return Trial(type(reference), expected)
    refusals: list[str] = []
    if vocabulary.reference != "sentencepiece":  # no other engine claims to match it exactly
        prepare_engine_file(vocabulary)
        for name in FAST_ENGINES if wanted == "auto" else [wanted]:
            found = _try_engine(ENGINES[name], reference, special_tokens + added_tokens)
            if isinstance(found, Engine):
                return Trial(ENGINES[name], expected, tuple(refusals), found.mistaken)
            refusals.append(found)
    if wanted != "auto":
        reason = refusals[0] if refusals else f"{wanted} can't read SentencePiece models"
        raise UsageError(
            f"--engine {wanted} can't encode with {vocabulary.name}: {reason}.",
            f"Use --engine auto, or --engine {vocabulary.reference}.",
        )
    return Trial(type(reference), expected, tuple(refusals))


def _try_engine(engine: type[Engine], reference: Reference, names: Iterable[str]) -> Engine | str:
    """Return an engine that matches the reference, or the reason why it can't be used. The `names` of special and added
    tokens are tried as text."""
    vocabulary = reference.vocabulary
    if not engine.installed_version():
        return f"{engine.name} is not installed"
    load_token_bytes(vocabulary)  # outside `try`: a failure here is not the engine's
    try:
        tried = engine(vocabulary)
        mistaken = find_mistaken(tried.encode, reference)
        if len(mistaken) > _MOST_MISTAKEN:
            return f"{engine.name} misclassifies {len(mistaken):,} characters"
        tried = engine(vocabulary, mistaken) if mistaken else tried
        strings = [*hostile_strings(), *own_strings(vocabulary, names)]
        _compare(strings, tried.encode(Texts.from_strings(strings)), engine.name, reference)
    except ExactnessError as error:
        return error.message.removeprefix("The self-test failed: ").rstrip(".")
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"{engine.name} can't load it ({_shorten(error)})"
    return tried


def _shorten(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]


def check_reference(reference: Reference, special_tokens: Iterable[str]) -> None:
    """Raise UsageError if a vocabulary loses text, or encodes some as EOT."""
    vocabulary = reference.vocabulary
    for text in special_tokens:
        tried = (reference.encode_text(around) for around in (text, f"a{text}b", f"a {text} b"))
        if any(vocabulary.eot in tokens for tokens in tried):
            raise UsageError(
                f"{vocabulary.name}: the text {text!r} in a document would become the EOT {vocabulary.eot}, "
                "and be mistaken for a boundary.",
                f"With --eot, choose an id that can't occur in text: the next free one is {vocabulary.size}.",
            )
    if vocabulary.reference != "tiktoken" or vocabulary.pattern in PATTERNS:
        return  # the others may have normalizers, which change text
    tokens = load_token_bytes(vocabulary)
    for text in Texts.from_strings(hostile_strings()):
        found = b"".join(tokens[token] for token in reference.encode_text(text))
        if found != text.encode():
            raise UsageError(
                f"--pattern {vocabulary.pattern}: it doesn't match every part of a text, so text would be lost: of "
                f"{text[:40]!r} it leaves {found.decode('utf-8', 'replace')[:40]!r}.",
                r"Most patterns end with |\s+(?!\S)|\s+ and match every other character before that.",
            )


def own_strings(vocabulary: Vocabulary, names: Iterable[str]) -> list[str]:
    """Return texts made of a vocabulary's own tokens: alone, before and after others, and the longest ones; and all
    `names` of special and added tokens, in every position."""
    tokens = [token.decode("utf-8", "ignore") for token in load_token_bytes(vocabulary) if token]
    chooser = random.Random(vocabulary.sha256)  # noqa: S311, RUF100
    chosen = chooser.sample(tokens, min(_OWN_TOKENS, len(tokens)))
    longest = sorted(tokens, key=len)[-100:]
    pairs = [left + right for left, right in zip(chosen, reversed(chosen), strict=True)]
    lines = [" ".join(chooser.choices(tokens, k=20)) for _ in range(200)]
    named = [text for name in names for text in (name, f"x{name}y", f" {name} ", name + name, f"{name} z")]
    return [*chosen, *longest, *pairs, *lines, *named]


def find_mistaken(encode: Encode, reference: Reference) -> str:
    """Return the characters that an engine classifies differently from the reference (as letters, digits, marks or
    white space), or reorders."""
    characters = agreed_characters()
    blocks = [characters[i : i + 64] for i in range(0, len(characters), 64)]
    agreed = _agree(encode, reference, blocks)
    doubtful = [block for block, same in zip(blocks, agreed, strict=True) if not same]
    alone = [[character] for block in doubtful for character in block]
    agreed = _agree(encode, reference, alone)
    return "".join(character for (character,), same in zip(alone, agreed, strict=True) if not same)


def _agree(encode: Encode, reference: Reference, blocks: list[list[str]]) -> list[bool]:
    """Return for each block of characters whether a text with them, beside others, has the same tokens. The text also
    has combining marks, which a normalizer may reorder."""
    lines = ("".join(f"a{c}{c}b {c}'s1{c}2e{c}\u0323\u0301\n" for c in block) for block in blocks)
    texts = Texts.from_strings(lines)
    pairs = zip(encode(texts), reference.encode(texts), strict=True)
    return [found.tolist() == expected.tolist() for found, expected in pairs]


def _answer() -> None:
    answer: Trial | ShardError
    try:
        answer = _try_here(*pickle.loads(sys.stdin.buffer.read()))
    except ShardError as error:
        answer = error
    except MemoryError:
        sys.exit(_OUT_OF_MEMORY_EXIT_CODE)
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    from fineweb_shards.tokenizers import trial

    trial._answer()  # from the imported module: pickled classes must not belong to __main__
