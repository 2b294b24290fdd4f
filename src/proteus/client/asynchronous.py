"""The client for asyncio: the same names as `blocking`, awaited. One channel, any number of asks at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from proteus.client.channel import CHANNEL_OPTIONS, DEFAULT_URL, check_url, in_plain_words, stream_of, timed_out
from proteus.client.contract import contract_request, read_response, whole_contract
from proteus.client.draw_request import DrawOptions, build_draw
from proteus.client.draw_response import DrawingBuilder
from proteus.client.drawing import Drawing, Drawn, Preview
from proteus.client.errors import ServerError
from proteus.client.request import Message, Options, Picture, build_request, question_messages
from proteus.client.response import AnswerBuilder
from proteus.client.results import Answer, Piece
from proteus.client.wire import MODELS, Item, Model, StreamReader, stamp, stop_request


class AsyncClient:
    """A connection that belongs to the event loop it was made in: `async with AsyncClient() as client`.

    Errors are those of `Client`. Cancelling the task that waits cancels the request at the server.
    """

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self.url = check_url(url)
        self._channel = grpc.aio.insecure_channel(url, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._stream = stream_of(self._channel)

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
        return self._run(request, options)

    async def draw(self, prompt: str, **options: Unpack[DrawOptions]) -> Drawing:
        """All the pictures that the prompt asks for, when the last is done."""
        items = [item async for item in self.stream_draw(prompt, **options)]
        return items[-1]  # type: ignore[return-value]  # the last item of a stream is its drawing

    def stream_draw(self, prompt: str, **options: Unpack[DrawOptions]) -> AsyncIterator[Preview | Drawn | Drawing]:
        """Previews, if asked for, and pictures as they come, the whole `Drawing` last.

        `aclose()` cancels the request at the server.
        """
        request = build_draw(prompt, options)
        return self._run_draw(request, options.get("timeout_s"))

    async def stop(
        self,
        request_id: str,
        *,
        model: Model = "chat",
        cache_scope: str = "",
        tenant: str = "",
        timeout_s: float | None = None,
    ) -> int:
        """Stop the model's open request of this id, tenant and cache scope, whoever sent it; 1, or 0 without one.

        The request ends as if its client had left; what it had said or drawn stays.
        """
        reader = StreamReader[None]()
        async for _ in self._messages(stop_request(model, request_id, cache_scope, tenant), timeout_s, reader):
            pass
        return int(reader.report()["stopped"])

    async def contract(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The limits of the server as nested tables, such as `["image"]["max_bytes"]`; docs/limits.md tells them."""
        return whole_contract([await self._published(model, timeout_s) for model in MODELS])

    async def close(self) -> None:
        """Cancel what is running and close the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, request: Any, options: Options) -> AsyncIterator[Piece | Answer]:
        builder = AnswerBuilder()
        if "sent" not in options:
            stamp(request)
        async with aclosing(self._messages(request, options.get("timeout_s"), builder)) as pieces:
            async for piece in pieces:
                yield piece
        yield builder.answer()

    async def _run_draw(self, request: Any, timeout_s: float | None) -> AsyncIterator[Preview | Drawn | Drawing]:
        builder = DrawingBuilder()
        async with aclosing(self._messages(request, timeout_s, builder)) as items:
            async for item in items:
                yield item
        yield builder.drawing()

    async def _published(self, model: Model, timeout_s: float | None) -> dict[str, str]:
        """Nothing, where the server has no such model."""
        try:
            return read_response(await self._stub.ModelConfig(contract_request(model), timeout=timeout_s))
        except grpc.RpcError as error:
            told = in_plain_words(error, self.url, timeout_s)
            if isinstance(told, ServerError) and told.is_unknown_model:
                return {}
            raise told from None

    async def _messages(
        self, request: Any, timeout_s: float | None, reader: StreamReader[Item]
    ) -> AsyncGenerator[Item, None]:
        call = self._stream(request, timeout=timeout_s)
        end_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        try:
            while (message := await self._next(call, timeout_s, end_s)) is not grpc.aio.EOF:
                if (item := reader.add(message)) is not None:
                    yield item
        finally:
            call.cancel()  # no effect on a stream that has ended

    async def _next(self, call: Any, timeout_s: float | None, end_s: float | None) -> Any:
        """gRPC tells the end of its time when what it writes has gone out; a server that hangs reads nothing."""
        try:
            async with asyncio.timeout_at(end_s):
                return await call.read()
        except grpc.RpcError as error:
            raise in_plain_words(error, self.url, timeout_s) from None
        except TimeoutError:
            raise timed_out(self.url, timeout_s) from None
