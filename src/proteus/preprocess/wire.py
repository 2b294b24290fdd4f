"""What the pool and its workers say to each other: frames over a socket, nothing but numbers, pixels and JSON.

A request is a size (0, 0 for none) and the picture's bytes. A reply is a verdict and pixels (float32), or an error. The
pool believes no reply: a worker may have been taken over by the picture it decoded.
"""

from __future__ import annotations

import json
import socket
import struct
from enum import IntEnum
from time import monotonic

from proteus.errors import InvalidMedia, InvalidPicture, MediaTooLarge, ProteusError

REQUEST = struct.Struct("<IIQ")  # target width and height in px, bytes of the picture
REPLY = struct.Struct("<BQ")  # verdict, bytes that follow
READY = b"\x01"
MAX_ERROR_BYTES = 4096
REFUSALS: dict[str, type[ProteusError]] = {kind.code: kind for kind in (InvalidMedia, InvalidPicture, MediaTooLarge)}

Size = tuple[int, int]  # (width, height) in px


class Verdict(IntEnum):
    PIXELS = 0
    REFUSED = 1
    REFUSED_AND_ENDS = 2  # the worker does not go on after this reply


def receive(channel: socket.socket, into: memoryview, deadline_s: float | None = None) -> None:
    """Fill `into`; raises EOFError when the other side is gone, TimeoutError at the deadline (of `monotonic`)."""
    while len(into) > 0:
        if deadline_s is not None:
            channel.settimeout(left_s(deadline_s))
        count = channel.recv_into(into)
        if count == 0:
            raise EOFError
        into = into[count:]


def left_s(deadline_s: float) -> float:
    """Seconds up to the deadline; raises TimeoutError when there are none."""
    left = deadline_s - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def pack_error(error: ProteusError) -> bytes:
    """An error as JSON."""
    return json.dumps({"code": error.code, "what": error.what, "limit": error.limit, "fix": error.fix}).encode()


def unpack_error(data: bytes) -> ProteusError:
    """The error of a reply; raises ValueError when it is none that a worker may send."""
    match json.loads(data):
        case {"code": str(code), "what": str(what), "limit": str() | None as limit, "fix": str() | None as fix} if (
            code in REFUSALS
        ):
            return REFUSALS[code](what, limit=limit, fix=fix)
    raise ValueError("no error of a worker")
