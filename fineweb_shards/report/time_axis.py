"""The time axis of charts: the runs one after the other, with long gaps between them shortened."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence

# A gap, such as a night between two runs, takes at most this share of the time of all runs.
_GAP_SHARE = 0.06
_DAY_SECONDS = 86400
_SHORT_SECONDS = 600


class TimeAxis:
    """Converts moments, in seconds since 1970, to places between 0 and `length`, and back."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        """Make the axis; `spans` are the beginning and the end of each run."""
        self._spans = spans
        work_seconds = sum(end - begin for begin, end in spans)
        self._starts: list[float] = []  # the place of each span's beginning
        place = 0.0
        for number, (begin, end) in enumerate(spans):
            if number:
                place += min(max(0.0, begin - spans[number - 1][1]), _GAP_SHARE * work_seconds)
            self._starts.append(place)
            place += end - begin
        self.length = place

    def position(self, moment: float) -> float:
        """Return the place of a moment; between two runs, it is the end of the first."""
        number = max(0, bisect_right([begin for begin, _ in self._spans], moment) - 1)
        begin, end = self._spans[number]
        return self._starts[number] + min(max(0.0, moment - begin), end - begin)

    def labels(self, most: int) -> list[tuple[float, str]]:
        """Return at most `most` labels with times of day (and dates, if there are several days), evenly
        spread from end to end. Not at round times: with shortened gaps those would be uneven, or missing."""
        if not self._spans:
            return []
        whole_seconds = self._spans[-1][1] - self._spans[0][0]
        short = "%H:%M:%S" if whole_seconds <= _SHORT_SECONDS else "%H:%M"
        form = "%d %b %H:%M" if whole_seconds > _DAY_SECONDS else short
        count = max(2, min(most, int(self.length) + 1))  # no second twice
        places = [self.length * number / (count - 1) for number in range(count)]
        return [(place, time.strftime(form, time.localtime(self._moment(place)))) for place in places]

    def _moment(self, place: float) -> float:
        number = max(0, bisect_right(self._starts, place) - 1)
        begin, end = self._spans[number]
        return min(begin + place - self._starts[number], end)
