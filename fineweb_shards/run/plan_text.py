"""Describe a plan in words. `plan` adds the time and what a build would do (commands/build.py)."""

from __future__ import annotations

from collections.abc import Iterator

from fineweb_shards.output.manifest import Manifest
from fineweb_shards.run.job import Job
from fineweb_shards.run.output_text import expect_files, reader_warnings, stray_warnings
from fineweb_shards.run.plan import Plan, split_error
from fineweb_shards.storage.place import STANDARD_INPUT
from fineweb_shards.stream.mix import MixRule
from fineweb_shards.system.terminal import printable
from fineweb_shards.units import first_few, show_bytes, show_count, show_number_of
from fineweb_shards.vocabulary import GPT2
from fineweb_shards.watching.mix_shares import show_share


def short_lines(plan: Plan) -> list[str]:
    """Return the plan for the start of a build. It shows how a text is split, because nothing does so later."""
    rows = [row for row in plan_rows(plan) if row[0] != "documents"] + plan.separator_rows
    rows += [("WARNING", warning) for warning in plan_warnings(plan)]
    return [f"{name:<10} {text}" for name, text in rows]


def plan_warnings(plan: Plan) -> list[str]:
    """Return warnings about files that the loader could not use, and about a mix that would end at once."""
    job, extent = plan.job, plan.extent
    warnings = stray_warnings(job.output.store, job.layout)
    if job.config.mix and not job.config.mix.until_all and 0 in plan.forecast.available:
        empty = plan.forecast.available.index(0)
        about = "" if plan.part_extents[empty].exact else "Estimated: "
        warnings.append(
            f"{about}part {empty + 1} has no documents, so the mix ends at its first turn. Leave it out, or choose "
            "--mix-until all-exhausted."
        )
    if extent.tokens and extent.documents and not split_error(plan):
        exact = extent.exact and job.output.split_rule.counts_tokens
        val_bytes = sum(file.size_bytes for file in job.source.files if file.for_validation)
        share = val_bytes / max(1, plan.read_bytes)
        files = expect_files(job.output, extent.tokens, extent.documents, exact=exact, val_files_share=share)
        about = "" if exact else "Estimated: "
        warnings += [f"{about}{warning}" for warning in reader_warnings(job.output, files, made=False)]
    return warnings


def plan_rows(plan: Plan) -> list[tuple[str, str]]:
    return [*_input_rows(plan), *_tokenizer_rows(plan.job), *_output_rows(plan), _machine_row(plan)]


def _input_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    job, source = plan.job, plan.job.source
    fetch = ""
    if job.is_remote:
        of_it = " of it" if plan.bytes_to_fetch < source.size_bytes else ""
        fetch = f", about {show_bytes(plan.bytes_to_fetch)}{of_it} to fetch"
    several = len(source.parts) > 1
    if several:
        total = f"{show_number_of(len(source.files), 'file')}, {show_bytes(source.size_bytes)}"
        how = "mixed by tokens" if job.config.mix else "one after the other"
        yield "input", f"{len(source.parts)} parts, {how}: {total}{fetch}"
    for number, (part, config) in enumerate(zip(source.parts, job.config.part_configs, strict=True), 1):
        files = [file for file in part.files if not file.is_pipe]
        named = [file for file in part.files if file.is_pipe and file.path != STANDARD_INPUT]
        counts = [f"{show_number_of(len(files), 'file')}, {show_bytes(part.size_bytes)}"] if files else []
        counts += [show_number_of(len(named), "pipe")] if named else []  # whose size is unknown
        counts += ["standard input"] if len(files) + len(named) < len(part.files) else []
        hub = part.settings.hub
        where = f"{' '.join(filter(None, (hub.dataset, hub.name)))} at {hub.commit[:10]}: " if hub else ""
        kinds = ", ".join(sorted({file.format for file in part.files}))
        shown = f"{where}{', and '.join(counts) or 'no file'}{'' if several else fetch} ({kinds})"
        if several:
            extent = plan.part_extents[number - 1]
            shown += f", {show_estimate(extent.tokens, exact=extent.exact)} tokens" if extent.tokens else ""
        yield f"part {number}" if several else "input", shown
        if job.config.mix:
            share = show_share(float(job.config.mix.shares()[number - 1]))
            epochs = f", {config.epochs:,} epochs" if config.epochs > 1 else ""
            yield "weight", f"{config.weight:,} ({share}){epochs}"
    if job.config.mix:
        yield from _mix_rows(plan, job.config.mix)
    if plan.piles is not None:
        what = "all documents" if job.config.max_tokens is None else "the beginning of the stream, up to --max-tokens"
        passes = f"in two passes: into {show_number_of(plan.piles.count, 'pile')}, then into shards"
        yield "shuffle", f"{what}, by seed {job.config.shuffle}, {passes}"
    for note in job.notes:
        yield "note", note


def _mix_rows(plan: Plan, rule: MixRule) -> Iterator[tuple[str, str]]:
    forecast, first = plan.forecast, plan.forecast.first_end
    end_of_mix = "until all parts run out" if rule.until_all else "until a part runs out"
    if forecast.cut:
        end_of_mix = "until --max-tokens"
    elif first is not None and not rule.until_all:
        end_of_mix = f"until part {first + 1} runs out, after about {show_count(forecast.ends[first] or 0)} tokens"
    yield "mix", end_of_mix + (", unless one of unknown size does first" if None in forecast.available else "")
    columns = zip(forecast.available, forecast.taken, forecast.shares(), forecast.ends, strict=True)
    for number, (available, taken, share, end) in enumerate(columns, 1):
        if taken is None:
            yield "", f"part {number}: tokens unknown until the end"
            continue
        of = f"all {show_count(taken)}" if taken == available else show_count(taken)
        of += f" of {show_count(available)}" if available is not None and taken != available else ""
        shown = f"part {number}: {of} tokens" + ("" if share is None else f", {show_share(share)}")
        yield "", shown + ("" if end is None else f", runs out after {show_count(end)}")


def _tokenizer_rows(job: Job) -> Iterator[tuple[str, str]]:
    """Describe the tokenizer unless it is GPT-2's: nobody should find out in the morning that it used another EOT."""
    vocabulary, engine = job.vocabulary, job.engine
    if vocabulary == GPT2:
        return
    names = {number: name for name, number in job.definition.special_tokens.items()}
    name = printable(names.get(vocabulary.eot, ""))
    eot = f"{name} ({vocabulary.eot})" if name else str(vocabulary.eot)
    dtype = job.output.shard_format.dtype.name
    yield "tokenizer", f"{printable(vocabulary.name)}: {vocabulary.size:,} ids ({dtype}), EOT {eot}"
    if engine and engine.name == vocabulary.reference and job.trial and job.trial.refusals:
        why = printable("; ".join(job.trial.refusals))
        yield "engine", f"{engine.name} itself, which is slow: {why}"


def _output_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    job, extent, location = plan.job, plan.extent, plan.job.output.store.location
    yield "documents", show_estimate(extent.documents, exact=extent.documents_exact)
    if extent.tokens is None:
        yield "tokens", show_estimate(None, exact=False)
    else:
        how = "exact, from token_count" if extent.exact else "an estimate"
        if plan.piles is not None and plan.piles.ended:
            how = "exact"  # counted in the first pass
        yield "tokens", f"{show_estimate(extent.tokens, exact=extent.exact)} ({how})"
        if job.layout.one_file:
            yield "files", f"one per split ({job.layout.name}), in {location}"
        else:
            last = extent.tokens - (max(1, plan.shards or 1) - 1) * job.output.shard_tokens
            about, rest = "", f", the last with {last:,}"
            # Unless validation is a number of tokens, its last shard is not full either.
            if not extent.exact or not job.output.split_rule.counts_tokens:
                about, rest = "about ", ""
            yield "shards", f"{about}{plan.shards:,} of {job.output.shard_tokens:,} tokens{rest}, in {location}"
        yield from _disk_rows(plan)
    names = [file.name for file in job.source.files if file.for_validation]
    rule = job.output.split_rule
    sampled = ": a random sample" if plan.piles and (rule.val_tokens or rule.val_documents) else ""
    yield "validation", rule.describe() + sampled + (f", which come first: {first_few(names)}" if names else "")


def _disk_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Describe the space needed: for shards in a bucket, there; with a shuffle, the peak on each local disk."""
    about = "" if plan.extent.exact else "about "
    first, *others = plan.disk_needs
    needed = first.size_bytes if plan.piles else plan.output_bytes or 0
    piles = f"{show_bytes(first.pile_bytes)} of it for the piles of the shuffle, " if first.pile_bytes else ""
    yield "disk", f"{about}{show_bytes(needed)} needed, {piles}{show_bytes(first.free_bytes)} free"
    for need in others:
        size = f"{about}{show_bytes(need.size_bytes)} needed for the piles of the shuffle"
        yield "", f"{size}, in {need.folder}, {show_bytes(need.free_bytes)} free"


def _machine_row(plan: Plan) -> tuple[str, str]:
    budget, engine = plan.job.budget, plan.job.engine
    workers = show_number_of(budget.workers, "worker")
    if budget.wanted_workers is not None and budget.wanted_workers > budget.workers:
        workers += f" (not {budget.wanted_workers:,}: limited by memory)"
    encoder = f"{engine.name} {engine.installed_version()}" if engine else "no tokenizer"
    return "machine", f"{workers}, {encoder}, memory budget {show_bytes(budget.memory_bytes)}"


def show_estimate(count: int | None, *, exact: bool) -> str:
    if count is None:
        return "unknown until the end"
    return f"{count:,}" if exact else f"about {show_count(count)}"


def resume_text(manifest: Manifest) -> str:
    """Return where a build resumes, and in which pass of a shuffle; empty if it starts from the beginning."""
    finished = f"{show_number_of(manifest.shard_count, 'shard')}, {show_count(manifest.tokens)} tokens"
    if not manifest.is_shuffled:
        return f"after {finished}" if manifest.shards else ""
    if manifest.pass_number == 2:
        return f"in the second pass, after {finished}"
    kept = f"; {finished} are finished" if manifest.shards else ""
    piled = manifest.piled_tokens
    return f"in the first pass, after {show_count(piled)} tokens{kept}" if piled or kept else ""
