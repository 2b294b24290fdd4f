"""What is seen of a door beside its own figures: times of its requests, their traces, memory of the processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from proteus.backend.memory import MEMORY_FIGURES, TELL_MEMORY_S, read_memory
from proteus.backend.metrics import Distribution, Histograms, Metrics, Observed, Telling
from proteus.backend.spans import Trace
from proteus.backend.tracing import Ended, Tracing

Ending_co = TypeVar("Ending_co", bound=Ended, covariant=True)


class Observing(Protocol[Ending_co]):
    """What a door notes of its requests; `door.observed.Observed` is one."""

    dropped: int  # observations that are in no histogram

    def request(self) -> AbstractContextManager[Ending_co]: ...

    def take(self) -> Sequence[Observed]: ...


class Watch:
    """Of the door `model`. One door of a server tells the memory of all its models."""

    def __init__(self, model: str, histograms: Sequence[Distribution], *, tells_memory: bool) -> None:
        self._histograms = Histograms(histograms)
        self._tracing = Tracing(model)
        self._memory = Telling(Metrics(MEMORY_FIGURES), read_memory, every_s=TELL_MEMORY_S) if tells_memory else None

    def request(
        self, request: Any, observing: Observing[Ending_co]
    ) -> AbstractContextManager[tuple[Ending_co, Trace | None]]:
        """One of Triton's requests, counted and, where Triton does it, traced."""
        return self._tracing.request(request, observing.request())

    def tell(self, observing: Observing[Ended]) -> None:
        """All that was observed since it was told last."""
        observing.dropped += self._histograms.tell(observing.take())

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._tracing.close()
