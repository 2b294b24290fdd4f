"""When to come back: an estimate from how fast a queue has been emptying."""

from __future__ import annotations

from collections import deque

RECENT = 32  # admissions the pace is taken from
LEAST_HINT_S = 0.1


class Drain:
    """Admissions out of one queue since it last was empty. Who is sent away gets the next place behind those sent away
    before and not yet made up for, so that they come back at the pace the queue drains and not all at once.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s  # by then everyone now in the queue has left it
        self._times_s: deque[float] = deque([0.0], maxlen=RECENT + 1)
        self._sent_away = 0
        self._last_pace_s: float | None = None  # of the time before the queue last was empty

    def begin(self, now_s: float) -> None:
        """The queue has its first ticket."""
        self._last_pace_s = self._pace_s(self._times_s[-1]) or self._last_pace_s
        self._times_s.clear()
        self._times_s.append(now_s)
        self._sent_away = 0

    def admitted(self, now_s: float) -> None:
        """One that waited was admitted."""
        self._times_s.append(now_s)
        self._sent_away = max(0, self._sent_away - 1)

    def send_away(self, now_s: float) -> float:
        """Seconds after which one more, refused now, is likely to find a place."""
        self._sent_away += 1
        pace_s = self._pace_s(now_s) or self._last_pace_s
        hint_s = self._max_wait_s if pace_s is None else self._sent_away * pace_s
        return min(max(hint_s, LEAST_HINT_S), self._max_wait_s)

    def _pace_s(self, now_s: float) -> float | None:
        """Seconds from one admission to the next; None where none was seen, 0.0 where no time has passed."""
        num_admitted = len(self._times_s) - 1
        return (now_s - self._times_s[0]) / num_admitted if num_admitted else None
