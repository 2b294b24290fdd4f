"""The paths of the gateway, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from proteus import __version__
from proteus.gateway import chat, chat_schema, images, images_schema
from proteus.gateway.gateway import Gateway
from proteus.gateway.page import Page
from proteus.gateway.presence import Answering


def create_app(gateway: Gateway) -> FastAPI:
    """An ASGI application; the gateway is started and closed with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.close()

    app = FastAPI(title="Proteus", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)

    @app.post("/v1/chat/completions", **chat_schema.path())
    async def chat_completions() -> Response:
        return Answering(gateway, chat.answer)

    @app.post("/v1/images/generations", openapi_extra=images_schema.REQUEST, responses=images_schema.RESPONSES)
    async def images_generations() -> Response:
        return Answering(gateway, images.answer)

    page = Page()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_index(request: Request) -> Response:
        return page.answer(request)

    @app.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        return page.answer(request, name)

    return app
