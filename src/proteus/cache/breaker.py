"""Leaves a service that failed alone: for a second, then twice as long after each attempt, up to half a minute."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class Breaker:
    """Ask `may_try` before each question, and tell how it went. After a pause one question goes ahead of the others."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._pause_s = 0.0  # 0: it works
        self._until_s = 0.0
        self._trying = False

    @property
    def is_open(self) -> bool:
        """Whether the last that was heard is a failure."""
        return self._pause_s > 0

    def may_try(self) -> bool:
        if not self.is_open:
            return True
        now_s = self._clock_s()
        if now_s < self._until_s:
            return False
        self._trying = True
        self._until_s = now_s + self._pause_s  # the others go on waiting, and so they do if nothing is heard of it
        return True

    def failed(self) -> bool:
        """Whether that is news. Questions that were under way together fail as one."""
        is_news = not self.is_open
        if is_news:
            self._pause_s = FIRST_PAUSE_S
        elif self._trying:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            return False
        self._trying = False
        self._until_s = self._clock_s() + self._pause_s
        return is_news

    def worked(self) -> bool:
        """Whether that is news."""
        is_news = self.is_open
        self._pause_s, self._trying = 0.0, False
        return is_news
