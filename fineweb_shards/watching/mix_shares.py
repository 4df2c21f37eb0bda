"""Compare how much of a mix comes from each part with the weights, for the screen, `status`, results and the report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from fineweb_shards.output.manifest import InputPart, Manifest
from fineweb_shards.types import Cursors, Taken
from fineweb_shards.units import show_number_of
from fineweb_shards.watching.run_files import PartShare


def find_shares(parts: Sequence[InputPart], taken: Sequence[Taken], end: Cursors) -> tuple[PartShare, ...]:
    """Return the parts of a mix at one place of its stream; none if the input is not a mix."""
    weights = [part.settings.get("weight") or 0 for part in parts]
    if not weights or not all(weights):
        return ()
    taken = taken or [Taken()] * len(parts)
    tokens = sum(one.tokens for one in taken)
    shares = []
    for part, weight, one, cursor in zip(parts, weights, taken, end, strict=True):
        # A cursor counts files through all epochs; the files for validation come first, and only once.
        val_files = sum(1 for _ in takewhile(lambda file: file.get("for_validation"), part.files))
        files, read = len(part.files) - val_files, max(0, cursor.file - val_files)
        epochs = part.settings.get("epochs") or 1
        epoch = min(epochs, read // files + 1) if files else epochs
        share = one.tokens / tokens if tokens else 0.0
        requested = weight / sum(weights)
        exhausted = read >= files * epochs
        shares.append(PartShare(part.label, one.tokens, one.documents, share, requested, epoch, epochs, exhausted))
    return tuple(shares)


def shares_in(manifest: Manifest) -> tuple[PartShare, ...]:
    """Return the same for finished shards; none for a plain export of a mix, whose records count no parts."""
    taken, end = manifest.mixed
    return find_shares(manifest.parts, taken, end) if taken or not manifest.shards else ()


def share_rows(shares: Sequence[PartShare]) -> list[tuple[str, str]]:
    """Return a name and a text for each part, to print."""
    rows = []
    for number, part in enumerate(shares, 1):
        shown = f"{show_share(part.share)} ({show_share(part.requested_share)} requested)"
        counted = f"{part.tokens:,} tokens, {show_number_of(part.documents, 'document')}"
        epoch = f", epoch {part.epoch:,} of {part.epochs:,}" if part.epochs > 1 else ""
        ended = ", exhausted" if part.exhausted else ""
        rows.append((f"part {number}", f"{part.label}: {shown}, {counted}{epoch}{ended}"))
    return rows


def show_share(share: float) -> str:
    """Format a share: `70.00 %`; a tiny one with its first two digits, `0.0012 %`."""
    percent = 100 * share
    exponent = int(f"{percent:.1e}".partition("e")[2])
    return f"{percent:.{max(2, 1 - exponent)}f} %"
