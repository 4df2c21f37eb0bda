"""Warn about output that the training code (the reader) could not use: before a build and after it.

Before a build the warnings are about the files that are expected, after it about those that exist. The limits
of each reader are in layouts/; here are splits that are empty, which settings to choose instead, and files
that a reader would open and that do not belong to the output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fineweb_shards.errors import NoTrainingError
from fineweb_shards.layouts.base import Layout, SizedFile, quote_string, tokens_of
from fineweb_shards.run.config import Config
from fineweb_shards.storage.bucket_address import BucketAddress, copy_command
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.store.shard_files import list_files
from fineweb_shards.store.sidecars import with_sidecars
from fineweb_shards.store.store import OutputSpec, Store
from fineweb_shards.stream.split import SplitRule
from fineweb_shards.types import SPLITS, Split
from fineweb_shards.units import show_bytes, show_count, show_number_of

_MOST_EXPECTED_FILES = 20_000
_SHOWN_STRAYS = 3


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A file that a build will make, according to its plan."""

    name: str
    split: Split
    tokens: int
    documents: int


def expect_files(
    spec: OutputSpec, tokens: int, documents: int, *, exact: bool, val_files_share: float = 0.0
) -> list[ExpectedFile]:
    """Return the files that a stream of `tokens` tokens will become; for an estimate, without the last shard,
    whose size can't be predicted. `val_files_share` is the share of the input's bytes in --val-input."""
    if not spec.layout.one_file and tokens // spec.shard_tokens > _MOST_EXPECTED_FILES:
        return []
    val = _expect_validation(spec.split_rule, tokens, documents, val_files_share)
    files = []
    for split, size in zip(SPLITS, (val, tokens - val), strict=True):
        first = spec.split_rule.first_index(split, spec.shard_tokens, val)
        sizes = _cut(size, size or 1 if spec.layout.one_file else spec.shard_tokens)
        if split == "train" and len(sizes) > 1 and (not exact or spec.drop_short):
            sizes = [each for each in sizes if each == spec.shard_tokens]
        for number, each in enumerate(sizes):
            name = spec.layout.shard_name(split, first + number)
            files.append(ExpectedFile(name, split, each, round(documents * each / tokens)))
    return files


def _expect_validation(rule: SplitRule, tokens: int, documents: int, val_files_share: float) -> int:
    """Return how many tokens will be for validation; an estimate, unless the rule is about tokens."""
    if rule.val_ratio:
        return round(tokens * rule.val_ratio) if round(documents * rule.val_ratio) else 0
    if rule.val_documents:
        return round(tokens * min(1.0, rule.val_documents / max(1, documents)))
    if rule.val_files:
        return round(tokens * val_files_share)
    return min(tokens, rule.val_tokens)


def reader_warnings(
    spec: OutputSpec, files: Sequence[SizedFile], *, dropped_tokens: int = 0, made: bool = True
) -> list[str]:
    """Return warnings about these files, each with a next step. `made`: the files exist, so that other
    settings need --fresh."""
    if not files and not dropped_tokens:
        return []
    next_step = "Run it again with --fresh and" if made else "Choose"
    splits = {file.split for file in files}
    found = []
    if "train" not in splits:
        found.append(_missing_training(spec, files, dropped_tokens, next_step))
    if "val" not in splits and "val" in spec.layout.missing_split_errors:  # else the reader does not need one
        found.append(_missing_validation(spec, files, next_step))
    return found + spec.layout.warnings(files, spec.gpus)


def training_error(
    spec: OutputSpec, config: Config, tokens: int, documents: int = 1, *, about: bool = False
) -> NoTrainingError | None:
    """Return the error if a whole stream of `tokens` tokens (`about`: by an estimate) would be for validation
    and nobody has asked for that: the layout's default is the first shard."""
    if not config.leaves_validation_to_layout or not 2 <= tokens <= spec.split_rule.val_tokens:
        return None
    all_tokens = f"the whole input, about {show_count(tokens)} tokens," if about else f"all {tokens:,} tokens"
    return NoTrainingError(
        f"There would be nothing to train on: by default the first {spec.shard_tokens:,} tokens are for "
        f"validation, and so {all_tokens} would be.",
        f"--val-tokens {_fitting_validation(spec, tokens, documents)}",
    )


def _fitting_validation(spec: OutputSpec, tokens: int, documents: int) -> int:
    """Return how many of the tokens to take for validation: a tenth, or more if the reader needs more."""
    for part in (10, 4, 2):
        val = _rounded(tokens // part)
        files = expect_files(
            replace(spec, split_rule=SplitRule(val_tokens=val)), tokens, documents, exact=True
        )
        if not spec.layout.warnings(files, spec.gpus):
            return val
    return _tenth(tokens)


def stray_warnings(store: Store, layout: Layout, finished: Collection[str] | None = None) -> list[str]:
    """Warn about files beside the shards that the reader would take for shards: those of other programs and,
    if the names of all finished files are given, shards that are not among them."""
    is_ours = layout.owns if finished is None else finished.__contains__
    opened = [name for name in sorted(store.list_names()) if layout.opens(name) or layout.owns(name)]
    strays = [name for name in opened if not is_ours(name)]
    if not strays:
        return []
    shown = ", ".join(strays[:_SHOWN_STRAYS]) + (" …" if len(strays) > _SHOWN_STRAYS else "")
    return [
        f"{store.location} holds {show_number_of(len(strays), 'other file')} that {layout.name} would open: "
        f"{shown}. Choose a folder of its own (--out), or move them away."
    ]


def _missing_training(
    spec: OutputSpec, files: Sequence[SizedFile], dropped_tokens: int, next_step: str
) -> str:
    said = spec.layout.missing_split_errors.get("train")
    failure = f' ({spec.layout.name} would stop: "{said}")' if said else ""
    tokens = sum(file.tokens for file in files) + dropped_tokens
    part = _tenth(tokens)
    if dropped_tokens:
        cause = f"its {dropped_tokens:,} tokens do not fill a shard and --last-shard drop leaves them out"
        remedy = f"--last-shard keep, or --shard-tokens {part}"
    elif spec.split_rule.val_ratio:
        cause, remedy = f"all {tokens:,} tokens are for validation", f"--val-tokens {part}"
    elif not spec.split_rule.counts_tokens:
        cause = f"all {tokens:,} tokens are for validation, which takes {spec.split_rule.describe()}"
        documents = sum(file.documents for file in files)
        remedy = f"--val-documents {_tenth(documents)}" if documents > 1 else f"--val-tokens {part} instead"
        if spec.split_rule.val_files:
            remedy = "fewer files in --val-input"
    else:
        cause = (
            f"all {tokens:,} tokens are for validation, which takes the first {spec.split_rule.val_tokens:,}"
        )
        remedy = f"--val-tokens {part}"
        if spec.split_rule == spec.layout.default_split_rule(spec.shard_tokens):
            remedy = f"--shard-tokens {part} or {remedy}"
    if tokens < 2:
        return f"There is nothing to train on: {cause}{failure}. The input is too small to be split."
    return f"There is nothing to train on: {cause}{failure}. {next_step} {remedy}."


def _missing_validation(spec: OutputSpec, files: Sequence[SizedFile], next_step: str) -> str:
    tokens, documents = sum(file.tokens for file in files), sum(file.documents for file in files)
    failure = f'{spec.layout.name} would stop: "{spec.layout.missing_split_errors["val"]}"'
    remedy = f"--val-tokens {_tenth(tokens)}"
    if spec.split_rule.val_files:
        cause = "the files of --val-input hold no document"
        return f"There is nothing for validation: {cause}; {failure}. {next_step} other files for it."
    if not spec.split_rule.val_ratio:
        return f"There is nothing for validation, as requested; {failure}. If it needs some: {remedy}."
    if documents > 1:
        remedy = f"--val-ratio {_ratio_for(documents)} or {remedy}"
    share = f"a share of one in {float(1 / spec.split_rule.val_ratio):,.0f}"
    cause = f"of {show_number_of(documents, 'document')}, {share} chooses none"
    return f"There is nothing for validation: {cause}; {failure}. {next_step} {remedy}."


def _cut(tokens: int, size: int) -> list[int]:
    full, rest = divmod(tokens, size)
    return [size] * full + ([rest] if rest else [])


def _tenth(tokens: int) -> int:
    """Return about a tenth of the tokens, as a round number."""
    return _rounded(tokens // 10)


def _rounded(count: int) -> int:
    """Return the count with its first digit only, and at least 1."""
    digits = str(max(1, count))
    return int(digits[0].ljust(len(digits), "0"))


def _ratio_for(documents: int) -> str:
    """Return the smallest round ratio that gives at least one of the documents."""
    digits = len(str(documents - 1))
    return f"{-(-(10**digits) // documents) / 10**digits:g}"


def content_lines(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Say where the files are and what they hold."""
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    kind = "files" if spec.layout.one_file else "shards"
    val = tokens_of(manifest.shards, "val")
    tokens = f"{manifest.tokens:,}" + (
        "" if spec.split_rule.counts_tokens else f", {val:,} of them for validation"
    )
    return [
        f"{'folder':<10} {spec.store.location}",
        f"{kind:<10} {manifest.shard_count:,}, {size}",
        f"{'tokens':<10} {tokens}",
        f"{'documents':<10} {manifest.documents:,}",
    ]


def output_notes(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Explain what looks like a fault but is expected."""
    if dropped := manifest.totals["dropped_tokens"]:
        return [f"The last {dropped:,} tokens do not fill a shard and were left out."]
    last = manifest.shards[-1] if manifest.shards else None
    if last and last.split == "train" and last.tokens < spec.shard_tokens and not spec.layout.one_file:
        return [
            f"The last shard holds the rest, {last.tokens:,} tokens: that is expected, nothing is missing."
        ]
    return []


def output_warnings(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Return warnings about problems that the loader will have with these files."""
    dropped = manifest.totals["dropped_tokens"]
    finished = with_sidecars(manifest, {record.name for record in manifest.shards})
    return [
        *reader_warnings(spec, list_files(manifest.shards), dropped_tokens=dropped),
        *stray_warnings(spec.store, spec.layout, finished),
    ]


def warning_lines(warnings: list[str]) -> list[str]:
    """Format warnings, to be printed last, where they are noticed."""
    return [line for warning in warnings for line in ("", f"{'WARNING':<10} {warning}")]


def training_lines(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Say how to load the files; nothing if there is nothing to train on."""
    if not tokens_of(manifest.shards, "train"):
        return []
    names = [file.name for file in list_files(manifest.shards)]
    store, vocabulary = spec.store, spec.vocabulary
    if not store.is_remote:
        lines = spec.layout.loader_lines(store.location, names, vocabulary)
    else:
        command, folder = copy_command(BucketAddress.parse(store.location))
        lines = [
            "from fineweb_shards.loader import ShardLoader  # fetches them as they are needed",
            f'loader = ShardLoader({quote_string(store.location)}, "train", batch_size=64, seq_len=1024)',
            "",
            "# for a trainer that reads files itself, copy them here:",
            command,
            *spec.layout.loader_lines(folder, names, vocabulary),
        ]
    return ["", "To train on them:", "", *(f"    {line}".rstrip() for line in lines)]
