"""Format a plan as lines of text: all of it for `plan`, a short form for the beginning of a build."""

from __future__ import annotations

from fineweb_shards.run.plan import REMOTE_FOOTERS, Plan
from fineweb_shards.run.separator_preview import document_rows
from fineweb_shards.run.trainer_warnings import expect_files, reader_warnings, stray_warnings
from fineweb_shards.store.manifest import Manifest
from fineweb_shards.units import show_bytes, show_count, show_seconds


def plan_lines(plan: Plan, verdict: str = "") -> list[str]:
    """Return the whole plan, for `plan`; the `verdict` says what a build would do in this folder."""
    config, extent = plan.job.config, plan.extent
    rows = [*_short_rows(plan)]
    rows.insert(
        1 + len(plan.job.notes), ("documents", _about(extent.documents, exact=_documents_are_exact(plan)))
    )
    if plan.tokens_per_second and plan.output_bytes:
        speed = f"{show_count(plan.tokens_per_second)} tokens/s"
        duration = show_seconds(plan.output_bytes / 2 / plan.tokens_per_second)
        rows.append(("time", f"{duration} ({speed}, an estimate from a trial of one second)"))
    if verdict:
        rows.append(("build", verdict))
    rows += plan.separator_preview.rows() if plan.separator_preview else document_rows(plan.first_documents)
    lines = [f"{name:<10} {text}" for name, text in rows]
    if config.input and any(file.is_pipe for file in plan.job.source.files):
        lines.append("           (standard input can only be read once: its content is not looked at)")
    return lines + warning_lines(plan)


def verdict_on(manifest: Manifest | None, *, held: bool) -> str:
    """Say what a build would do in a folder with this manifest (None: refused); `held`: a run is active."""
    if held:
        return "a run is at work in this folder: another one would be refused (exit code 6)"
    if manifest is None:
        return "would be refused, for the reason in the last lines"
    if manifest.complete:
        return f"nothing to do: complete, {manifest.tokens:,} tokens"
    if manifest.shards:
        return f"would resume behind {manifest.shards[-1].name}, {manifest.tokens:,} tokens are done"
    return "would begin"


def short_lines(plan: Plan) -> list[str]:
    """Return the plan in a few lines, with warnings, for the beginning of a build. They also show how a text
    is split into documents, because later nothing shows it."""
    rows = [*_short_rows(plan), *(plan.separator_preview.rows() if plan.separator_preview else [])]
    return [f"{name:<10} {text}" for name, text in rows] + warning_lines(plan)


def warning_lines(plan: Plan) -> list[str]:
    """Return warnings about problems that the loader of the files will have, as far as the plan can tell."""
    job, extent = plan.job, plan.extent
    warnings = stray_warnings(job.folder, job.layout)
    if extent.tokens and extent.documents:
        files = expect_files(job.output, extent.tokens, extent.documents, exact=extent.exact)
        about = "" if extent.exact else "By the estimate: "
        warnings += [f"{about}{warning}" for warning in reader_warnings(job.output, files, made=False)]
    return [f"{'WARNING':<10} {warning}" for warning in warnings]


def _short_rows(plan: Plan) -> list[tuple[str, str]]:
    job, extent = plan.job, plan.extent
    kinds = sorted({file.format.removeprefix("hub-") for file in job.source.files})
    count = len(job.source.files)
    size = show_bytes(job.source.size_bytes)
    where = f"{job.config.dataset} {job.config.name} at {job.commit[:10]}: " if job.commit else ""
    fetch = ""
    if job.commit:
        whole = plan.read_bytes == job.source.size_bytes
        fetch = " to fetch" if whole else f", about {show_bytes(plan.read_bytes)} of it to fetch"
    rows = [("input", f"{where}{count:,} file{'s'[: count != 1]}, {size}{fetch} ({', '.join(kinds)})")]
    rows += [("note", note) for note in job.notes]
    how = "exact, from token_count" if extent.exact else "an estimate"
    if extent.tokens is None:
        rows.append(("tokens", "unknown before the end"))
    else:
        last = extent.tokens - (max(1, plan.shards or 1) - 1) * job.config.shard_tokens
        about, rest = ("", f", the last with {last:,}") if extent.exact else ("about ", "")
        rows.append(("tokens", f"{_about(extent.tokens, exact=extent.exact)} ({how})"))
        if job.layout.one_file:
            rows.append(("files", f"one for each split ({job.layout.name}), in {job.folder}"))
        else:
            shards = f"{about}{plan.shards:,} of {job.config.shard_tokens:,} tokens"
            rows.append(("shards", f"{shards}{rest}, in {job.folder}"))
        rows.append(
            (
                "disk",
                f"{about}{show_bytes(plan.output_bytes or 0)} needed, {show_bytes(plan.free_bytes)} free",
            )
        )
    workers = f"{job.budget.workers} worker{'s'[: job.budget.workers != 1]}"
    budget = show_bytes(job.budget.memory_bytes)
    rows.append(("machine", f"{workers}, {job.engine.name} {job.engine.installed_version()}, "
                 f"memory budget {budget}"))  # fmt: skip
    wanted = job.budget.wanted_workers
    if wanted is not None and wanted > job.budget.workers:
        fewer = f"{job.budget.workers} instead of {wanted:,}: {budget} of memory hold no more"
        rows.append(("workers", f"{fewer} (--max-memory)"))
    return rows


def _documents_are_exact(plan: Plan) -> bool:
    limited = plan.job.config.max_tokens is not None
    files = plan.job.source.files
    seen = len(files) <= REMOTE_FOOTERS or not plan.job.commit
    return all(file.format.endswith("parquet") for file in files) and seen and not limited


def _about(count: int | None, *, exact: bool) -> str:
    if count is None:
        return "unknown before the end"
    return f"{count:,}" if exact else f"about {show_count(count)}"
