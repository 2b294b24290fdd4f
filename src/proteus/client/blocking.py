"""The client for threads: one channel, any number of asks at once, each on its own stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
from tritonclient.grpc import service_pb2_grpc

from proteus.client.channel import CHANNEL_OPTIONS, DEFAULT_URL, check_url, in_plain_words
from proteus.client.contract import contract_request, read_response
from proteus.client.request import Message, Options, Picture, build_request, build_stop, question_messages
from proteus.client.response import AnswerBuilder
from proteus.client.results import Answer, Piece


class Client:
    """A connection to the gRPC port of a server; may be used by many threads at once. `close` it, or use `with`.

    Every method raises `InvalidInput` before it sends anything, and `ConnectionFailed`, `TimedOut` or `ServerError`
    afterwards. Options are those of `Options`, by name.
    """

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self.url = check_url(url)
        self._channel = grpc.insecure_channel(url, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def ask(self, question: str, pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]) -> Answer:
        """The whole answer to a question about the pictures, or about none."""
        return self.chat(question_messages(question, pictures), pictures, **options)

    def stream(
        self, question: str, pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]
    ) -> Iterator[Piece | Answer]:
        """Pieces as they come, the whole `Answer` last. Closing the iterator cancels the request at the server."""
        return self.stream_chat(question_messages(question, pictures), pictures, **options)

    def chat(
        self, messages: Sequence[Message], pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]
    ) -> Answer:
        """The whole answer to a conversation; `{"type": "image"}` parts take the pictures in their order."""
        *_, answer = self.stream_chat(messages, pictures, **options)
        return answer  # type: ignore[return-value]  # the last item of a stream is its answer

    def stream_chat(
        self, messages: Sequence[Message], pictures: Sequence[Picture] | Picture = (), **options: Unpack[Options]
    ) -> Iterator[Piece | Answer]:
        """`stream` for a conversation."""
        request = build_request(messages, pictures, options)
        return self._run(request, options.get("timeout_s"))

    def stop(self, request_id: str, *, cache_scope: str = "", tenant: str = "", timeout_s: float | None = None) -> int:
        """Stop the open request of this id, tenant and cache scope, whoever sent it; 1, or 0 where there is none.

        The request ends as if its client had left; what it had said stays.
        """
        builder = AnswerBuilder()
        for _ in self._messages(build_stop(request_id, cache_scope, tenant), timeout_s, builder):
            pass
        return int(builder.report()["stopped"])

    def contract(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The limits of the server as nested tables, such as `["image"]["max_bytes"]`; docs/limits.md tells them."""
        try:
            return read_response(self._stub.ModelConfig(contract_request(), timeout=timeout_s))
        except grpc.RpcError as error:
            raise in_plain_words(error, self.url, timeout_s) from None

    def close(self) -> None:
        """Cancel what is running and close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, request: Any, timeout_s: float | None) -> Iterator[Piece | Answer]:
        builder = AnswerBuilder()
        yield from self._messages(request, timeout_s, builder)
        yield builder.answer()

    def _messages(self, request: Any, timeout_s: float | None, builder: AnswerBuilder) -> Iterator[Piece]:
        call = self._stub.ModelStreamInfer(iter([request]), timeout=timeout_s)
        try:
            for message in call:
                if (piece := builder.add(message)) is not None:
                    yield piece
        except grpc.RpcError as error:
            raise in_plain_words(error, self.url, timeout_s) from None
        finally:
            call.cancel()  # no effect on a stream that has ended
