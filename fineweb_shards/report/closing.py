"""Format the last lines of a run in the terminal: what it fetched and waited for, and where the report is.

Not in `page.py`, so that the template engine is not loaded for them.
"""

from __future__ import annotations

from fineweb_shards.report.path import report_path
from fineweb_shards.store.store import Store
from fineweb_shards.system.durable import WORK_FOLDER
from fineweb_shards.units import show_bytes
from fineweb_shards.watching.history import RUN_COMPLETE, RunRecord


def closing_lines(store: Store, run: RunRecord) -> list[str]:
    """Return a line each for what was fetched, for waits, and for the report, if there are any. After a start
    that failed the report has nothing to tell. After an error nobody knows whether the copy of the report in
    a bucket is the last one."""
    rows = []
    if run.fetched_bytes:
        speed = show_bytes(run.fetched_bytes / max(run.work_seconds, 1e-9))
        rows.append(("fetched", f"{show_bytes(run.fetched_bytes)}, {speed}/s on average"))
    if waits := run.describe_waits():
        rows.append(("waited", waits))
    begun = run.new_tokens > 0 or run.ending == RUN_COMPLETE
    if begun and (page := report_path(store.folder)).is_file():
        rows.append(("report", str(page)))
        if store.is_remote and run.ending == RUN_COMPLETE:
            rows.append(("", f"a copy: {store.location}/{WORK_FOLDER}/{page.name}"))
    return [f"{name:<10} {text}" for name, text in rows]
