"""Admission for one event loop: waits as a coroutine, ends waiting by a timer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proteus.admission.admission import Admission, Keys, Snapshot
from proteus.admission.ask import Ask
from proteus.admission.ledger import Reservation
from proteus.admission.queue import Ticket
from proteus.errors import InternalError
from proteus.limits import AdmissionLimits, DrawAdmission


class Gate:
    """For one event loop and one process. `clock_s` must run as fast as the loop's own; deadlines are on it."""

    def __init__(
        self,
        limits: AdmissionLimits | DrawAdmission,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        keys: Keys | None = None,
    ) -> None:
        self._clock_s = clock_s
        self._admission = Admission(limits, clock_s=clock_s, settled=self._settled, keys=keys)
        self._turns: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # when it rings

    @asynccontextmanager
    async def admitted(self, ask: Ask) -> AsyncIterator[Reservation]:
        """Waits for the turn of `ask` and holds its reservation for the block, however that ends.

        Raises MediaTooLarge, QueueFull or DeadlineExceeded instead of entering the block.
        """
        with await self.reserve(ask) as reservation:
            yield reservation

    async def reserve(self, ask: Ask) -> Reservation:
        """Waits for the turn of `ask`; whoever is given the reservation releases it. Raises as `admitted` does."""
        ticket = self._admission.submit(ask)
        if ticket.waiting:
            await self._turn(ticket)
        if ticket.reservation is None:
            raise ticket.error or InternalError()
        return ticket.reservation

    def resize(self, times: int) -> None:
        """Room for so many times the capacity."""
        self._admission.resize(times)

    def snapshot(self) -> Snapshot:
        """Figures for metrics."""
        return self._admission.snapshot()

    async def _turn(self, ticket: Ticket) -> None:
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        self._set_timer()
        try:
            await turn
        except BaseException:
            # Cancelled: while it waited, or after it was admitted and before it could run again.
            self._admission.cancel(ticket)
            if ticket.reservation is not None:
                ticket.reservation.release()
            raise
        finally:
            self._turns.pop(ticket, None)
            self._set_timer()

    def _settled(self, ticket: Ticket) -> None:
        turn = self._turns.pop(ticket, None)
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _set_timer(self) -> None:
        """One timer, for the earliest of those who wait or a little before."""
        expiry_s = self._admission.next_expiry_s()
        if self._timer is not None and (expiry_s is None or expiry_s < self._timer_s):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and expiry_s is not None:
            self._timer = asyncio.get_running_loop().call_later(expiry_s - self._clock_s(), self._expire)
            self._timer_s = expiry_s

    def _expire(self) -> None:
        self._timer = None
        self._admission.advance()
        self._set_timer()
