"""Write the dataset card of an upload: what the tokens are, what they were made from, how to load them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fineweb_shards.layouts.base import Layout, tokens_of
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.units import show_bytes

# Marks a card that a later upload may replace; a card without it was written by a person, and is kept.
MARK = "<!-- made by fineweb_shards upload -->"
_LICENCES = {"HuggingFaceFW/fineweb-edu": "odc-by", "HuggingFaceFW/fineweb": "odc-by"}


@dataclass(frozen=True, slots=True)
class CardFile:
    """A file in the card's table."""

    name: str
    split: str
    tokens: int
    documents: int
    size_bytes: int
    sha256: str


def make_card(repo: str, layout: Layout, manifest: Manifest, files: list[CardFile]) -> str:
    """Return the content of the dataset's README.md."""
    name = repo.rpartition("/")[2]
    token_names = [file.name for file in files if file.tokens]  # a sidecar has no tokens
    return "\n".join(
        [
            *_metadata(manifest),
            MARK,
            f"# {name}",
            "",
            f"{_title(manifest)} tokens in the layout of {layout.name}, made with `fineweb_shards`.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {what} | {text} |" for what, text in _facts(layout, manifest, files)),
            "",
            "## How to load",
            "",
            "```sh",
            f"hf download {repo} --repo-type dataset --local-dir {name}",
            f"fineweb-shards verify {name}",
            "```",
            "```python",
            "from fineweb_shards.loader import ShardLoader",
            f'loader = ShardLoader("{name}", "train", batch_size=64, seq_len=1024)',
            "x, y = loader.next_batch()",
            "```",
            "",
            f"With {layout.name} itself:",
            "",
            *(f"    {line}" for line in layout.loader_lines(name, token_names, manifest.vocabulary)),
            "",
            "## Files",
            "",
            "| file | split | tokens | documents | bytes | SHA-256 |",
            "|---|---|---|---|---|---|",
            *(
                f"| {file.name} | {file.split} | {file.tokens:,} | {file.documents:,} | {file.size_bytes:,} "
                f"| `{file.sha256}` |"
                for file in files
            ),
            "",
            "`manifest.json` holds all of this for programs, with the settings and the source files.",
            "",
        ]
    )


def _facts(layout: Layout, manifest: Manifest, files: list[CardFile]) -> list[tuple[str, str]]:
    train, val = tokens_of(manifest.shards, "train"), tokens_of(manifest.shards, "val")
    position = "before" if layout.eot_first else "after"
    size = show_bytes(sum(file.size_bytes for file in files))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))
    vocabulary, dtype = manifest.vocabulary, manifest.shard_format.dtype.name
    return [
        *_source_facts(manifest),
        (
            "tokenizer",
            f"{_title(manifest)}, {vocabulary.size:,} ids; SHA-256 of its file `{vocabulary.sha256}`",
        ),
        ("tokens", f"{manifest.tokens:,}: {train:,} for training, {val:,} for validation"),
        ("documents", f"{manifest.documents:,}, the EOT token {vocabulary.eot} {position} each"),
        ("format", f"{dtype}, little-endian, {layout.header_bytes} bytes of header in front"),
        ("files", f"{len(files):,}, {size}"),
        ("made with", versions),
    ]


def _metadata(manifest: Manifest) -> list[str]:
    datasets = list(dict.fromkeys(part.settings["dataset"] for part in manifest.parts))
    name = re.sub("[^A-Za-z0-9.]+", "-", manifest.vocabulary.name).lower()
    lines = ["---", "tags:", f"- {name}-tokens", "- fineweb_shards", "viewer: false"]
    if any(datasets):
        lines += ["source_datasets:", *(f"- {dataset}" for dataset in datasets if dataset)]
    licences = {_LICENCES.get(dataset) for dataset in datasets}
    if len(licences) == 1 and (licence := licences.pop()):
        lines.append(f"license: {licence}")
    return [*lines, "---"]


def _title(manifest: Manifest) -> str:
    """What people call the vocabulary."""
    name = manifest.vocabulary.name
    return {"gpt2": "GPT-2"}.get(name, name)


def _source_facts(manifest: Manifest) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for part in manifest.parts:
        if not (dataset := part.settings["dataset"]):
            facts.append(("source", f"{len(part.files):,} local files"))
            continue
        which = ", ".join(filter(None, [part.settings["name"], f"split {part.settings['split']}"]))
        facts.append(("source", f"[{dataset}](https://huggingface.co/datasets/{dataset}), {which}"))
        facts.append(("commit", f"`{part.commit}`"))
    return facts
