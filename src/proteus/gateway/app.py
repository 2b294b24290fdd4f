"""The paths of the gateway, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.responses import Response

from proteus import __version__
from proteus.gateway import chat
from proteus.gateway.gateway import Gateway
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

    @app.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        return Answering(gateway, chat.answer)

    return app
