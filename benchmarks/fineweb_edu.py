"""The sizes of FineWeb-Edu's samples, as the hub had them in 2026 (revision 87f09149ef), for calculations.

Files and bytes are the hub's. Tokens are what the names say. A file of 2.15 GB has about 726 row groups, a batch from
the hub two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROW_GROUP_BYTES = 2.15e9 / 726
_ROW_GROUPS_A_BATCH = 2
FOOTER_BYTES = 3_000_000
SHARD_TOKENS = 100_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """A config of FineWeb-Edu."""

    name: str
    files: int
    size_bytes: int
    tokens: int

    @property
    def batches(self) -> int:
        """How many batches its readers make of it."""
        return self.files * self.batches_a_file

    @property
    def batches_a_file(self) -> int:
        return -(-round(self.size_bytes / self.files / _ROW_GROUP_BYTES) // _ROW_GROUPS_A_BATCH)

    @property
    def shards(self) -> int:
        return -(-self.tokens // SHARD_TOKENS)


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample("sample-10BT", 14, 28_518_193_415, 10**10),
        Sample("sample-100BT", 140, 286_394_522_604, 10**11),
        Sample("sample-350BT", 472, 998_102_051_512, 35 * 10**10),
        Sample("default", 2_410, 4_522_727_684_984, 13 * 10**11),
    )
}
