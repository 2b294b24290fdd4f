"""What is seen of a door beside its own figures: times of its requests, their traces, memory of the processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from proteus.backend.memory import MEMORY_FIGURES, TELL_MEMORY_S, read_memory
from proteus.backend.metrics import Distribution, Histograms, Metrics, Observed, Row, Telling, Values
from proteus.backend.spans import Trace
from proteus.backend.tracing import Ended, Tracing

AT_ONCE = 256  # times told between two signs of life

Told = tuple[Sequence[Row], Callable[[], Values]]  # families, and how to ask for their values
Ending_co = TypeVar("Ending_co", bound=Ended, covariant=True)


class Observing(Protocol[Ending_co]):
    """What a door notes of its requests; `door.observed.Observed` is one."""

    dropped: int  # observations that are in no histogram

    def request(self) -> AbstractContextManager[Ending_co]: ...

    def take(self) -> Sequence[Observed]: ...


class Watch:
    """Of the door `model`. One door of a server tells the memory of all its models."""

    def __init__(
        self, model: str, histograms: Sequence[Distribution], figures: Sequence[Told], *, tells_memory: bool
    ) -> None:
        self._histograms = Histograms(histograms)
        self._figures = [(Metrics(rows), values) for rows, values in figures]
        self._telling = ThreadPoolExecutor(1, thread_name_prefix="telling")
        self._tracing = Tracing(model)
        self._memory = Telling(Metrics(MEMORY_FIGURES), read_memory, every_s=TELL_MEMORY_S) if tells_memory else None

    def request(
        self, request: Any, observing: Observing[Ending_co]
    ) -> AbstractContextManager[tuple[Ending_co, Trace | None]]:
        """One of Triton's requests, counted and, where Triton does it, traced."""
        return self._tracing.request(request, observing.request())

    async def tell(self, observing: Observing[Ended]) -> AsyncIterator[None]:
        """All that was observed since it was told last, and the figures as they are now; an item whenever it got on.

        Triton takes half a millisecond for each: a thread waits for it, not the event loop.
        """
        loop = asyncio.get_running_loop()
        changes = [(metrics, metrics.changes(values())) for metrics, values in self._figures]
        observed = observing.take()
        for first in range(0, len(observed), AT_ONCE):
            some = observed[first : first + AT_ONCE]
            lost = await loop.run_in_executor(self._telling, self._histograms.tell, some)
            observing.dropped += lost  # not in one line: the door counts on while this waits
            yield
        for metrics, changed in changes:
            await loop.run_in_executor(self._telling, metrics.send, changed)
        yield

    def close(self) -> None:
        self._telling.shutdown()
        if self._memory is not None:
            self._memory.close()
        self._tracing.close()
