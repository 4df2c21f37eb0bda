"""Format a plan as lines of text, in short: for the beginning of a build. `plan` shows more of it."""

from __future__ import annotations

from fineweb_shards.run.config import Config
from fineweb_shards.run.job import Job
from fineweb_shards.run.output_text import expect_files, reader_warnings, stray_warnings
from fineweb_shards.run.plan import Plan, split_error
from fineweb_shards.storage.place import STANDARD_INPUT
from fineweb_shards.system.machine import usable_cores
from fineweb_shards.system.terminal import printable
from fineweb_shards.units import show_bytes, show_count, show_number_of
from fineweb_shards.vocabulary import GPT2

_SHOWN_FILES = 3
_BUSY_SHARE = 0.5  # of the cores, from which on other programs slow a build down


def short_lines(plan: Plan) -> list[str]:
    """Return the plan in a few lines, with warnings, for the beginning of a build. They also show how a text
    is split into documents, because later nothing shows it."""
    rows = [*short_rows(plan), *(plan.separator_preview.rows() if plan.separator_preview else [])]
    return [f"{name:<10} {text}" for name, text in rows] + plan_warning_lines(plan)


def plan_warning_lines(plan: Plan) -> list[str]:
    """Return warnings about problems that the loader of the files will have, as far as the plan can tell."""
    job, extent = plan.job, plan.extent
    warnings = stray_warnings(job.output.store, job.layout)
    if extent.tokens and extent.documents and not split_error(plan):
        exact = extent.exact and job.output.split_rule.counts_tokens
        val_bytes = sum(file.size_bytes for file in job.source.files if file.for_validation)
        share = val_bytes / max(1, job.source.size_bytes)
        files = expect_files(job.output, extent.tokens, extent.documents, exact=exact, val_files_share=share)
        about = "" if exact else "By the estimate: "
        warnings += [f"{about}{warning}" for warning in reader_warnings(job.output, files, made=False)]
    return [f"{'WARNING':<10} {warning}" for warning in warnings]


def short_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return name and text of each line."""
    job, extent = plan.job, plan.extent
    kinds = sorted({file.format for file in job.source.files})
    hub = job.source.only.settings.hub
    where = f"{hub.dataset} {hub.name} at {hub.commit[:10]}: " if hub else ""
    fetch = ""
    if job.is_remote:
        whole = plan.bytes_to_fetch == job.source.size_bytes
        fetch = " to fetch" if whole else f", about {show_bytes(plan.bytes_to_fetch)} of it to fetch"
        fetch += f", {show_bytes(plan.fetched_bytes)} fetched for this plan" if plan.fetched_bytes else ""
    rows = [("input", f"{where}{describe_files(job)}{fetch} ({', '.join(kinds)})")]
    rows += [("note", note) for note in job.notes]
    rows += [("kept", text) for text in describe_filters(job.config)]
    rows += describe_tokenizer(job)
    how = "exact, from token_count" if extent.exact else "an estimate"
    if extent.tokens is None:
        rows.append(("tokens", "unknown before the end"))
    else:
        last = extent.tokens - (max(1, plan.shards or 1) - 1) * job.output.shard_tokens
        about, rest = ("", f", the last with {last:,}") if extent.exact else ("about ", "")
        rows.append(("tokens", f"{show_estimate(extent.tokens, exact=extent.exact)} ({how})"))
        if job.layout.one_file:
            rows.append(("files", f"one for each split ({job.layout.name}), in {job.output.store.location}"))
        else:
            if not job.output.split_rule.counts_tokens:  # the last shard for validation is not full, either
                about, rest = "about ", ""
            shards = f"{about}{plan.shards:,} of {job.output.shard_tokens:,} tokens"
            rows.append(("shards", f"{shards}{rest}, in {job.output.store.location}"))
        needed = f"{'' if extent.exact else 'about '}{show_bytes(plan.output_bytes or 0)} needed"
        rows.append(("disk", f"{needed}, {show_bytes(plan.free_bytes)} free"))
    rows.append(("validation", describe_validation(job)))
    workers = show_number_of(job.budget.workers, "worker")
    budget = show_bytes(job.budget.memory_bytes)
    engine = f"{job.engine.name} {job.engine.installed_version()}" if job.engine else "no tokenizer"
    rows.append(("machine", f"{workers}, {engine}, memory budget {budget}"))
    rows += describe_priority(job.config, plan.busy_cores)
    wanted = job.budget.wanted_workers
    if wanted is not None and wanted > job.budget.workers:
        fewer = f"{job.budget.workers} instead of {wanted:,}: {budget} of memory hold no more"
        rows.append(("workers", f"{fewer} (--max-memory)"))
    return rows


def describe_files(job: Job) -> str:
    """Return number and size of the files, and the pipes, whose size is unknown before their end."""
    files = [file for file in job.source.files if not file.is_pipe]
    named = [file for file in job.source.files if file.is_pipe and file.path != STANDARD_INPUT]
    parts = [f"{show_number_of(len(files), 'file')}, {show_bytes(job.source.size_bytes)}"] if files else []
    parts += [show_number_of(len(named), "pipe")] if named else []
    parts += ["standard input"] if len(files) + len(named) < len(job.source.files) else []
    return ", and ".join(parts) or "no file"


def describe_tokenizer(job: Job) -> list[tuple[str, str]]:
    """Say what encodes, if it is not GPT-2: nobody should find out in the morning that EOT is another one."""
    vocabulary = job.vocabulary
    if vocabulary == GPT2:
        return []
    names = {number: name for name, number in job.definition.special_tokens.items()}
    name = printable(names.get(vocabulary.eot, ""))
    eot = f"{name} ({vocabulary.eot})" if name else str(vocabulary.eot)
    dtype = job.output.shard_format.dtype.name
    rows = [("tokenizer", f"{printable(vocabulary.name)}: {vocabulary.size:,} ids ({dtype}), EOT {eot}")]
    if job.engine is None:
        return rows
    if job.engine.name == vocabulary.reference and job.trial and job.trial.refusals:
        why = printable("; ".join(job.trial.refusals))
        rows.append(("engine", f"{job.engine.name} itself, which is slow: {why}"))
    elif vocabulary.reference == "sentencepiece":
        rows.append(("engine", "sentencepiece itself, which is slow: nothing faster gives the same tokens"))
    return rows


def describe_validation(job: Job) -> str:
    """Say what is for validation, and which files if they are named."""
    names = [file.name for file in job.source.files if file.for_validation]
    shown = ", ".join(names[:_SHOWN_FILES]) + (", …" if len(names) > _SHOWN_FILES else "")
    return job.output.split_rule.describe() + (f", which come first: {shown}" if names else "")


def describe_priority(config: Config, busy: float) -> list[tuple[str, str]]:
    """Say why a build will be slow on a machine with other work: it would look as if something were wrong."""
    cores = usable_cores()
    if config.priority != "background" or config.executor != "local" or busy < cores * _BUSY_SHARE:
        return []
    load = f"other programs want {busy:.1f} of {show_number_of(cores, 'core')}"
    return [("priority", f"lowest: {load} (or --priority normal)")]


def describe_filters(config: Config) -> list[str]:
    """Say which documents are kept, if not all are."""
    limits = [
        f"at least {config.min_tokens:,}" if config.min_tokens else "",
        f"at most {config.max_document_tokens:,}" if config.max_document_tokens is not None else "",
    ]
    lengths = " and ".join(filter(None, limits))
    lines = [
        f"documents with {config.where}" if config.where else "",
        lengths and f"documents of {lengths} tokens",
    ]
    return [line for line in lines if line]


def show_estimate(count: int | None, *, exact: bool) -> str:
    """Return a count in words that tell whether it is exact."""
    if count is None:
        return "unknown before the end"
    return f"{count:,}" if exact else f"about {show_count(count)}"
