"""One computation per key at a time; who comes while it runs shares its result.

Holds nothing between computations: keeping results is somebody else's job. For one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Landing(Generic[Value]):
    value: Value
    shared: bool  # another request computed it


class SingleFlight(Generic[Key, Value]):
    """`shared_errors` are those that every request for the key would meet; a leader that fails otherwise, or is
    cancelled, fails alone, and one of those who wait computes in its place.
    """

    def __init__(self, *, shared_errors: tuple[type[Exception], ...] = ()) -> None:
        self._shared_errors = shared_errors
        self._flights: dict[Key, _Flight[Value]] = {}

    def __len__(self) -> int:
        """Computations under way."""
        return len(self._flights)

    async def run(self, key: Key, compute: Callable[[], Awaitable[Value]]) -> Landing[Value]:
        """The value of `compute()`, or that of the same key's computation under way."""
        while (flight := self._flights.get(key)) is not None:
            await flight.landed.wait()
            if flight.landing is not None:
                return flight.landing
            if flight.error is not None:
                raise flight.error
        return Landing(await self._lead(key, compute), shared=False)

    async def _lead(self, key: Key, compute: Callable[[], Awaitable[Value]]) -> Value:
        flight = self._flights[key] = _Flight[Value]()
        try:
            value = await compute()
            flight.landing = Landing(value, shared=True)
            return value
        except self._shared_errors as error:
            flight.error = error
            raise
        finally:
            del self._flights[key]
            flight.landed.set()


class _Flight(Generic[Value]):
    def __init__(self) -> None:
        self.landed = asyncio.Event()
        self.landing: Landing[Value] | None = None
        self.error: Exception | None = None
