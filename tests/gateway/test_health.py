"""Whether a server can be given work is asked at its health port, whatever that answers, or of Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2_grpc

from proteus.gateway.routing.health import MAX_ANSWER_BYTES, READY, ask_health_port, ask_triton
from proteus.launcher.health import HealthServer
from tests.gateway.routing import peers
from tests.launcher.test_health import DIED, Told


@asynccontextmanager
async def answering(answer: bytes, *, ends: bool = True) -> AsyncIterator[str]:
    """The address of what answers every connection so."""

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if ends:
            writer.close()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_the_health_port_of_a_server_is_understood() -> None:
    told = Told()

    async def scenario() -> None:
        with HealthServer(told, port=0) as serving:
            serving._health._asking = lambda _: nullcontext(lambda model: True)
            address = serving.url.removeprefix("http://")
            assert await ask_health_port(address) == READY
            told.not_ready = DIED
            answer = await ask_health_port(address)
            assert (answer.ready, answer.why) == (False, DIED)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "its health port does not speak HTTP"),
        (b"\x00\xff" * 100, "its health port does not speak HTTP"),
        (b"HTTP/1.1 2OO OK\r\n\r\n", "its health port does not speak HTTP"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nno", "its health port answers 404"),
        (b"HTTP/1.1 " + b"9" * 10_000 + b"\r\n\r\n", "its health port does not speak HTTP"),
        (b'HTTP/1.1 503 x\r\n\r\n{"reasons": ["draining"]}', "draining"),
        (b'HTTP/1.1 503 x\r\n\r\n{"reasons": 5}', "its health port answers 503"),
        (b"HTTP/1.1 503 x\r\n\r\n" + b"[" * 10_000, "its health port answers 503"),
        (b'HTTP/1.1 503 x\r\n\r\n{"reasons": ["a\\u001b[2Jb"]}', "a\\x1b[2Jb"),
    ],
)
def test_what_is_no_yes_is_a_no_with_a_reason(answer: bytes, why: str) -> None:
    async def scenario() -> None:
        async with answering(answer) as address:
            told = await ask_health_port(address)
            assert (told.ready, told.why) == (False, why)

    asyncio.run(scenario())


def test_no_more_of_an_answer_is_read_than_one_can_be_long() -> None:
    async def scenario() -> None:
        async with answering(b"HTTP/1.1 503 x\r\n\r\n" + b"x" * (MAX_ANSWER_BYTES + 1), ends=False) as address:
            assert not (await asyncio.wait_for(ask_health_port(address), 5)).ready

    asyncio.run(scenario())


def test_a_port_that_is_closed_is_an_error() -> None:
    async def scenario() -> None:
        async with answering(b"") as address:
            pass
        await ask_health_port(address)

    with pytest.raises(OSError, match="."):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("ready", "models", "why"),
    [
        (True, ("chat", "draw"), ""),
        (False, ("chat", "draw"), "Triton is not ready"),
        (True, ("chat",), "its model 'draw' is not ready"),
    ],
)
def test_triton_is_asked_for_itself_and_the_doors(ready: bool, models: tuple[str, ...], why: str) -> None:
    async def scenario() -> None:
        with peers() as (peer,):
            peer.ready = ready
            peer.published = {name: {} for name in models}
            async with grpc.aio.insecure_channel(peer.url) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                told = await ask_triton(stub, ("draw", "chat"), 5.0)
            assert (told.ready, told.why) == (not why, why)

    asyncio.run(scenario())
