"""Define the settings: one frozen dataclass, filled from its defaults, a TOML file and the command line.

Every field is a config key and a flag (`shard_tokens`, `--shard-tokens`). A field marked `bytes` changes the output, so
a resume refuses another value of it, except for `max_tokens`, which leaves the stream as it is
(output/resume_rules.py). Files of `input` and `val_input` are compared by content (sources/files.py). `on_bad_file` is
not marked, because finished shards do not depend on it.

The input may have several parts. Each can override the settings in `PART_KEYS`. `Config.part_configs` has one Config
per part, so that code which opens a part needs to know nothing about the others.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from fineweb_shards.errors import UsageError, concerning
from fineweb_shards.events import Observer
from fineweb_shards.formats.columns import parse_template
from fineweb_shards.formats.piles import FOLDER as PILE_FOLDER
from fineweb_shards.formats.registry import CHOICES as FORMAT_CHOICES
from fineweb_shards.formats.where import parse_where
from fineweb_shards.layouts import LAYOUTS
from fineweb_shards.output.manifest import PART_SETTINGS
from fineweb_shards.output.opening import open_store, scratch_folder
from fineweb_shards.output.store import Store
from fineweb_shards.sources.hub_files import parse_hub_address, refuse_hub_address
from fineweb_shards.storage.bucket_address import check_path, is_url
from fineweb_shards.storage.place import STANDARD_INPUT
from fineweb_shards.stream.mix import ALL_EXHAUSTED, FIRST_EXHAUSTED, MixRule, check_weights, whole_weights
from fineweb_shards.stream.split import VAL_SETTINGS
from fineweb_shards.system.machine import PRIORITIES
from fineweb_shards.system.own_files import WORK_FOLDER
from fineweb_shards.tokenizers import ENGINES
from fineweb_shards.tokenizers.builtin_vocabularies import BUILTINS, PATTERNS
from fineweb_shards.units import parse_bytes, parse_count, parse_ratio, parse_seconds, parse_weight, show_count
from fineweb_shards.vocabulary import GPT2


def _setting(
    default: Any,
    help_text: str,
    *,
    parse: Callable[[str], Any] = str,
    bytes_: bool = False,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    one_per_part: bool = False,
    flag: str | None = None,
) -> Any:
    """Describe a setting. With `one_per_part` it may be given once per part."""
    metadata = {
        "help": help_text, "parse": parse, "bytes": bytes_, "choices": choices, "metavar": metavar,
        "one_per_part": one_per_part, "flag": flag,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


DEFAULT_SHARD_TOKENS = 100_000_000
OF_DATASET = ("dataset", "name", "split", "revision")
PART_KEYS = ("input", "val_input", *PART_SETTINGS)  # what a part of the input may have of its own
_COUNT: Any = {"parse": parse_count, "metavar": "N"}
_MOST_TOKENS = 16 * 10**12 // GPT2.dtype.itemsize  # in a file on ext4
# A document up to this length (20 MB of tokens) is held back until its length decides whether to keep it.
_LONGEST_LIMIT = 10_000_000
_LIMITS = {  # minimum, maximum, and the hint for larger values
    "shard_tokens": (1, _MOST_TOKENS, "A shard is one file, and file systems limit a file to about 16 TB."),
    "max_tokens": (1, 10**18, None),
    "val_tokens": (0, 10**18, None),
    "val_documents": (0, 10**18, None),
    "gpus": (1, 1_000_000, None),
    "shuffle": (0, 2**62, None),
    "workers": (1, 10_000, None),
    "batch_bytes": (1024, 2**40, None),
    "min_tokens": (0, _LONGEST_LIMIT, "Longer documents are always kept."),
    "max_document_tokens": (0, _LONGEST_LIMIT, "Leave it out to keep documents of every length."),
    "epochs": (1, 10_000, "To end the stream at a number of tokens, use --max-tokens."),
    "max_outage": (0, 10 * 365 * 86400, "That is ten years, in seconds."),
}


@dataclass(frozen=True)
class Config:
    # fmt: off
    input: tuple[str, ...] = _setting(
        (), "file, folder or glob, also in a bucket (s3://, gs://, az://) or a dataset on the Hugging Face hub "
        "(hf://datasets/ORG/NAME/…); a file on a web server (https://); repeatable; - is standard input; "
        "{stdlib} is Python's standard library",
        metavar="PATH")
    format: str = _setting(
        "auto", "format of the input; auto detects it from the file name",
        choices=("auto", *FORMAT_CHOICES), bytes_=True)
    dataset: str = _setting(
        "", "dataset on the Hugging Face hub, such as HuggingFaceFW/fineweb-edu, instead of --input; "
        "repeatable, read one after the other", metavar="ID", bytes_=True, one_per_part=True)
    name: str = _setting(
        "", "config of the dataset, such as sample-10BT; with several datasets: once for all, or once per dataset",
        metavar="NAME", bytes_=True, one_per_part=True)
    split: str = _setting("train", "split of the dataset", metavar="NAME", bytes_=True, one_per_part=True)
    revision: str = _setting(
        "", "branch, tag or commit of the dataset (default: the newest commit; a resume keeps it)",
        metavar="REV", bytes_=True, one_per_part=True)
    parts: tuple[Mapping[str, Any], ...] = _setting(
        (), "part of the input with its own settings, such as 'dataset=ORG/NAME where=\"score > 3\"'; "
        "repeatable, instead of --dataset and --input; parts are read one after the other, or mixed (--weight); "
        "in TOML: [[parts]]",
        metavar="SETTINGS", flag="--part")
    weight: Fraction | int | None = _setting(  # noqa: RUF009 - it makes a field, as for all others
        None, "mix the parts by tokens, in proportion to their weights, such as 7, 0.7 or 70%; "
        "with several datasets: once per dataset", parse=parse_weight, metavar="W", bytes_=True, one_per_part=True)
    epochs: int = _setting(
        1, "read each part N times, front to back; with several datasets: once for all, or once per dataset",
        bytes_=True, one_per_part=True, **_COUNT)
    mix_until: str | None = _setting(
        None, "end a mix when the first part runs out, or when all parts have "
        f"(default: {FIRST_EXHAUSTED})",
        choices=(FIRST_EXHAUSTED, ALL_EXHAUSTED), bytes_=True)
    download: bool = _setting(False, "download whole files in advance instead of streaming parts of them")
    keep_downloads: bool = _setting(False, "keep downloaded files after use")
    max_outage: int = _setting(
        3600, "how long to wait for the network, or for space on a full disk, such as 1h or 90min",
        parse=parse_seconds, metavar="TIME")
    text_column: str = _setting(
        "text", "parquet column or JSON key that holds the text", metavar="NAME", bytes_=True)
    tokens_column: str | None = _setting(
        None, "parquet column or JSON key that holds the documents as lists of token ids, written unchanged; "
        "instead of --text-column", metavar="NAME", bytes_=True)
    template: str | None = _setting(
        None, r"build each document from several columns or keys, such as '{title}\n\n{text}'; instead of "
        r"--text-column; {{ and }} are braces, \n and \t as in Python", metavar="TEXT", bytes_=True)
    where: str | None = _setting(
        None, "read only documents that meet this condition on columns or JSON keys, such as "
        "'int_score >= 4 and language_score > 0.8'", metavar="CONDITION", bytes_=True)
    sample: float = _setting(
        1.0, "keep each document with this probability, such as 0.1 or 10%; a hash of its beginning decides, so copies "
        "are kept or left out together", parse=parse_ratio, metavar="SHARE", bytes_=True)
    sample_seed: int = _setting(0, "seed that decides which documents --sample keeps", bytes_=True, **_COUNT)
    min_tokens: int = _setting(0, "leave out documents with fewer tokens than this", bytes_=True, **_COUNT)
    max_document_tokens: int | None = _setting(
        None, "leave out documents with more tokens than this", bytes_=True, **_COUNT)
    separator: str = _setting(
        "auto", "what separates documents in a text file: auto (detected), blank (line), line, none (one document "
        r"per file), or any string, with \n and \t as in Python", metavar="TEXT", bytes_=True)
    tokenizer: str = _setting(
        GPT2.name, f"{', '.join(BUILTINS)}; a rank file (.tiktoken), a tokenizer.json or a SentencePiece "
        ".model; or a model on the hub, as in ORG/NAME@REVISION", metavar="NAME|FILE")
    pattern: str = _setting(
        "", f"how a rank file's tokenizer splits text: {', '.join(PATTERNS)}, or a regular expression",
        metavar="NAME|REGEX")
    eot: str = _setting(
        "", "token between documents, if it is not obvious: a special token's name, or an id",
        metavar="NAME|ID")
    out: str = _setting(
        "", "output folder, here or in a bucket: s3://bucket/folder, gs://…, az://…", metavar="DIR|URL")
    scratch: str = _setting(
        "", "local folder for unfinished shards if --out is a bucket (default: ~/.cache/fineweb-shards), and for the "
        "piles of --shuffle (default: the output's work folder)",
        metavar="DIR")
    layout: str = _setting(
        "build-nanogpt", f"trainer whose loader will read the shards: {', '.join(LAYOUTS)}",
        metavar="NAME", bytes_=True)
    shard_tokens: int | None = _setting(
        None, f"tokens per shard, such as 100M or 1e8 (default: {show_count(DEFAULT_SHARD_TOKENS)})",
        parse=parse_count, metavar="N", bytes_=True)
    shuffle: int | None = _setting(
        None, "shuffle all documents with this seed; needs disk space for a second copy of the result",
        parse=parse_count, metavar="SEED", bytes_=True)
    max_tokens: int | None = _setting(
        None, "end the stream after exactly N tokens; --shuffle shuffles only these",
        bytes_=True, **_COUNT)
    val_tokens: int | None = _setting(
        None, "for validation: the first N tokens (default: set by the layout, usually shard 0)",
        bytes_=True, **_COUNT)
    val_documents: int | None = _setting(
        None, "for validation: the first N documents, instead of --val-tokens; 0: none",
        bytes_=True, **_COUNT)
    val_input: tuple[str, ...] = _setting(
        (), "for validation: all documents of these files, instead of --val-tokens; repeatable like --input; "
        "with --dataset, names or patterns of its files", metavar="PATH")
    val_ratio: float | None = _setting(
        None, "for validation: a share of the documents, such as 0.0005, instead of --val-tokens; 0: none",
        parse=parse_ratio, metavar="R", bytes_=True)
    val_seed: int = _setting(0, "seed that decides which documents --val-ratio chooses", bytes_=True, **_COUNT)
    last_shard: str = _setting(
        "keep", "what to do with a last training shard that is not full",
        choices=("keep", "drop"), bytes_=True)
    gpus: int = _setting(1, "number of GPUs you will train on; warns if files are too short for their loader", **_COUNT)
    index: bool = _setting(
        False, "also write where documents start in each file, as index/NAME.npy (int64 token offsets)")
    workers: int | None = _setting(
        None, "tokenizer processes (default: one per usable core)", **_COUNT)
    executor: str = _setting(
        "local", "where the work runs: processes on this machine, or a Ray cluster (needs the package ray)",
        choices=("local", "ray"))
    ray_address: str = _setting(
        "", "with --executor ray: auto joins the cluster on this machine, local starts one for this run "
        "(default: RAY_ADDRESS if it is set, else local)", metavar="ADDRESS")
    engine: str = _setting(
        "auto", "library that encodes; auto picks the fastest; all produce the same tokens",
        choices=("auto", *ENGINES))
    max_memory: int | None = _setting(
        None, "memory for all processes together, such as 2GiB (default: a quarter of what is "
        "available, at most 4 GiB, or 320 MiB per core if that is more)", parse=parse_bytes, metavar="SIZE")
    batch_bytes: int = _setting(
        4 * 2**20, "text handed to a worker at a time", parse=parse_bytes, metavar="SIZE")
    priority: str = _setting(
        "background", "background yields cores and disks to other programs; normal competes for them",
        choices=PRIORITIES)
    on_bad_file: str = _setting(
        "stop", "what to do with a damaged file, row group or line", choices=("stop", "skip"))
    verify: bool = _setting(True, "at the end, also verify shards of earlier runs; new shards are always verified")
    seed: int = _setting(
        0, "seed that decides which documents are encoded again with the reference, as a check", **_COUNT)
    # fmt: on

    @cached_property
    def part_configs(self) -> tuple[Config, ...]:
        """The settings of each part of the input; without parts, these settings. Weights are whole numbers."""
        parts = [dataclasses.replace(self, parts=(), **part) for part in self.parts] or [self]
        weights = whole_weights([part.weight for part in parts])
        if weights:
            parts = [dataclasses.replace(part, weight=one) for part, one in zip(parts, weights, strict=True)]
        return tuple(part._with_dataset() for part in parts)

    @cached_property
    def mix(self) -> MixRule | None:
        weights = [int(part.weight) for part in self.part_configs if part.weight is not None]
        return MixRule(tuple(weights), self.mix_until == ALL_EXHAUSTED) if weights else None

    def _with_dataset(self) -> Config:
        """Return an hf:// address in `input` as `dataset`; the path of the files replaces config and split."""
        found = parse_hub_address(self.input[0]) if len(self.input) == 1 else None
        if found is None or any(getattr(self, name) != getattr(Config, name) for name in OF_DATASET):
            return self
        dataset, revision, path = found
        return dataclasses.replace(self, input=(), dataset=dataset, revision=revision, name=path, split="")

    @property
    def reads_hub(self) -> bool:
        return any(part.dataset for part in self.part_configs)

    @property
    def encodes(self) -> bool:
        """Whether any part of the input is text, and not tokens already."""
        return any(part.tokens_column is None for part in self.part_configs)

    @property
    def folder(self) -> Path:
        """The output folder; if that is in a bucket, the local scratch folder."""
        if self.bucket_url:
            return scratch_folder(self.out, self.scratch)
        return Path(os.path.expanduser(self.out))

    @property
    def pile_folder(self) -> Path:
        """Where the piles of a shuffle are; if they are in a bucket, only their list."""
        folder = scratch_folder(str(self.folder), self.scratch) if self.has_own_pile_folder else self.folder
        return folder / WORK_FOLDER / PILE_FOLDER

    @property
    def has_own_pile_folder(self) -> bool:
        """Whether the piles of a shuffle are in --scratch, apart from the shards."""
        return self.shuffle is not None and bool(self.scratch) and not self.bucket_url

    @property
    def has_piles_in_bucket(self) -> bool:
        """Whether the piles of a shuffle are in the bucket of the output, where all nodes of a cluster see them."""
        return self.shuffle is not None and self.executor == "ray" and bool(self.bucket_url)

    @property
    def bucket_url(self) -> str | None:
        return self.out if is_url(self.out) else None

    def open_store(self, observer: Observer) -> Store:
        return open_store(self.out, self.scratch, self.max_outage, observer)

    def fingerprint(self) -> dict[str, Any]:
        """Return the settings that change the output, for the manifest."""
        fields = (field for field in dataclasses.fields(self) if field.metadata["bytes"])
        values = {field.name: getattr(self, field.name) for field in fields}
        defaults = {"shard_tokens": DEFAULT_SHARD_TOKENS, "mix_until": FIRST_EXHAUSTED}
        return {**values, **{name: getattr(self, name) or default for name, default in defaults.items()}}

    def check(self) -> None:
        if not self.out:
            raise UsageError("No output folder was given.", "Name one with --out, such as --out shards.")
        for path in (self.out, self.scratch):
            check_path(path)
        if is_url(self.scratch):
            raise UsageError(f"--scratch {self.scratch}: must be on this machine.", "Name a folder, or leave it out.")
        if self.scratch and not self.bucket_url and self.shuffle is None:
            raise UsageError(
                f"--scratch {self.scratch}: only for --shuffle or an --out in a bucket, but {self.out} is a folder.",
                "Leave it out.",
            )
        of_part = any({"input", "dataset"} & part.keys() for part in self.parts)
        for name, is_refused in (("input", of_part), ("dataset", of_part), ("val_input", bool(self.parts))):
            if is_refused and (given := getattr(self, name)):
                raise UsageError(
                    f"{_flag(name)} {given if name == 'dataset' else given[0]}: the parts of the input name their own.",
                    "Name it with --part, or in tables of [[parts]].",
                )
        if any(part.val_input for part in self.part_configs):
            for name in VAL_SETTINGS:
                if getattr(self, name) is not None:
                    raise _exclusive("--val-input", _flag(name))
        weights = {number: part.get("weight", self.weight) for number, part in enumerate(self.parts or ({},), 1)}
        check_weights(weights, [int(part.weight or 0) for part in self.part_configs], self.mix_until)
        self._check_limits(_LIMITS.keys() - PART_KEYS)
        if self.ray_address and self.executor != "ray":
            raise UsageError(
                f"--ray-address {self.ray_address}: the executor is {self.executor}.",
                "Add --executor ray, or leave the address out.",
            )
        if self.engine != Config.engine and not self.encodes:  # tokens are not encoded
            raise _exclusive(f"--engine {self.engine}", "--tokens-column")
        for number, part in enumerate(self.part_configs, 1):
            with concerning(f"Part {number}" if self.parts else ""):
                part._check_part()

    def _check_limits(self, names: Collection[str]) -> None:
        for name in sorted(names):
            least, most, hint = _LIMITS[name]
            value, flag = getattr(self, name), _flag(name)
            if value is not None and value < least:
                raise UsageError(f"{flag} {value:,}: must be at least {least:,}.")
            if value is not None and value > most:
                raise UsageError(f"{flag} {value:,}: must be at most {most:,}.", hint)

    def _check_part(self) -> None:
        """Raise UsageError for values of PART_KEYS that can't work."""
        if self.dataset and self.input:
            raise _exclusive("--dataset", "--input")
        for path in (*self.input, *self.val_input):
            check_path(path)
            refuse_hub_address(path)
        for name in OF_DATASET:
            value = getattr(self, name)
            if value != getattr(Config, name) and not self.dataset:
                hint = "For FineWeb-Edu: --dataset HuggingFaceFW/fineweb-edu"
                raise UsageError(f"--{name} {value}: only with --dataset.", hint)
        self._check_limits(_LIMITS.keys() & PART_KEYS)
        if self.epochs > 1 and (pipe := next(filter(_is_pipe, self.input), None)):
            hint = "Write it to a file first, or leave --epochs out."
            raise UsageError(f"--epochs {self.epochs:,}: --input {pipe} can be read only once.", hint)
        if self.max_document_tokens is not None and self.max_document_tokens < self.min_tokens:
            raise UsageError(
                f"--max-document-tokens {self.max_document_tokens:,} is below --min-tokens {self.min_tokens:,}.",
                "Raise it, or lower --min-tokens.",
            )
        if self.tokens_column == "":
            raise UsageError("--tokens-column is empty.", "Name the column, or leave the flag out.")
        contents = ("text_column", "tokens_column", "template")  # a document has one of them
        given = [name for name in contents if getattr(self, name) != getattr(Config, name)]
        if len(given) > 1:
            raise _exclusive(f"{_flag(given[0])} {getattr(self, given[0])}", _flag(given[1]))
        for flag, text, parse in (("--template", self.template, parse_template), ("--where", self.where, parse_where)):
            if text is not None:
                if _is_broken(text):
                    raise UsageError(f"{flag} is not valid UTF-8.", "Type it again in UTF-8.")
                parse(text)
        if not 0 < self.sample <= 1:
            raise UsageError(f"--sample {self.sample:g}: must be above 0 and at most 1.", "For example 0.1, or 10%.")
        if not 0 < len(self.separator) <= 64 or _is_broken(self.separator):
            hint = "Use blank, line, none, or the string between documents."
            raise UsageError(f"--separator {self.separator!r}: must be valid text of 1 to 64 characters.", hint)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _exclusive(one: str, other: str) -> UsageError:
    return UsageError(f"{one} and {other} exclude each other.", "Leave one of them out.")


def _is_pipe(path: str) -> bool:
    try:
        return path == STANDARD_INPUT or stat.S_ISFIFO(os.stat(os.path.expanduser(path)).st_mode)
    except (OSError, ValueError):  # reported when the file is opened
        return False


def _is_broken(text: str) -> bool:
    """Return whether the shell passed invalid UTF-8, which Python turns into lone surrogates."""
    return any("\ud800" <= char <= "\udfff" for char in text)
