"""Try which engine can encode with a vocabulary, before a run: the fastest that passes the self-test.

The trial has a process of its own: loading a vocabulary of 200,000 tokens into every engine leaves half a
gigabyte, and some of them print when they give up. It also makes the file that fast engines load. GPT-2 needs
no trial.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fineweb_shards.errors import ExactnessError, InputError, ShardError, UsageError, WorkerError
from fineweb_shards.system.durable import write_file
from fineweb_shards.system.own_files import is_plain_file
from fineweb_shards.tokenizers import ENGINES, FAST_ENGINES, resolve_engine
from fineweb_shards.tokenizers.base import Engine, Reference, is_failure
from fineweb_shards.tokenizers.gigatoken_engine import BOUNDARY
from fineweb_shards.tokenizers.patterns import get_pattern
from fineweb_shards.tokenizers.references import REFERENCES, load_token_bytes, make_reference
from fineweb_shards.tokenizers.selftest import (
    GPT2_SHA256,
    check_engine_in_full,
    check_reference,
    expected_sha256,
    find_mistaken,
)
from fineweb_shards.tokenizers.tokenizer_json import (
    is_byte_level,
    list_merges,
    ranks_to_json,
    special_token,
    without_special_tokens,
)
from fineweb_shards.tokenizers.vocabulary_files import (
    ENGINE_FILES,
    engine_file,
    is_gpt2_text,
    load_definition,
    load_ranks,
)
from fineweb_shards.vocabulary import Vocabulary


def prepare_engine_file(vocabulary: Vocabulary) -> None:
    """Make the engine file beside the vocabulary's own, unless it is there from an earlier run."""
    path = engine_file(vocabulary)
    if is_plain_file(path):
        return
    write_file(path, _make(vocabulary).encode(), path.parent)
    for other in path.parent.glob(ENGINE_FILES):
        if other != path:
            other.unlink()


def _make(vocabulary: Vocabulary) -> str:
    boundary = [special_token(BOUNDARY, vocabulary.size)]
    if vocabulary.reference == "tiktoken":
        ranks = load_ranks(vocabulary)
        return ranks_to_json(ranks, list_merges(ranks), get_pattern(vocabulary.pattern), boundary)
    tokenizer: dict[str, Any] = json.loads(load_definition(vocabulary))
    return without_special_tokens(tokenizer, boundary if is_byte_level(tokenizer) else [])


_OUT_OF_MEMORY_EXIT_CODE = 112
_MOST_MISTAKEN = 5000  # more, and another engine may be better


@dataclass(frozen=True, slots=True)
class Trial:
    """The engine to use, and what a worker's self-test must give."""

    engine: type[Engine]
    selftest_sha256: str
    refusals: tuple[str, ...] = ()  # why faster engines are not used
    mistaken: str = ""  # characters that the engine takes for something else


@dataclass(frozen=True, slots=True)
class _Request:
    vocabulary: Vocabulary
    special_tokens: tuple[str, ...]
    added_tokens: tuple[str, ...]
    engine: str


def try_engines(
    wanted: str, vocabulary: Vocabulary, special_tokens: Iterable[str] = (), added_tokens: Iterable[str] = ()
) -> Trial:
    """Return the engine called `wanted`, or for `auto` the fastest; UsageError if it can't encode with this
    vocabulary, whose files are saved. The names of its special and other added tokens are tried as text."""
    if is_gpt2_text(vocabulary):
        engine = resolve_engine(wanted)
        if issubclass(engine, Reference) and engine.name != vocabulary.reference:
            raise _wrong_reference(wanted, vocabulary)
        return Trial(engine, GPT2_SHA256)
    if wanted != "auto":
        resolve_engine(wanted)
    request = _Request(vocabulary, tuple(special_tokens), tuple(added_tokens), wanted)
    # Twice: what killed the first process, such as a moment without memory, may be over.
    found = _try_in_process(request)
    if isinstance(found, str):
        found = _try_in_process(request)
    if isinstance(found, str) and wanted == "auto":  # the reference alone takes the least memory
        why = f"the process that tried faster engines {found}, twice"
        found = _try_in_process(replace(request, engine=vocabulary.reference))
        if isinstance(found, Trial):
            return replace(found, refusals=(why,))
    if isinstance(found, str):
        raise WorkerError(
            f"The tokenizer {vocabulary.name} could not be tried: each process that tried it died, the last "
            f"one {found}.",
            f"Free some memory and run the same command again, or try --engine {vocabulary.reference}.",
        )
    return found


def _try_in_process(request: _Request) -> Trial | str:
    """Try the engines in a process of its own; return how it died if something has killed it, or it has run
    out of memory."""
    command = [sys.executable, "-P", "-m", __name__]  # -P: nothing in the current folder is imported
    done = subprocess.run(command, input=pickle.dumps(request), capture_output=True, check=False)
    if done.returncode < 0:
        return f"was killed by signal {-done.returncode}"
    if done.returncode == _OUT_OF_MEMORY_EXIT_CODE:
        return "ran out of memory"
    if done.returncode:
        name, said = request.vocabulary.name, done.stderr.decode("utf-8", "replace")[-300:]
        raise ShardError(
            f"The tokenizer {name} could not be tried: the process ended with {done.returncode}: {said}",
            f"Try --engine {request.vocabulary.reference}, and please report it.",
        )
    answer: Trial | ShardError = pickle.loads(done.stdout)
    if isinstance(answer, ShardError):
        raise answer
    return answer


def _try_here(request: _Request) -> Trial:
    """Try the engines in this process."""
    vocabulary, wanted = request.vocabulary, request.engine
    try:
        reference = make_reference(vocabulary)
        check_reference(reference, request.special_tokens)
        expected = expected_sha256(vocabulary)
    except ShardError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise InputError(
            f"{vocabulary.name}: {vocabulary.reference} fails on ordinary texts with it ({_shorten(error)}).",
            "Check the patterns in it: nested repetitions such as (a+)+ take too many steps. "
            "Or use another tokenizer.",
        ) from error
    if wanted in REFERENCES:
        if wanted != vocabulary.reference:
            raise _wrong_reference(wanted, vocabulary)
        return Trial(type(reference), expected)
    refusals: list[str] = []
    if vocabulary.reference != "sentencepiece":  # no other engine claims to read its models exactly
        prepare_engine_file(vocabulary)
        for name in FAST_ENGINES if wanted == "auto" else [wanted]:
            found = _try_engine(ENGINES[name], reference, request)
            if isinstance(found, Engine):
                return Trial(ENGINES[name], expected, tuple(refusals), found.mistaken)
            refusals.append(found)
    if wanted != "auto":
        reason = refusals[0] if refusals else f"{wanted}: it reads no SentencePiece models"
        raise UsageError(
            f"--engine {wanted} can't encode with {vocabulary.name}: {reason}.",
            f"Use --engine auto, or --engine {vocabulary.reference}.",
        )
    return Trial(type(reference), expected, tuple(refusals))


def _try_engine(engine: type[Engine], reference: Reference, request: _Request) -> Engine | str:
    """Return an engine that encodes as the reference does, or why it can't be used."""
    vocabulary, names = reference.vocabulary, request.special_tokens + request.added_tokens
    if not engine.installed_version():
        return f"{engine.name} is not installed"
    load_token_bytes(vocabulary)  # not inside `try`: if that fails, no engine is to blame
    try:
        tried = engine(vocabulary)
        mistaken = find_mistaken(tried.encode, reference)
        if len(mistaken) > _MOST_MISTAKEN:
            return f"{engine.name} takes {len(mistaken):,} characters for something else"
        tried = engine(vocabulary, mistaken) if mistaken else tried
        check_engine_in_full(tried.encode, engine.name, reference, names)
    except ExactnessError as error:
        return error.message.removeprefix("The self-test failed: ").rstrip(".")
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"{engine.name} can't load it ({_shorten(error)})"
    return tried


def _shorten(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]


def _wrong_reference(wanted: str, vocabulary: Vocabulary) -> UsageError:
    return UsageError(
        f"--engine {wanted}: the reference for {vocabulary.name} is {vocabulary.reference}.",
        f"Use --engine auto, or --engine {vocabulary.reference}.",
    )


def _answer() -> None:
    request = pickle.loads(sys.stdin.buffer.read())
    answer: Trial | ShardError
    try:
        answer = _try_here(request)
    except ShardError as error:
        answer = error
    except MemoryError:
        sys.exit(_OUT_OF_MEMORY_EXIT_CODE)
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    from fineweb_shards.tokenizers import trial

    trial._answer()  # as a module of its own name, or what is pickled would be called __main__
