"""What every order passes on its way to a server: its tenant's budget, its share of the pool, and the router."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from proteus.gateway.order import Order, Visit
from proteus.gateway.router import Router


class Passage:
    def __init__(self, router: Router) -> None:
        self._router = router

    async def messages(self, visit: Visit, order: Order) -> AsyncGenerator[Any, None]:
        """Of the server that answers; closing it stops the request there. Raises ProteusError or ClientError."""
        visit.order = order
        async with aclosing(self._router.messages(visit, order)) as messages:
            async for message in messages:
                yield message
