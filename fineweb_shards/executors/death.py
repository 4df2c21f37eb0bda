"""How a worker ended, and what that says about the document it was at.

A signal that a process brings upon itself (SIGSEGV, SIGABRT …) or an exit code of its own is its own doing.
SIGKILL and the others come from outside: from a person, a scheduler, or the kernel, whose OOM killer counts
its victims.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

# Exit codes of workers that end themselves.
OUT_OF_MEMORY_EXIT_CODE = 112  # it is not known which document asked for too much
THREAD_FAILED_EXIT_CODE = 113  # without one of its threads it might be waited for in vain

_OWN_SIGNALS = {
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS", "SIGXCPU")
    if hasattr(signal, name)
}


class DeathKind(enum.Enum):
    """Whose doing a worker's end was."""

    CRASHED = "its own"
    OUT_OF_MEMORY = "its own, or that of other programs which fill the memory"
    KILLED = "somebody else's"
    STUCK = "ours: it did nothing any more"


@dataclass(frozen=True, slots=True)
class Death:
    """How one worker ended. `words` end a sentence that begins with the worker."""

    kind: DeathKind
    words: str


def explain_exit(code: int | None, *, oom_killed: bool) -> Death:
    """Tell how a process ended. `oom_killed`: the kernel has just killed somebody for want of memory."""
    if code == OUT_OF_MEMORY_EXIT_CODE:
        return Death(DeathKind.OUT_OF_MEMORY, "ran out of memory")
    if code == THREAD_FAILED_EXIT_CODE:
        return Death(DeathKind.CRASHED, "ended because one of its threads failed")
    if code is None or code >= 0:
        return Death(DeathKind.CRASHED, f"ended with exit code {code}")
    if -code == getattr(signal, "SIGKILL", None) and oom_killed:
        return Death(DeathKind.OUT_OF_MEMORY, "was killed by the kernel, which was out of memory")
    kind = DeathKind.CRASHED if -code in _OWN_SIGNALS else DeathKind.KILLED
    return Death(kind, f"was killed by signal {-code}")
