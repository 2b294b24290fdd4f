"""Bytes to a gateway and back, as no well-behaved client would send them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 20.0
ASKED = {"model": "demo", "messages": [{"role": "user", "content": "one two"}]}


def eventually(holds: Callable[[], bool]) -> None:
    end_s = monotonic() + TIMEOUT_S
    while not holds():
        assert monotonic() < end_s
        sleep(0.005)


def connect(url: str, *, receive_buffer_bytes: int | None = None) -> socket.socket:
    place = urlsplit(url)
    one = socket.socket()
    if receive_buffer_bytes is not None:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    one.settimeout(TIMEOUT_S)
    one.connect((place.hostname, place.port))
    return one


def until_closed(one: socket.socket) -> bytes:
    """All that comes until the other side closes, or breaks off."""
    came = b""
    try:
        while piece := one.recv(65_536):
            came += piece
    except ConnectionResetError:
        pass
    return came


def told(url: str, request: bytes) -> bytes:
    """What comes back until the gateway closes the connection."""
    with connect(url) as one:
        one.sendall(request)
        return until_closed(one)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def error_of(answer: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return error


def request(document: Any = None, *more: str, path: str = "/v1/chat/completions") -> bytes:
    """A good one, with more headers."""
    body = json.dumps(ASKED if document is None else document).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *more,
    ]
    return "\r\n".join((*head, "", "")).encode() + body
