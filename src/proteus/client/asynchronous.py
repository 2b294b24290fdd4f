"""The client for asyncio: the same names as `blocking`, awaited. One channel, any number of asks at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from proteus.client.channel import CHANNEL_OPTIONS, DEFAULT_URL, check_url, in_plain_words
from proteus.client.contract import contract_request, read_response
from proteus.client.request import Message, Options, Picture, build_request, build_stop, question_messages
from proteus.client.response import AnswerBuilder
from proteus.client.results import Answer, Piece


class AsyncClient:
    """A connection that belongs to the event loop it was made in: `async with AsyncClient() as client`.

    Errors are those of `Client`. Cancelling the task that waits cancels the request at the server.
    """

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self.url = check_url(url)
        self._channel = grpc.aio.insecure_channel(url, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def ask(
        self, question: str, pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]
    ) -> Answer:
        """The whole answer to a question about the pictures, or about none."""
        return await self.chat(question_messages(question, pictures), pictures, **options)

    def stream(
        self, question: str, pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]
    ) -> AsyncIterator[Piece | Answer]:
        """Pieces as they come, the whole `Answer` last. `aclose()` cancels the request at the server."""
        return self.stream_chat(question_messages(question, pictures), pictures, **options)

    async def chat(
        self, messages: Sequence[Message], pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]
    ) -> Answer:
        """The whole answer to a conversation; `{"type": "image"}` parts take the pictures in their order."""
        items = [item async for item in self.stream_chat(messages, pictures, **options)]
        return items[-1]  # type: ignore[return-value]  # the last item of a stream is its answer

    def stream_chat(
        self, messages: Sequence[Message], pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]
    ) -> AsyncIterator[Piece | Answer]:
        """`stream` for a conversation."""
        request = build_request(messages, pictures, options)
        return self._run(request, options.get("timeout_s"))

    async def stop(
        self, request_id: str, *, cache_scope: str = "", tenant: str = "", timeout_s: float | None = None
    ) -> int:
        """Stop the open request of this id, tenant and cache scope, whoever sent it; 1, or 0 where there is none.

        The request ends as if its client had left; what it had said stays.
        """
        builder = AnswerBuilder()
        async for _ in self._messages(build_stop(request_id, cache_scope, tenant), timeout_s, builder):
            pass
        return int(builder.report()["stopped"])

    async def contract(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The limits of the server as nested tables, such as `["image"]["max_bytes"]`; docs/limits.md tells them."""
        try:
            return read_response(await self._stub.ModelConfig(contract_request(), timeout=timeout_s))
        except grpc.RpcError as error:
            raise in_plain_words(error, self.url, timeout_s) from None

    async def close(self) -> None:
        """Cancel what is running and close the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, request: Any, timeout_s: float | None) -> AsyncIterator[Piece | Answer]:
        builder = AnswerBuilder()
        async with aclosing(self._messages(request, timeout_s, builder)) as pieces:
            async for piece in pieces:
                yield piece
        yield builder.answer()

    async def _messages(
        self, request: Any, timeout_s: float | None, builder: AnswerBuilder
    ) -> AsyncGenerator[Piece, None]:
        call = self._stub.ModelStreamInfer(iter([request]), timeout=timeout_s)
        try:
            async for message in call:
                if (piece := builder.add(message)) is not None:
                    yield piece
        except grpc.RpcError as error:
            raise in_plain_words(error, self.url, timeout_s) from None
        finally:
            call.cancel()  # no effect on a stream that has ended
