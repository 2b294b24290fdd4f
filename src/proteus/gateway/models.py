"""The models that clients name: who may have which, and who plans a request to it.

`name` answers questions, `name-draw` draws, a light model has a name of its own, and `auto` takes one that answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from proteus.deployment import Deployment
from proteus.door.document import shorten
from proteus.errors import ProteusError
from proteus.gateway.artist import Artist
from proteus.gateway.errors import NotAllowed, NotFound
from proteus.gateway.order import Tenant
from proteus.gateway.reader import Reader
from proteus.limits_gateway import Gateway as Settings

DRAWS = "-draw"  # after the deployment's name


class Models:
    """Of one deployment, which reads, draws, or does both. Raises DeploymentError, or ProteusError of a checkpoint."""

    def __init__(self, deployment: Deployment, settings: Settings) -> None:
        prices = settings.prices
        self.readers: dict[str, Reader] = {}
        self.artists: dict[str, Artist] = {}
        if deployment.reads:
            self.readers[deployment.name] = Reader(deployment, prices)
        if deployment.draws:
            name = deployment.name + DRAWS
            self.artists[name] = Artist(deployment, prices, name=name)

    def reader(self, name: str, tenant: Tenant) -> Reader:
        """Raises NotFound or NotAllowed."""
        if name not in self.readers:
            self._refuse(name, self.readers, doing="answers questions")
        _check(name, tenant)
        return self.readers[name]

    def artist(self, name: str, tenant: Tenant) -> Artist:
        """Raises NotFound or NotAllowed."""
        if name not in self.artists:
            self._refuse(name, self.artists, doing="draws")
        _check(name, tenant)
        return self.artists[name]

    def names(self) -> Iterator[str]:
        yield from self.readers
        yield from self.artists

    def _refuse(self, name: str, those: Mapping[str, object], *, doing: str) -> NoReturn:
        known = ", ".join(those) or "none"
        if name in self.names():
            raise _of_model(NotFound(f"the model {name} is no model that {doing}", limit=f"{doing}: {known}"))
        what = f'there is no model "{shorten(name)}"'
        raise _of_model(NotFound(what, limit=f"{doing}: {known}", fix="GET /v1/models lists them"))


def _check(name: str, tenant: Tenant) -> None:
    if tenant.models is not None and name not in tenant.models:
        raise _of_model(
            NotAllowed(f"the model {name} is not among those of your key", fix="GET /v1/models lists those that are")
        )


def _of_model(error: ProteusError) -> ProteusError:
    error.param = "model"
    return error
