"""The paths of the gateway, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proteus import __version__
from proteus.gateway.gateway import Gateway
from proteus.gateway.http.presence import Answering
from proteus.gateway.http.unserved import HANDLERS, health
from proteus.gateway.openai import catalogue, chat, chat_schema, cost, cost_schema, images, images_schema
from proteus.gateway.page import Page

CHAT, IMAGES, COST = "/v1/chat/completions", "/v1/images/generations", "/v1/cost"
Posted = Mapping[str, Answering]  # by path


def create_app(gateway: Gateway) -> ASGIApp:
    """The gateway is started and closed by who serves it.

    What is posted goes straight to its endpoint: the framework would solve what it depends on, which is nothing, and
    wrap each message of its answer. All else is the framework's, and so is what is told of these paths.
    """
    endpoints = {CHAT: chat.answer, IMAGES: images.answer, COST: cost.answer}
    posted = {path: Answering(gateway, endpoint) for path, endpoint in endpoints.items()}
    framework = _framework(gateway, posted)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        straight = posted.get(scope["path"]) if scope.get("method") == "POST" else None
        await (straight or framework)(scope, receive, send)

    return app


def _framework(gateway: Gateway, posted: Posted) -> FastAPI:
    app = FastAPI(
        title="Proteus",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to an address that the Host header would make
        exception_handlers=HANDLERS,
    )
    _add_posted(app, posted)
    _add_told(app, gateway)
    _add_health(app, gateway)
    _add_page(app)
    return app


def _add_posted(app: FastAPI, posted: Posted) -> None:
    @app.post(CHAT, **chat_schema.path())
    async def chat_completions() -> Response:
        return posted[CHAT]

    @app.post(IMAGES, openapi_extra=images_schema.REQUEST, responses=images_schema.RESPONSES)
    async def images_generations() -> Response:
        return posted[IMAGES]

    @app.post(COST, **cost_schema.cost_path())
    async def cost_of() -> Response:
        return posted[COST]


def _add_told(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/v1/models", **cost_schema.path("Models", "Those that your key may have.", cost_schema.MODELS))
    async def models() -> Response:
        return Answering(gateway, catalogue.models)

    @app.get("/v1/models/{model}", **cost_schema.path("A model", "What it is and takes.", cost_schema.MODEL))
    async def one_model(model: str) -> Response:
        return Answering(gateway, catalogue.one_model(model))

    @app.get("/v1/contract", **cost_schema.path("Limits and prices", "As enforced.", cost_schema.CONTRACT))
    async def contract() -> Response:
        return Answering(gateway, catalogue.contract)


def _add_health(app: FastAPI, gateway: Gateway) -> None:
    @app.api_route("/health/live", methods=["GET", "HEAD"], include_in_schema=False)
    async def live() -> Response:
        return health(gateway, live=True)

    @app.api_route("/health/ready", methods=["GET", "HEAD"], include_in_schema=False)
    async def ready() -> Response:
        return health(gateway, live=False)


def _add_page(app: FastAPI) -> None:
    page = Page()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_index(request: Request) -> Response:
        return page.answer(request)

    @app.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        return page.answer(request, name)
