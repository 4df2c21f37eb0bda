"""Classify how a worker died, which decides whether the document that it worked on is suspected.

A signal that a process causes itself (SIGSEGV, SIGABRT …), or an exit code, is a crash. SIGKILL and all other
signals come from outside: from a person, a scheduler, or the kernel's OOM killer. The kernel counts its OOM
kills, which tells them from the others.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

MAXIMUM_DEATHS = 3  # of workers on one batch, before its documents are encoded one by one
MAXIMUM_KILLS = 30  # from outside on one batch, without a block of it in between
# Exit codes of workers that end themselves.
OUT_OF_MEMORY_EXIT_CODE = 112  # it is not known which document needed too much
THREAD_FAILED_EXIT_CODE = 113  # without that thread it might never answer

_OWN_SIGNALS = {
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS", "SIGXCPU")
    if hasattr(signal, name)
}


class DeathKind(enum.Enum):
    """The cause of a worker's death."""

    CRASHED = "crashed by itself"
    OUT_OF_MEMORY = "out of memory, because of its document or of other programs"
    KILLED = "killed from outside"
    STUCK = "killed by the watchdog because it did nothing"


@dataclass(frozen=True, slots=True)
class Death:
    """How one worker died. `description` is a predicate, such as "was killed by signal 9"."""

    kind: DeathKind
    description: str


def explain_exit(code: int | None, *, oom_killed: bool) -> Death:
    """Classify an exit code. `oom_killed`: the kernel has just killed some process to free memory."""
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


@dataclass
class DeathCount:
    """The deaths of workers on one piece of work that is not a document's."""

    crashes: int = 0
    kills: int = 0

    def add(self, death: Death) -> bool:
        """Count a death; return whether there were too many."""
        if death.kind in (DeathKind.CRASHED, DeathKind.STUCK):
            self.crashes += 1
        else:
            self.kills += 1
        return self.crashes >= MAXIMUM_DEATHS or self.kills >= MAXIMUM_KILLS
