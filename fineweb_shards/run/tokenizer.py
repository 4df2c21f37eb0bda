"""Find the tokenizer that the settings name: GPT-2's in the package, a file, a known name, or a model on the hub.

It is fetched before the run. A resume uses the copy in the output folder.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from fineweb_shards.errors import InputError, NetworkError, UsageError, suggest
from fineweb_shards.events import Observer
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.run.config import Config
from fineweb_shards.storage.hub_environment import check_addresses, quiet_clients
from fineweb_shards.system.retry import Retrier
from fineweb_shards.tokenizers.builtin_vocabularies import BUILTINS, BuiltinVocabulary
from fineweb_shards.tokenizers.definition import GPT2_DEFINITION, Definition, read_definition
from fineweb_shards.tokenizers.vocabulary_files import format_ranks, load_definition, load_gpt2_ranks
from fineweb_shards.vocabulary import GPT2, Vocabulary

# Tokenizer files in a folder or repository, the most complete first.
_FILE_NAMES = ("tokenizer.json", "tokenizer.model", "original/tokenizer.model", "qwen.tiktoken")
_LARGEST_BYTES = 2**28


def find_definition(config: Config, begun: Manifest | None, observer: Observer) -> Definition:
    """Return the tokenizer of the settings. `begun` is the manifest if this is a resume."""
    name = wanted = config.tokenizer
    known, path = BUILTINS.get(wanted), Path(os.path.expanduser(wanted))
    if wanted == GPT2.name and not config.eot and not config.pattern:
        return GPT2_DEFINITION
    if known is not None and config.pattern:
        hint = "Leave it out, or name a rank file with --tokenizer."
        raise UsageError(f"--pattern {config.pattern}: the tokenizer {wanted} has its own pattern.", hint)
    # A name with a slash is a model on the hub, or a misspelt path.
    owner, _, rest = wanted.partition("/")
    looks_like_path = wanted.startswith((".", "/", "~")) or wanted.endswith((".json", ".model", ".tiktoken"))
    is_path = looks_like_path or os.path.isdir(owner) or os.path.exists(path)
    is_model = bool(owner and rest) and "/" not in rest and not is_path
    if wanted == GPT2.name:
        data = format_ranks(load_gpt2_ranks())
    elif begun and (known or is_model) and (recorded := _recorded(wanted, begun.vocabulary)):
        data, name = recorded, begun.vocabulary.name
    elif known is not None:
        data = _fetch_known(wanted, known, config, observer)
    elif is_model:
        repository, _, revision = wanted.partition("@")
        data, commit = _fetch(repository, revision, _FILE_NAMES, config, observer)
        name = f"{repository}@{commit}"
    elif wanted and os.path.exists(path):
        data, name = _read_file(path)
    else:
        # List all names: gpt4 looks like gpt2, but means cl100k_base.
        names = [f"{one} ({rank.used_by})" if rank.used_by else one for one, rank in BUILTINS.items()]
        hint = f"Name a file, one of {', '.join(names)}, or a model on the hub as ORG/NAME."
        hint = suggest(wanted, [name for name in BUILTINS if name != GPT2.name], hint)
        raise UsageError(f"--tokenizer {wanted}: there is no such file or name.", hint)
    return read_definition(data, name, pattern=config.pattern, eot=config.eot)


def _recorded(wanted: str, vocabulary: Vocabulary) -> bytes | None:
    """Return the tokenizer file in the output folder if it matches the name, and the revision if one is given."""
    repository, _, commit = vocabulary.name.partition("@")
    if vocabulary.name != wanted and not (commit and repository == wanted):
        return None
    try:
        return load_definition(vocabulary)
    except UsageError:
        return None


def _read_file(path: Path) -> tuple[bytes, str]:
    try:
        if path.is_dir():
            inside = next((path / name for name in _FILE_NAMES if (path / name).is_file()), None)
            if inside is None:
                raise UsageError(f"--tokenizer {path}: it has none of {', '.join(_FILE_NAMES)}.", "Name a file.")
            path = inside
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"--tokenizer {path}: too large for a tokenizer.", "Is it a model's weights?")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"--tokenizer {path}: {error.strerror}.", "Check the file.") from error
    if not data:
        raise InputError(f"--tokenizer {path}: the file is empty.", "Fetch it again.")
    return data, path.name


def _fetch_known(name: str, known: BuiltinVocabulary, config: Config, observer: Observer) -> bytes:
    """Fetch a known rank file from the hub, or by tiktoken from its cache or its server."""
    if known.repository:
        data, _ = _fetch(known.repository, "", (known.file,), config, observer)
    else:
        from requests import RequestException
        from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS

        try:
            data = format_ranks(ENCODING_CONSTRUCTORS[name]()["mergeable_ranks"])
        except (RequestException, OSError, ValueError) as error:
            raise NetworkError(
                f"--tokenizer {name}: not in tiktoken's cache, and the download failed ({type(error).__name__}).",
                f"Download {name}.tiktoken yourself and pass --tokenizer {name}.tiktoken, or set "
                "TIKTOKEN_CACHE_DIR to a folder that has it.",
            ) from None
    if hashlib.sha256(data).hexdigest() != known.sha256:
        hint = f"Use a copy of your own with --tokenizer FILE --pattern {known.pattern}."
        raise InputError(f"--tokenizer {name}: the downloaded file differs from the published one.", hint)
    return data


def _fetch(
    repository: str, revision: str, names: tuple[str, ...], config: Config, observer: Observer
) -> tuple[bytes, str]:
    check_addresses()
    quiet_clients()  # both must come before the clients are imported
    from fineweb_shards.storage.hub import fetch_model_file

    return fetch_model_file(repository, revision, names, Retrier(config.max_outage, observer))
