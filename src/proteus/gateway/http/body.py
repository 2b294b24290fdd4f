"""The body of a request: bounded in bytes and time while it is read, and in depth and number before it is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pydantic_core
from starlette.types import Receive, Scope

from proteus.door.document import MAX_WHOLE, shorten
from proteus.door.seats import Seat
from proteus.errors import InvalidRequest
from proteus.gateway.errors import BodyTooLarge, UnsupportedMediaType, UploadTooSlow
from proteus.limits_gateway import GatewayHttp

BODILESS = ("GET", "HEAD", "OPTIONS")
PLAIN_CODINGS = (b"", b"identity")
CHARSETS = ("", "utf-8", "utf8")
MAX_VALUES = 100_000  # of a document; one of 25 million empty lists would fit into the bytes, and needs gigabytes
LARGE_BYTES, MANY_MARKS = 256 * 1024, 8_192  # to read more holds the event loop up for a millisecond
PIECE_BYTES = 1 << 20  # scanned at a time, between which other threads have a turn
MAX_PLAIN_BYTES = 4 << 20  # outside of strings; half a second is needed for 58 MB of numbers of 4,300 digits
MARKS = b"[]{},:"
NO_MARKS = bytes(set(range(256)) - set(MARKS))
SKIPPED = bytes(set(NO_MARKS) - set(b'"\\'))  # a string ends at a quote, and an escape is taken out: both take time
DEEPER, HIGHER = b"[{", b"]}"


class ClientGone(Exception):
    """Nobody is there to be answered."""


async def read_body(scope: Scope, receive: Receive, limits: GatewayHttp, seat: Seat) -> bytes:
    """Empty for a method without one; its bytes are held on `seat` before they are kept.

    Raises BodyTooLarge, UnsupportedMediaType, UploadTooSlow, QueueFull, MediaTooLarge or ClientGone.
    """
    if scope["method"] in BODILESS:
        return b""
    headers = dict(scope["headers"])
    _check_kind(headers)
    if int(headers.get(b"content-length", b"0")) > limits.max_body_bytes:
        raise _too_large(limits)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout_ms / 1e3) as whole:
            while True:
                async with asyncio.timeout(limits.body_idle_timeout_ms / 1e3):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece = message.get("body", b"")
                size += len(piece)
                if size > limits.max_body_bytes:
                    raise _too_large(limits)
                seat.hold(len(piece))
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError as error:
        late = "body_timeout_ms" if whole.expired() else "body_idle_timeout_ms"
        raise UploadTooSlow(
            "the body did not come in time",
            limit=f"[gateway.http] {late} = {getattr(limits, late):,}",
            fix="send less, or over a faster line",
        ) from error


async def load_json(body: bytes, limits: GatewayHttp) -> dict[str, Any]:
    """The object that the body is; a large one is read in a thread. Raises InvalidRequest.

    Strictly UTF-8, each key once, numbers finite and below 2⁶³, brackets and values bounded.
    """
    if len(body) <= LARGE_BYTES and len(body.translate(None, SKIPPED)) <= MANY_MARKS:
        return parse_json(body, limits)
    return await asyncio.to_thread(parse_json, body, limits)


def parse_json(body: bytes, limits: GatewayHttp) -> dict[str, Any]:
    """As `load_json`, here and now."""
    marks = _marks(body)
    _check_depth(marks, limits.max_json_depth)
    try:
        document = pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise InvalidRequest(f"the request is not JSON: {shorten(str(error))}", fix="send one JSON object") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"the request is JSON, but a {_kind(document)}", fix="send one JSON object")
    if _check_values(document) != marks.count(b":"):
        raise InvalidRequest("a key stands twice in one object", fix="send each key once")
    return document


def _check_kind(headers: dict[bytes, bytes]) -> None:
    kind, _, parameters = headers.get(b"content-type", b"").decode("latin-1").lower().partition(";")
    if kind.strip() != "application/json":
        raise UnsupportedMediaType("the body is no JSON", limit="application/json", fix="send it as application/json")
    name, _, charset = parameters.partition("=")
    if name.strip() == "charset" and charset.strip(' "') not in CHARSETS:
        raise UnsupportedMediaType("the body is not UTF-8", limit="charset=utf-8", fix="encode the JSON as UTF-8")
    if headers.get(b"content-encoding", b"").lower() not in PLAIN_CODINGS:
        raise UnsupportedMediaType("the body is compressed", limit="no content-encoding", fix="send it as it is")


def _too_large(limits: GatewayHttp) -> BodyTooLarge:
    return BodyTooLarge(
        "the body is too large",
        limit=f"[gateway.http] max_body_bytes = {limits.max_body_bytes:,}",
        fix="send fewer or smaller pictures",
    )


def _marks(body: bytes) -> bytes:
    """Brackets, commas and colons outside of strings, in their order. Raises InvalidRequest when there is too much.

    A large picture is one string: it is skipped at the speed of a search for its end, with no step of Python per byte.
    """
    found: list[bytes] = []
    num_quotes = num_marks = num_plain = in_string = 0
    for piece in _pieces(body):
        parts = piece.split(b'"')
        plain = b"".join(parts[in_string::2])
        in_string ^= ~len(parts) & 1
        found.append(plain.translate(None, NO_MARKS))
        num_quotes += len(parts) - 1
        num_marks += len(found[-1])
        num_plain += len(plain)
        # Every string is a key or a value, and has two quotes.
        if max(num_quotes, num_marks) > 4 * MAX_VALUES:
            raise _too_many()
        if num_plain > MAX_PLAIN_BYTES:
            raise InvalidRequest(
                "the request has too long numbers, or too much space",
                limit=f"{MAX_PLAIN_BYTES:,} bytes outside of strings",
                fix="send less",
            )
    marks = b"".join(found)
    if sum(map(marks.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise _too_many()
    return marks


def _too_many() -> InvalidRequest:
    return InvalidRequest("the request has too many values", limit=f"{MAX_VALUES:,} values", fix="send less")


def _pieces(body: bytes) -> Iterator[bytes]:
    """All of it without escaped quotes and backslashes; no escape is cut through."""
    at = 0
    while at < len(body):
        piece = body[at : at + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[at : at + PIECE_BYTES + 1]
        at += len(piece)
        yield piece.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in piece else piece


def _check_depth(marks: bytes, max_depth: int) -> None:
    if marks.count(b"[") + marks.count(b"{") <= max_depth:
        return
    steps = (1 if mark in DEEPER else -1 if mark in HIGHER else 0 for mark in marks)
    if max(accumulate(steps)) > max_depth:
        raise InvalidRequest(
            "the request has too many brackets within each other",
            limit=f"[gateway.http] max_json_depth = {max_depth}",
            fix="send a flatter document",
        )


def _check_values(document: dict[str, Any]) -> int:
    """How many keys there are in all. Raises InvalidRequest for a number that has no place in a field."""
    keys, stack = 0, [document]
    while stack:
        value: Any = stack.pop()
        if isinstance(value, dict):
            keys += len(value)
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, int | float) and not abs(value) < MAX_WHOLE:
            raise InvalidRequest("a number is too large", limit=f"below {MAX_WHOLE:.1e}", fix="correct the value")
    return keys


def _kind(document: object) -> str:
    return {list: "list", str: "string", bool: "boolean", type(None): "null"}.get(type(document), "number")
