"""Keep what tasks wait for, and tell the observer when the first begins and the last ends."""

from __future__ import annotations

from fineweb_shards.events import Observer


class Waits:
    """The waits of all tasks, by the number of the task and their cause."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._reasons: dict[str, dict[int, str]] = {}  # by cause and task

    def note(self, task: int, cause: str, reason: str | None) -> None:
        """Note that a task waits, or that it does no longer."""
        reasons = self._reasons.setdefault(cause, {})
        if reason is None:
            reasons.pop(task, None)
        else:
            reasons[task] = reason
        self._observer.set_wait(cause, next(iter(reasons.values()), None))

    def end(self, task: int) -> None:
        """Note that a task has ended, however it did."""
        for cause in [cause for cause, reasons in self._reasons.items() if task in reasons]:
            self.note(task, cause, None)
