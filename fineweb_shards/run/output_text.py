"""Describe the output, and warn if the training code (the reader) could not use it.

Before a build the warnings are about the expected files, after it about those that exist. The limits of each reader are
in layouts/. This module covers empty splits, the settings to choose instead, and foreign files that a reader would
open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fineweb_shards.errors import InputError, NoTrainingError
from fineweb_shards.layouts.base import Layout, SizedFile, quote_string, tokens_of
from fineweb_shards.output.manifest import Manifest
from fineweb_shards.output.shard_files import list_files
from fineweb_shards.output.sidecars import with_sidecars
from fineweb_shards.output.store import OutputSpec, Store
from fineweb_shards.run.config import Config
from fineweb_shards.storage.bucket_address import BucketAddress, copy_command
from fineweb_shards.stream.mix import MixRule
from fineweb_shards.stream.split import VAL_SETTINGS, SplitRule
from fineweb_shards.types import SPLITS, Split
from fineweb_shards.units import first_few, show_bytes, show_count, show_number_of
from fineweb_shards.watching.mix_shares import share_rows, shares_in
from fineweb_shards.watching.run_files import PartShare
from fineweb_shards.watching.status import describe_shuffle

Lines = Sequence[str]

_MOST_EXPECTED_FILES = 20_000


@dataclass(frozen=True, slots=True)
class ExpectedFile:
    name: str
    split: Split
    tokens: int
    documents: int


def expect_files(
    spec: OutputSpec, tokens: int, documents: int, *, exact: bool, val_files_share: float = 0.0
) -> list[ExpectedFile]:
    """Return the files that a stream of `tokens` tokens will become, without the last shard if `tokens` is an estimate:
    its size can't be predicted. `val_files_share` is the share of --val-input in the bytes of the input."""
    if not spec.layout.one_file and tokens // spec.shard_tokens > _MOST_EXPECTED_FILES:
        return []
    rule, layout = spec.split_rule, spec.layout
    val = min(tokens, rule.val_tokens)  # estimated for the other rules, which do not count tokens
    if rule.val_ratio:
        val = round(tokens * rule.val_ratio) if round(documents * rule.val_ratio) else 0
    elif rule.val_documents:
        val = round(tokens * min(1.0, rule.val_documents / max(1, documents)))
    elif rule.val_files:
        val = round(tokens * val_files_share)
    files = []
    for split, size in zip(SPLITS, (val, tokens - val), strict=True):
        first = rule.first_index(split, spec.shard_tokens, val)
        file_tokens = size or 1 if layout.one_file else spec.shard_tokens
        full, rest = divmod(size, file_tokens)
        sizes = [file_tokens] * full + ([rest] if rest else [])
        if split == "train" and len(sizes) > 1 and (not exact or spec.drop_short):
            sizes = [each for each in sizes if each == spec.shard_tokens]
        for number, each in enumerate(sizes):
            name = layout.shard_name(split, first + number)
            files.append(ExpectedFile(name, split, each, round(documents * each / tokens)))
    return files


def reader_warnings(
    spec: OutputSpec, files: Sequence[SizedFile], *, dropped_tokens: int = 0, made: bool = True
) -> list[str]:
    """Return warnings about these files; if they are `made`, other settings need --fresh."""
    if not files and not dropped_tokens:
        return []
    next_step = "Rerun it with --fresh and" if made else "Choose"
    splits = {file.split for file in files}
    found = spec.layout.warnings(files, spec.gpus)
    if "val" not in splits and "val" in spec.layout.missing_split_errors:  # the reader needs one
        found = [_missing_validation(spec, files, next_step), *found]
    if "train" not in splits:
        found = [_missing_training(spec, files, dropped_tokens, next_step), *found]
    return found


def training_error(
    spec: OutputSpec, config: Config, tokens: int, documents: int = 1, *, about: bool = False
) -> NoTrainingError | None:
    """Return the error if by default validation would take a whole stream of `tokens` tokens (`about`: estimated)."""
    chosen = [getattr(config, name) for name in ("shard_tokens", *VAL_SETTINGS)]
    is_default = all(value is None for value in chosen) and not config.val_input
    if not is_default or not 2 <= tokens <= spec.split_rule.val_tokens:
        return None
    val = _rounded(tokens // 10)
    for part in (10, 4, 2):  # a tenth for validation, more if the reader needs it
        tried = replace(spec, split_rule=SplitRule(val_tokens=_rounded(tokens // part)))
        if not spec.layout.warnings(expect_files(tried, tokens, documents, exact=True), spec.gpus):
            val = tried.split_rule.val_tokens
            break
    size = f"about {show_count(tokens)}" if about else f"only {tokens:,}"
    return NoTrainingError(
        f"There would be nothing to train on: by default the first {spec.shard_tokens:,} tokens go to validation, but "
        f"there are {size}.",
        f"--val-tokens {val}",
    )


def empty_part_error(rule: MixRule | None, shares: Sequence[PartShare]) -> InputError | None:
    """Return the error if a part without documents has ended a mix: no output setting would help."""
    tokens = show_number_of(sum(part.tokens for part in shares), "token")
    for number, part in enumerate(shares if rule and not rule.until_all else (), 1):
        if part.exhausted and not part.tokens:
            return InputError(
                f"Part {number} ({part.label}) has no documents, so the mix ended at its first turn, after {tokens}.",
                "Leave it out, or choose --mix-until all-exhausted.",
            )
    return None


def stray_warnings(store: Store, layout: Layout, finished: Collection[str] | None = None) -> list[str]:
    """Warn about files that the reader would take for shards, but that are not ours, or not `finished`."""
    is_ours = layout.owns if finished is None else finished.__contains__
    opened = [name for name in sorted(store.list_names()) if layout.opens(name) or layout.owns(name)]
    strays = [name for name in opened if not is_ours(name)]
    if not strays:
        return []
    return [
        f"{store.location} has {show_number_of(len(strays), 'other file')} that {layout.name} would open: "
        f"{first_few(strays)}. Choose an empty folder (--out), or move them away."
    ]


def _missing_training(spec: OutputSpec, files: Sequence[SizedFile], dropped_tokens: int, next_step: str) -> str:
    said = spec.layout.missing_split_errors.get("train")
    failure = f' ({spec.layout.name} would stop: "{said}")' if said else ""
    rule, tokens = spec.split_rule, sum(file.tokens for file in files) + dropped_tokens
    documents, part = sum(file.documents for file in files), _rounded(tokens // 10)
    cause, remedy = f"all {tokens:,} tokens go to validation, which takes {rule.describe()}", f"--val-tokens {part}"
    if dropped_tokens:
        cause = f"its {dropped_tokens:,} tokens do not fill a shard, and --last-shard drop leaves them out"
        remedy = f"--last-shard keep, or --shard-tokens {part}"
    elif rule == spec.layout.default_split_rule(spec.shard_tokens):
        remedy = f"--shard-tokens {part} or {remedy}"
    elif rule.val_files:
        remedy = "fewer files in --val-input"
    elif rule.val_documents and documents > 1:
        remedy = f"--val-documents {_rounded(documents // 10)}"
    next_step = "The input is too small to be split" if tokens < 2 else f"{next_step} {remedy}"
    return f"There is nothing to train on: {cause}{failure}. {next_step}."


def _missing_validation(spec: OutputSpec, files: Sequence[SizedFile], next_step: str) -> str:
    rule, failure = spec.split_rule, f'{spec.layout.name} would stop: "{spec.layout.missing_split_errors["val"]}"'
    remedy = f"--val-tokens {_rounded(sum(file.tokens for file in files) // 10)}"
    if not rule.val_ratio and not rule.val_files:
        return f"There is nothing for validation, as requested; {failure}. If it needs some: {remedy}."
    if rule.val_files:
        remedy = "other files in --val-input"
    return f"There is nothing for validation, which takes {rule.describe()}; {failure}. {next_step} {remedy}."


def _rounded(count: int) -> int:
    """Return the count with its first digit only, and at least 1."""
    digits = str(max(1, count))
    return int(digits[0].ljust(len(digits), "0"))


def result_lines(
    spec: OutputSpec, manifest: Manifest, *, facts: Lines = (), notes: Lines = (), closing: Lines = ()
) -> list[str]:
    """Return lines about the files and how to load them; warnings come last, where people notice them."""
    size = show_bytes(sum(shard.bytes for shard in manifest.shards))
    kind, val = "files" if spec.layout.one_file else "shards", tokens_of(manifest.shards, "val")
    of_them = "" if spec.split_rule.counts_tokens else f", {val:,} of them for validation"
    return [
        f"{'folder':<10} {spec.store.location}",
        f"{kind:<10} {manifest.shard_count:,}, {size}",
        f"{'tokens':<10} {manifest.tokens:,}{of_them}",
        f"{'documents':<10} {manifest.documents:,}",
        *([f"{'shuffle':<10} {describe_shuffle(manifest)}"] if manifest.is_shuffled else []),
        *(f"{name:<10} {text}" for name, text in share_rows(shares_in(manifest))),
        *facts,
        *(f"{'note':<10} {note}" for note in (*notes, *output_notes(spec, manifest))),
        *closing,
        *training_lines(spec, manifest),
        *(line for warning in output_warnings(spec, manifest) for line in ("", f"{'WARNING':<10} {warning}")),
    ]


def output_notes(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Explain what looks wrong but is normal."""
    if dropped := manifest.totals["dropped_tokens"]:
        return [f"The last {dropped:,} tokens were left out because they do not fill a shard."]
    last = manifest.shards[-1] if manifest.shards else None
    if last and last.split == "train" and last.tokens < spec.shard_tokens and not spec.layout.one_file:
        return [f"The last shard has the remaining {last.tokens:,} tokens; that is normal."]
    return []


def output_warnings(spec: OutputSpec, manifest: Manifest) -> list[str]:
    dropped = manifest.totals["dropped_tokens"]
    finished = with_sidecars(manifest, {record.name for record in manifest.shards})
    empty = empty_part_error(manifest.mix, shares_in(manifest))
    found = reader_warnings(spec, list_files(manifest.shards), dropped_tokens=dropped)
    if empty:
        found = [f"{empty.message} {empty.hint[:-1]}; start over with --fresh."]
    return found + stray_warnings(spec.store, spec.layout, finished)


def training_lines(spec: OutputSpec, manifest: Manifest) -> list[str]:
    """Return lines that show how to load the files; none if there is nothing to train on."""
    if not tokens_of(manifest.shards, "train"):
        return []
    names = [file.name for file in list_files(manifest.shards)]
    store, vocabulary = spec.store, spec.vocabulary
    folder, lines = store.location, []
    if store.is_remote:
        command, folder = copy_command(BucketAddress.parse(store.location))
        lines = [
            "from fineweb_shards.loader import ShardLoader  # fetches shards as needed",
            f'loader = ShardLoader({quote_string(store.location)}, "train", batch_size=64, seq_len=1024)',
            "",
            "# for a trainer that reads local files, copy them first:",
            command,
        ]
    lines += spec.layout.loader_lines(folder, names, vocabulary)
    return ["", "To train on them:", "", *(f"    {line}".rstrip() for line in lines)]
