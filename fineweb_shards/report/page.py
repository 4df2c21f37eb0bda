"""Write the report: one HTML file without scripts, which loads nothing and escapes all text from documents.

The template engine escapes every text, and unprintable characters (terminal escapes, bidi controls, NUL …) are removed.
The Content-Security-Policy allows only one style sheet, by its hash: even a mistake in the escaping could not run or
fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from fineweb_shards import __version__
from fineweb_shards.output.store import Store
from fineweb_shards.report import contents
from fineweb_shards.report.contents import Facts, gather_facts, report_path, show_moment
from fineweb_shards.system.durable import output_error, write_quickly
from fineweb_shards.system.own_files import claim_folder
from fineweb_shards.system.terminal import printable
from fineweb_shards.units import show_bytes
from fineweb_shards.watching.run_files import RunRecord, State
from fineweb_shards.watching.status import RUNNING

if TYPE_CHECKING:
    from jinja2 import Environment

_REFRESH_SECONDS = 60


def write_report(store: Store, *, alive: bool | None = None, path: Path | None = None) -> Path:
    """Write the page, by default into the work folder; return its path. `alive`: whether a run is active there."""
    given, path = path is not None, path or report_path(store.folder)
    page = render_page(gather_facts(store, alive=alive))
    try:
        if given:  # in the scratch folder of a bucket, whose parent is also ours
            claim_folder(path.parent.parent)
        claim_folder(path.parent)
        write_quickly(path, page.encode())
    except OSError as error:
        raise output_error(path, error) from error
    return path


def render_page(facts: Facts) -> str:
    from markupsafe import Markup

    style = (resources.files(__package__) / "page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template("page.html").render(
        style=Markup(style),  # our own file, and the only text that is not escaped
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        refresh_seconds=_REFRESH_SECONDS if facts.status.state == RUNNING else None,
        headline=contents.make_headline(facts),
        runs=contents.list_runs(facts),
        marks=contents.list_marks(facts),
        parts=contents.list_parts(facts),
        shards=contents.list_shards(facts),
        lengths=contents.measure_lengths(facts),
        tokens=contents.list_tokens(facts),
        basis=contents.describe_basis(facts),
        absence=facts.problem or "No shard is finished yet.",
        left_out=contents.count_left_out(facts),
        samples=facts.samples,
        settings=contents.list_settings(facts),
        version=__version__,
        made=show_moment(facts.gathered),
    )  # fmt: skip
    return printable(page)


@cache
def _environment() -> Environment:
    """Load the template engine, once and only when needed, so that a run starts sooner."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def closing_lines(store: Store, run: RunRecord) -> list[str]:
    """Return the summary's lines about fetched bytes, waits and the report, if there are any."""
    rows = []
    if run.fetched_bytes:
        speed = show_bytes(run.fetched_bytes / max(run.work_seconds, 1e-9))
        rows.append(("fetched", f"{show_bytes(run.fetched_bytes)}, {speed}/s on average"))
    if waits := run.describe_waits():
        rows.append(("waited", waits))
    begun = run.new_tokens > 0 or run.ending == State.COMPLETE
    if begun and (page := report_path(store.folder)).is_file():
        rows.append(("report", str(page)))
    return [f"{name:<10} {text}" for name, text in rows]
