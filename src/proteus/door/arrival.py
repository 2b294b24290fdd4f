"""A call as it arrives, before its document is read, and where it is read: in threads, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from proteus.backend.fleet import Context
from proteus.door.document import Asked, shorten
from proteus.errors import InvalidRequest

Done = TypeVar("Done")
SERVED, CANCELLED, STOP = "served", "cancelled", "stop"  # outcomes beside the codes of errors


@dataclass(slots=True)
class Ending:
    """How a call ended, as far as it is known: whoever learns it writes it down."""

    outcome: str = SERVED
    stages_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    document: bytes  # the request document
    attached: tuple[bytes, ...] = ()  # pictures beside it
    context: Context
    ending: Ending = field(default_factory=Ending)

    @property
    def num_bytes(self) -> int:
        """Of all that the client sent."""
        return len(self.document) + sum(map(len, self.attached))

    def refuse_parameters(self) -> None:
        """Raises InvalidRequest: everything that is asked stands in the document."""
        if self.context.parameters:
            names = shorten(", ".join(sorted(self.context.parameters)))
            raise InvalidRequest(
                f"unknown request parameter {names}",
                fix='put every field into the JSON document of the input "request"',
            )

    def deadline_s(self, request: Asked, arrived_s: float) -> float | None:
        """The sooner of the request's own deadline and Triton's timeout, on the clock of `arrived_s`."""
        waits_s = [request.deadline_ms / 1e3] if request.deadline_ms is not None else []
        waits_s += [self.context.timeout_us / 1e6] if self.context.timeout_us else []
        return arrived_s + min(waits_s) if waits_s else None


async def in_thread(threads: ThreadPoolExecutor, work: Callable[[], Done]) -> Done:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
