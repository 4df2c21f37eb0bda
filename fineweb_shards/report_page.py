"""The report as a page: one file, no script, nothing loaded from anywhere, everything from documents escaped.

The Content-Security-Policy allows one style sheet, by its hash, and nothing else: even a mistake in
the escaping could not run or fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
import time
from importlib import resources

from fineweb_shards import __version__
from fineweb_shards.markup import Markup, join, tag
from fineweb_shards.report import Report
from fineweb_shards.report_documents import (
    render_left_out,
    render_lengths,
    render_samples,
    render_tokens,
)
from fineweb_shards.report_run import render_headline, render_over_time, render_settings, render_shards
from fineweb_shards.report_runs import render_runs
from fineweb_shards.watching.status import RUNNING

_REFRESH_SECONDS = 60


def render_page(report: Report) -> str:
    """The whole page."""
    style = (resources.files(__package__) / "report.css").read_text("utf-8")
    name, source = report.status.folder.resolve().name, describe_source(report)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy_for(style)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{name}: token shards of {source}" if source else f"{name}: token shards"),
        Markup(f"<style>{style}</style>"),
    ]
    if report.status.state == RUNNING:
        head.append(tag("meta", http_equiv="refresh", content=str(_REFRESH_SECONDS)))
    body = [
        tag("header", tag("h1", name), tag("p", source, class_="source"), *render_headline(report)),
        tag(
            "main",
            render_runs(report),
            render_over_time(report),
            render_shards(report),
            render_lengths(report),
            render_tokens(report),
            render_left_out(report),
            render_samples(report),
            render_settings(report),
        ),
        tag("footer", tag("p", _footer(report))),
    ]
    page = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"


def describe_source(report: Report) -> str:
    """What the shards were made from: a dataset, or files."""
    manifest = report.status.manifest
    if manifest is None:
        return ""
    settings, files = manifest.settings, manifest.files
    if settings.get("dataset"):
        commit = f", commit {manifest.commit[:10]}" if manifest.commit else ""
        return f"{settings['dataset']} {settings.get('name') or ''}".strip() + commit
    return str(files[0]["name"]) if len(files) == 1 else f"{len(files):,} files" if files else ""


def policy_for(style: str) -> str:
    """Nothing is allowed but this style sheet."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _footer(report: Report) -> Markup:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.made))
    return join(f"Made by fineweb-shards {__version__} on {made}. This page has no script and loads nothing.")
