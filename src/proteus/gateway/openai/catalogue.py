"""GET /v1/models, /v1/models/{model} and /v1/contract: what there is for whoever asks, and what it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from proteus.gateway.http.presence import Endpoint, Out
from proteus.gateway.order import Visit
from proteus.gateway.planning.artist import Artist
from proteus.gateway.planning.auto_reader import AutoReader
from proteus.gateway.planning.reader import Reader
from proteus.limits_published import DrawContract, contract_of

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

Model = Reader | AutoReader | Artist
OWNER = "proteus"


async def models(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """Those that the tenant may have."""
    await out.json({"object": "list", "data": [_model(model) for model in gateway.models.of(visit.whose)]})


def one_model(name: str) -> Endpoint:
    """Its answer raises NotFound or NotAllowed."""

    async def answer(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
        await out.json(_model(gateway.models.one(name, visit.whose)))

    return answer


async def contract(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """The limits that are enforced, in the words of the deployment file, and the prices."""
    await out.json(dict(_tables(gateway, visit)))


def _model(model: Model) -> dict[str, Any]:
    """OpenAI's four fields, and ours."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": OWNER,
        **(_drawing(model) if isinstance(model, Artist) else _reading(model)),
    }


def _reading(model: Reader | AutoReader) -> dict[str, Any]:
    limits = model.limits
    return {
        "kind": "chat",
        "context_tokens": limits.llm.context_tokens,
        "max_pictures": limits.image.max_pictures,
        "formats": limits.image.formats,
        "tiers": list(type(limits.tiers).model_fields),
        "max_choices": limits.text.max_choices,
    }


def _drawing(model: Artist) -> dict[str, Any]:
    limits = model.limits
    return {
        "kind": "draw",
        "default_size": limits.default_size,
        "max_side_px": limits.max_side_px,
        "max_images": limits.max_images,
        "formats": limits.formats,
    }


def _tables(gateway: Gateway, visit: Visit) -> Iterator[tuple[str, Any]]:
    deployment, settings = gateway.deployment, gateway.settings
    yield "object", "contract"
    yield "models", [model.name for model in gateway.models.of(visit.whose)]
    yield "gateway", {"max_body_bytes": settings.http.max_body_bytes}
    yield "prices", settings.prices.model_dump()
    if settings.light is not None and settings.light.prices is not None:
        yield "light_prices", settings.light.prices.model_dump()
    if deployment.reads:
        yield from contract_of(deployment).model_dump(exclude_none=True).items()
    if deployment.draws and deployment.draw is not None:
        yield from DrawContract(draw=deployment.draw).model_dump(exclude_none=True).items()
