"""Pictures as base64 in a JSON text, made by hand and in pieces: the event loop waits for a call in C to its end."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterator

INLINE_BYTES = 262_144  # of pictures, which take 1 ms to write
PIECE_BYTES = 3 * 65_536  # of which base64 is made at once; three bytes are four characters


def pieces(data: bytes) -> Iterator[bytes]:
    """The base64 of `data`; between two of them a thread lets the others have their turn."""
    for start in range(0, len(data), PIECE_BYTES):
        if start:
            time.sleep(0)
        yield base64.b64encode(data[start : start + PIECE_BYTES])


def with_base64(document: bytes, name: str, data: bytes) -> bytes:
    """The JSON object, which is not empty, with a field more."""
    return b"".join((document[:-1], b',"', name.encode(), b'":"', *pieces(data), b'"}'))


async def written(num_bytes: int, write: Callable[[], bytes]) -> bytes:
    """What `write` makes of pictures of so many bytes, in a thread where that takes long."""
    return await asyncio.to_thread(write) if num_bytes > INLINE_BYTES else write()
