"""One order sent to one server: its messages, what their failure means, and that it is stopped when nobody reads on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from proteus.backend.failures import revive
from proteus.backend.spans import TRACEPARENT
from proteus.client.channel import in_plain_words, was_never_connected
from proteus.client.errors import ClientError, ServerError, TimedOut
from proteus.client.wire import LENGTH_BYTES, Model
from proteus.door.document import shorten
from proteus.errors import InternalError, ProteusError, QueueFull, Unavailable
from proteus.gateway.errors import AnswerTimeout
from proteus.gateway.order import Order
from proteus.gateway.routing.servers import TritonServer

HELD_BYTES = 128 * 2**20  # of answers that are sent in one piece; what is more comes as it is made
GIVEN_AT_ONCE = 16  # of these, which take 2 ms to read where they have logprobs
ASK_AGAIN = "ask again in some seconds"

log = logging.getLogger(__name__)


class ServerFailed(Exception):
    """Of the server, not of the request: another one may answer it. Never leaves the router."""

    def __init__(self, error: ProteusError | ClientError) -> None:
        super().__init__(str(error))
        self.error = error


class Broke(ServerFailed):
    """The connection: it could not be made."""


class Died(Broke):
    """With the request, which may be why."""


class AnsweredUnavailable(ServerFailed):
    pass


class WasFull(ServerFailed):
    """All that a server says who is well, and has enough to do."""


async def messages_of(
    server: TritonServer, order: Order, *, timeout_s: float, traceparent: str
) -> AsyncGenerator[Any, None]:
    """Up to the report. Raises ServerFailed, ProteusError or ClientError; whoever closes it early stops the request."""
    metadata = (("traceparent", traceparent),) if TRACEPARENT.fullmatch(traceparent) else ()
    call = server.stream(order.message, timeout=timeout_s, metadata=metadata)
    # gRPC tells the end of its time when what it writes has gone out; a server that hangs reads nothing.
    took_too_long = asyncio.Event()
    ending = asyncio.get_running_loop().call_later(timeout_s, _end, call, took_too_long)
    has_ended = False
    try:
        with server.calling(call):
            while (message := await call.read()) is not grpc.aio.EOF:
                server.heard()
                if message.error_message:
                    has_ended = True
                    raise _told(message.error_message, order.door, server.address)
                has_ended = _has_report(message.infer_response)
                yield message
                if has_ended:
                    return
        raise Died(_went_away())
    except grpc.RpcError as error:
        raise _broken(error, server.address) from None
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        if took_too_long.is_set():
            raise too_late() from None
        raise Died(_went_away()) from None  # the call alone was: the server gave no sign of life
    finally:
        ending.cancel()
        if not has_ended:
            server.stop(order.door, order.request_id, order.tenant.cache_scope, order.tenant.name)
        call.cancel()  # no effect on a stream that has ended


def _end(call: Any, took_too_long: asyncio.Event) -> None:
    took_too_long.set()
    call.cancel()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


class HoldingRoom:
    """For answers that are held back, of all requests together."""

    def __init__(self, left_bytes: int = HELD_BYTES) -> None:
        self.left_bytes = left_bytes


async def held_back(messages: AsyncIterator[Any], room: HoldingRoom) -> AsyncGenerator[Any, None]:
    """None before the last has come, so that a server may fail up to the end; earlier, where there is no room."""
    held: list[Any] = []
    held_bytes = 0
    try:
        async for message in messages:
            size_bytes = message.ByteSize()
            held.append(message)
            held_bytes += size_bytes
            room.left_bytes -= size_bytes
            if room.left_bytes < 0:
                room.left_bytes += held_bytes
                given, held, held_bytes = held, [], 0
                async for one in _in_turns(given):
                    yield one
        async for one in _in_turns(held):
            yield one
    finally:
        room.left_bytes += held_bytes


async def _in_turns(messages: Sequence[Any]) -> AsyncGenerator[Any, None]:
    """Others have their turn as well while thousands that are there are read."""
    for number, message in enumerate(messages, start=1):
        yield message
        if not number % GIVEN_AT_ONCE:
            await asyncio.sleep(0)


def _has_report(response: Any) -> bool:
    outputs = zip(response.outputs, response.raw_output_contents, strict=False)
    return any(output.name == "report" and len(raw) > LENGTH_BYTES for output, raw in outputs)


def _told(text: str, door: Model, address: str) -> Exception:
    """What a server says went wrong; Triton's own words are no client's business."""
    told: ProteusError | ServerError = ServerError.parse(text)
    if isinstance(told, ServerError) and told.is_unknown_model:
        log.error("server %s has no model '%s'", address, door)
        return AnsweredUnavailable(Unavailable(f"a server has no model '{door}'", fix=ASK_AGAIN))
    if told.code == "triton":
        told = revive(text, door)
        if isinstance(told, InternalError):
            log.error("server %s answered: %s", address, shorten(text))
    match told.code:
        case Unavailable.code:
            return AnsweredUnavailable(told)
        case QueueFull.code:
            return WasFull(told)
        case _:
            return told


def _broken(error: grpc.RpcError, address: str) -> Exception:
    told = in_plain_words(error, address, None)
    if isinstance(told, TimedOut):
        return too_late()
    if isinstance(told, ServerError):  # a status that neither a broken connection nor a model has
        log.error("server %s answered: %s", address, shorten(str(told)))
    return (Broke if was_never_connected(error) else Died)(_went_away())


def _went_away() -> Unavailable:
    return Unavailable("the server went away before the answer was complete", fix=ASK_AGAIN)


def too_late() -> AnswerTimeout:
    return AnswerTimeout(
        "the answer was not complete in time", limit="[gateway.routing] answer_timeout_ms", fix="ask for less"
    )
