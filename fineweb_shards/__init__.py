"""fineweb_shards: text in, token shards for GPT trainers out. Exact, bounded, unkillable, fast.

As a command: `fineweb-shards build sample-10BT`. As a library:

    import fineweb_shards as fs

    fs.build("sample-10BT", out="shards")
    loader = fs.ShardLoader("shards", "train", batch_size=64, seq_len=1024)

Nothing is imported before it is used: training code that only loads shards needs NumPy alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fineweb_shards.api import build, export, inspect, plan, status, verify
    from fineweb_shards.errors import ShardError
    from fineweb_shards.events import Event
    from fineweb_shards.loader import ShardLoader
    from fineweb_shards.torch_dataset import ShardDataset
    from fineweb_shards.watching.run_files import Snapshot

__version__ = "1.0.0"
__all__ = [
    "Event", "ShardDataset", "ShardError", "ShardLoader", "Snapshot",
    "build", "export", "inspect", "plan", "status", "verify",
]  # fmt: skip
_MODULES = {
    "Event": "events",
    "ShardDataset": "torch_dataset",
    "ShardError": "errors",
    "ShardLoader": "loader",
    "Snapshot": "watching.run_files",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
