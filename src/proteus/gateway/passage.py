"""What every order passes on its way to a server: its tenant's budget, its share of the pool, and the router."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from proteus.gateway.errors import AnswerTimeout
from proteus.gateway.order import CLIENT_GONE, Order, Visit
from proteus.gateway.routing.router import Router
from proteus.gateway.tenancy.budgets import NOTHING, Budgets
from proteus.gateway.tenancy.shares import Shares, without_pictures

WORKED_FOR = (CLIENT_GONE, AnswerTimeout.code)  # outcomes of requests that a server was busy with, if it had them


class Passage:
    def __init__(self, router: Router, budgets: Budgets, shares: Shares) -> None:
        self._router, self._budgets, self._shares = router, budgets, shares

    async def messages(self, visit: Visit, order: Order) -> AsyncGenerator[Any, None]:
        """Of the server that answers; closing it stops the request there. Raises ProteusError or ClientError."""
        visit.order = order
        self._router.check(order)
        with self._budgets.charge(order.tenant, order.resources) as charge:
            visit.charge = charge
            turn, messages = self._shares.turn(visit, order), self._router.messages(visit, order)
            async with turn as reservation, aclosing(messages):
                async for message in messages:
                    if not charge.answered:
                        charge.answered = True
                        without_pictures(reservation)
                    yield message

    def ended(self, visit: Visit) -> None:
        """What was not used comes back to the budgets per second.

        Of a request that was begun and ended without a report it is not known: all of it is taken for used, or whoever
        leaves early would keep servers busy for nothing.
        """
        charge = visit.charge
        if charge is None or visit.report is not None:
            return
        if not charge.answered and not (visit.server and visit.outcome in WORKED_FOR):
            charge.settle(NOTHING)
