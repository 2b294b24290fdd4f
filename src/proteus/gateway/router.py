"""Which server answers an order: of its pool, the one with the least outstanding cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from proteus.client.channel import CHANNEL_OPTIONS, in_plain_words
from proteus.client.wire import stamp
from proteus.gateway.order import Order, Visit
from proteus.limits_gateway import Gateway as Settings


class Router:
    """For one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.pools.text[0].grpc
        self._channel: Any = None

    async def start(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._url, options=CHANNEL_OPTIONS)

    async def close(self) -> None:
        await self._channel.close()

    async def messages(self, visit: Visit, order: Order) -> AsyncGenerator[Any, None]:
        """Raises ProteusError or ClientError; a message may hold an error too."""
        stamp(order.message)
        visit.server = self._url
        call = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelStreamInfer(iter([order.message]))
        try:
            async for message in call:
                yield message
        except grpc.RpcError as error:
            raise in_plain_words(error, self._url, None) from None
        finally:
            call.cancel()
