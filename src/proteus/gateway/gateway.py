"""All that the gateway is made of, for one event loop and one deployment."""

from __future__ import annotations

import asyncio

from proteus.deployment import Deployment, DeploymentError
from proteus.gateway.http.addresses import Proxies
from proteus.gateway.http.connections import Connections
from proteus.gateway.http.guessing import Guessing
from proteus.gateway.metrics import Metrics
from proteus.gateway.moderation.moderation import Moderation
from proteus.gateway.order import Visit
from proteus.gateway.passage import Passage
from proteus.gateway.planning.models import Models
from proteus.gateway.routing.router import Router
from proteus.gateway.tenancy.budgets import Budgets
from proteus.gateway.tenancy.metering import metering_of
from proteus.gateway.tenancy.seating import Seating
from proteus.gateway.tenancy.shares import Shares, admissions_of
from proteus.gateway.tenancy.tenants import Tenants, tenants_path
from proteus.gateway.visits import Visits
from proteus.limits_gateway import Gateway as Settings


class Gateway:
    """Raises DeploymentError where the file has no [gateway]."""

    def __init__(self, deployment: Deployment) -> None:
        if deployment.gateway is None:
            raise DeploymentError(
                f"{deployment.path} has no [gateway]", fix="add the table; deployments/demo.toml has it"
            )
        self.deployment = deployment
        self.settings: Settings = deployment.gateway
        self.proxies = Proxies(self.settings.http.proxies)
        self.connections = Connections(self.settings.http, self.proxies)
        self.guessing = Guessing(self.settings.http.max_bad_keys_per_minute)
        self.visits = Visits()
        self.tenants = Tenants(tenants_path(deployment))
        self.budgets = Budgets()
        self.models = Models(deployment, self.settings, self.budgets.affords)
        self.seats = Seating(self.settings.queue, shared_fairly=self.tenants.asks_for_keys)
        self.router = Router(deployment, self.settings)
        self.shares = Shares(
            self.settings,
            admissions_of(deployment, self.models),
            lambda pool: len(self.router.servers_of(pool)),
        )
        self.passage = Passage(self.router, self.budgets, self.shares)
        self.moderation = Moderation(deployment, self.settings.moderation)
        self.metering = metering_of(deployment, self.settings)
        self.metrics = Metrics(self)

    async def start(self) -> None:
        self.metering.start()
        await self.tenants.start()
        await self.shares.start()
        await self.router.start()

    async def close(self) -> None:
        await self.router.close()
        await self.shares.close()
        await self.tenants.close()
        await self.moderation.close()
        await asyncio.to_thread(self.metering.close)

    def ended(self, visit: Visit) -> None:
        """The last that is done for a request."""
        self.passage.ended(visit)
        self.metering.ended(visit)
        self.metrics.ended(visit)

    def why_not_ready(self) -> str | None:
        """None while requests are taken, and a server of any pool would get them."""
        if self.visits.draining:
            return "the gateway is stopping"
        if not any(self.router.ready(pool) for pool in self.shares.rooms):
            return "no server of any pool is ready"
        return None
