"""Whether a server can be given work: what `proteus serve --health-port` says of it, or Triton where that is not known.

Triton goes on to say that it is ready when a stub has died; the health port does not.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from proteus.client.wire import Model
from proteus.door.document import shorten

MAX_ANSWER_BYTES = 16_384
STATUS = re.compile(rb"HTTP/1\.[01] (?P<status>[1-5][0-9]{2})[ \r]")


@dataclass(frozen=True, slots=True)
class Told:
    """The answer of a server."""

    ready: bool
    why: str = ""  # it is not; printable and short


READY = Told(ready=True)


async def ask_health_port(address: str) -> Told:
    """`GET /ready` at `host:port`. Raises OSError; how long it may take is the caller's to say."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(f"GET /ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) < MAX_ANSWER_BYTES and (part := await reader.read(MAX_ANSWER_BYTES)):
            answer += part
    finally:
        writer.transport.abort()
    return _read(answer[:MAX_ANSWER_BYTES])


async def ask_triton(stub: Any, doors: Iterable[Model], timeout_s: float) -> Told:
    """Whether the server and its doors are ready. Raises grpc.RpcError."""
    server = await stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout_s)
    if not server.ready:
        return Told(ready=False, why="Triton is not ready")
    for door in sorted(doors):
        model = await stub.ModelReady(service_pb2.ModelReadyRequest(name=door), timeout=timeout_s)
        if not model.ready:
            return Told(ready=False, why=f"its model '{door}' is not ready")
    return READY


def why_not(error: grpc.RpcError) -> str:
    """Without gRPC's own words."""
    status: Any = error
    return f"gRPC status {status.code().name}"


def _read(answer: bytes) -> Told:
    found = STATUS.match(answer)
    if found is None:
        return Told(ready=False, why="its health port does not speak HTTP")
    if (status := int(found["status"])) == HTTPStatus.OK:
        return READY
    body = answer.partition(b"\r\n\r\n")[2]
    return Told(ready=False, why=shorten(_reasons(body)) or f"its health port answers {status}")


def _reasons(body: bytes) -> str:
    try:
        return ", ".join(str(one) for one in json.loads(body)["reasons"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
