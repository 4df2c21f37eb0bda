"""fineweb_shards: text in, token shards for GPT trainers out. Exact, bounded in memory, resumable, fast.

As a command: `fineweb-shards build sample-10BT`. As a library:

    import fineweb_shards as fs

    fs.build("sample-10BT", out="shards")
    loader = fs.ShardLoader("shards", "train", batch_size=64, seq_len=1024)

Modules are imported when first used: training code that only loads shards needs only NumPy.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fineweb_shards.api import build, export, inspect, plan, status, verify
    from fineweb_shards.api.values import (
        BuildResult,
        Document,
        ExportResult,
        Inspection,
        Match,
        MixedFolder,
        OutputSettings,
        Part,
        PlannedPart,
        PlanResult,
        Settings,
        StatusResult,
        VerifyResult,
    )
    from fineweb_shards.errors import ShardError
    from fineweb_shards.events import Event
    from fineweb_shards.loader import ShardLoader
    from fineweb_shards.torch_dataset import ShardDataset as ShardDataset
    from fineweb_shards.watching.run_files import PartShare, Snapshot

__version__ = "1.0.0"
# Without ShardDataset, which needs PyTorch: `import *` and `help` import all of these.
__all__ = [
    "BuildResult", "Document", "Event", "ExportResult", "Inspection", "Match", "MixedFolder", "OutputSettings", "Part",
    "PartShare", "PlanResult", "PlannedPart", "Settings", "ShardError", "ShardLoader", "Snapshot", "StatusResult",
    "VerifyResult", "build", "export", "inspect", "plan", "status", "verify",
]  # fmt: skip
_MODULES = {
    **dict.fromkeys(("build", "export", "inspect", "plan", "status", "verify"), "api"),
    "Event": "events",
    "PartShare": "watching.run_files",
    "ShardDataset": "torch_dataset",
    "ShardError": "errors",
    "ShardLoader": "loader",
    "Snapshot": "watching.run_files",
}  # all others: api.values

if not TYPE_CHECKING:  # else type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__ and name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "ShardDataset" and find_spec("torch") is None:
            raise AttributeError("ShardDataset needs PyTorch, which is not installed; ShardLoader works without it")
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'api.values')}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
