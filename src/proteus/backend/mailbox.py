"""Events of many requests on their way from one model to another, collected together.

Triton 2.51 can only stream between models with one blocking iterator for each request, and enough of those lock each
other up (docs/decisions/0005). So a model with a loop of its own keeps a door's events, and the door asks for all that
are there. What the letters say is in `letters` and `draw_letters`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from proteus.errors import ProteusError

Posted = TypeVar("Posted")
Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Letter(Generic[Event]):
    request_key: bytes
    content: Event | ProteusError  # an error is the last letter of its request


class Mailbox(Generic[Posted]):
    """Filled and emptied by any threads; what is posted stays in order.

    The engine's thread posts, so that posting does next to nothing; the rest is done by who collects.
    """

    def __init__(self) -> None:
        self._posted: SimpleQueue[Posted | None] = SimpleQueue()  # None: it is closed
        self._collecting = threading.Lock()

    def put(self, posted: Posted) -> None:
        self._posted.put(posted)

    def collect(self, wait_s: float) -> list[Posted]:
        """All that is there, waiting for the first; none after `wait_s`, or when the mailbox is closed."""
        found: list[Posted] = []
        with self._collecting:
            try:
                posted = self._posted.get(timeout=wait_s)
                while posted is not None:
                    found.append(posted)
                    posted = self._posted.get_nowait()
                self.close()  # the next collector is not to wait either
            except Empty:
                pass
        return found

    def close(self) -> None:
        """Wake who waits."""
        self._posted.put(None)
