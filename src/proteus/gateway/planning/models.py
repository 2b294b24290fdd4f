"""The models that clients name: who may have which, and who plans a request to it.

`name` answers questions, `name-draw` draws, a light model has a name of its own, and `auto` takes one that answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment, DeploymentError
from proteus.door.document import shorten
from proteus.door.seats import Seat
from proteus.errors import ProteusError
from proteus.gateway.errors import NotAllowed, NotFound
from proteus.gateway.order import Tenant
from proteus.gateway.planning.artist import Artist
from proteus.gateway.planning.auto_reader import AUTO, Affords, AutoReader
from proteus.gateway.planning.reader import Reader, Reading
from proteus.limits_gateway import Gateway as Settings
from proteus.limits_gateway import LightModel, Prices

DRAWS = "-draw"  # after the deployment's name


def _everything(tenant: Tenant, vector: ResourceVector) -> bool:
    return True


class Models:
    """Of one deployment, which reads, draws, or does both. Raises DeploymentError, or ProteusError of a checkpoint."""

    def __init__(self, deployment: Deployment, settings: Settings, affords: Affords = _everything) -> None:
        prices = settings.prices
        self.readers: dict[str, Reader | AutoReader] = {}
        self.artists: dict[str, Artist] = {}
        if deployment.name == AUTO:
            raise DeploymentError(
                f"{deployment.path}: name = {AUTO!r}", limit="the gateway's own name", fix="give another name"
            )
        if deployment.reads:
            full, light = Reader(deployment, prices), None
            self.readers[full.name] = full
            if settings.light is not None:
                light = light_reader(deployment, settings.light, prices)
                self.readers[light.name] = light
            self.readers[AUTO] = AutoReader(full, light, settings.auto, affords)
        if deployment.draws:
            name = deployment.name + DRAWS
            self.artists[name] = Artist(deployment, prices, name=name)

    def reader(self, name: str, tenant: Tenant) -> Reader | AutoReader:
        """Raises NotFound or NotAllowed."""
        if name not in self.readers:
            self._refuse(name, self.readers, tenant, doing="answers questions")
        _check(name, tenant)
        return self.readers[name]

    def artist(self, name: str, tenant: Tenant) -> Artist:
        """Raises NotFound or NotAllowed."""
        if name not in self.artists:
            self._refuse(name, self.artists, tenant, doing="draws")
        _check(name, tenant)
        return self.artists[name]

    async def again(self, reading: Reading, pictures: Mapping[int, bytes], seat: Seat) -> Reading:
        """The same question to the same model with other bytes for some of its pictures. Raises as `plan` does."""
        reader = self.readers[reading.model]
        if not isinstance(reader, Reader):
            raise LookupError(f"{reading.model} plans nothing itself")
        return await reader.again(reading, pictures, seat)

    def one(self, name: str, tenant: Tenant) -> Reader | AutoReader | Artist:
        """Raises NotFound or NotAllowed."""
        models = self.readers | self.artists
        if name not in models:
            self._refuse(name, models, tenant, doing="is there")
        _check(name, tenant)
        return models[name]

    def of(self, tenant: Tenant) -> Iterator[Reader | AutoReader | Artist]:
        """Those that it may have."""
        models = self.readers | self.artists
        return (model for name, model in models.items() if tenant.models is None or name in tenant.models)

    def names(self) -> tuple[str, ...]:
        return (*self.readers, *self.artists)

    def _refuse(self, name: str, those: Mapping[str, object], tenant: Tenant, *, doing: str) -> NoReturn:
        what = f'there is no model "{shorten(name)}"'
        if name in self.names():
            what = f"the model {name} is none that {doing}"
        yours = ", ".join(model.name for model in self.of(tenant) if model.name in those) or "none"
        raise _of_model(NotFound(what, limit=f"your models: {yours}", fix="name one of these"))


def light_reader(deployment: Deployment, light: LightModel, prices: Prices) -> Reader:
    """Of a deployment file of its own. Raises DeploymentError saying why it cannot be read."""
    path = deployment.path.parent / light.deployment
    where = f"{deployment.path}: gateway.light.deployment"
    try:
        reader = Reader(Deployment.load(path), light.prices or prices, light=True)
    except ProteusError as error:
        raise DeploymentError(f"{where}: {error.what}", limit=error.limit, fix=error.fix) from error
    taken = (deployment.name, deployment.name + DRAWS, AUTO)
    if reader.name in taken:
        raise DeploymentError(
            f"{where}: {path} has the name {reader.name}", limit="a name of its own", fix="change `name` in that file"
        )
    return reader


def _check(name: str, tenant: Tenant) -> None:
    if tenant.models is not None and name not in tenant.models:
        raise _of_model(
            NotAllowed(f"the model {name} is not among those of your key", fix="GET /v1/models lists those that are")
        )


def _of_model(error: ProteusError) -> ProteusError:
    error.param = "model"
    return error
