"""Who tries keys: after so many bad ones in a minute, no key of that network address is looked at."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from proteus.gateway.errors import TooManyBadKeys
from proteus.gateway.http.addresses import network_of

WINDOW_S = 60.0
MAX_NETWORKS = 4_096  # that are remembered; the one whose minute began first is forgotten
log = logging.getLogger(__name__)


class Guessing:
    """For one event loop."""

    def __init__(self, max_per_minute: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._max, self._clock_s = max_per_minute, clock_s
        self._seen: dict[str, tuple[float, int]] = {}  # network -> begin of its minute, bad keys in it; oldest first

    def check(self, address: str) -> None:
        """Raises TooManyBadKeys, of a good key too: nobody looks at it."""
        if not self._seen:
            return
        begun_s, count = self._seen.get(network_of(address), (0.0, 0))
        left_s = begun_s + WINDOW_S - self._clock_s()
        if count >= self._max and left_s > 0:
            raise TooManyBadKeys(
                "too many bad keys came from your address",
                limit=f"[gateway.http] max_bad_keys_per_minute = {self._max}",
                fix=f"try again in {left_s:.1f} s",
                retry_after_s=left_s,
            )

    def failed(self, address: str) -> None:
        """A key of that address was none."""
        network, now_s = network_of(address), self._clock_s()
        begun_s, count = self._seen.get(network, (now_s, 0))
        if now_s - begun_s >= WINDOW_S:
            begun_s, count = now_s, 0
        if count == 0:  # to the end, where the newest stand
            self._seen.pop(network, None)
            if len(self._seen) >= MAX_NETWORKS:
                del self._seen[next(iter(self._seen))]
        self._seen[network] = begun_s, count + 1
        if count + 1 == self._max:
            log.warning("%d bad keys within a minute from %s: no key of it is looked at", self._max, network)
