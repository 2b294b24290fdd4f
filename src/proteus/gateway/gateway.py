"""All that the gateway is made of, for one event loop and one deployment."""

from __future__ import annotations

from proteus.deployment import Deployment, DeploymentError
from proteus.door.seats import Seats
from proteus.gateway.addresses import Proxies
from proteus.gateway.guessing import Guessing
from proteus.gateway.models import Models
from proteus.gateway.order import Visit
from proteus.gateway.passage import Passage
from proteus.gateway.router import Router
from proteus.gateway.tenants import Tenants
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
        self.guessing = Guessing(self.settings.http.max_bad_keys_per_minute)
        self.visits = Visits()
        self.tenants = Tenants()
        self.models = Models(deployment, self.settings)
        queue = self.settings.queue
        self.seats = Seats(max_requests=queue.max_open_requests, max_bytes=queue.max_open_bytes, table="gateway.queue")
        self.router = Router(deployment, self.settings)
        self.passage = Passage(self.router)

    async def start(self) -> None:
        await self.router.start()

    async def close(self) -> None:
        await self.router.close()

    def ended(self, visit: Visit) -> None:
        """The last that is done for a request."""
