"""Large pictures become text without holding the event loop up, byte for byte what base64 says."""

from __future__ import annotations

import asyncio
import base64
import json
import threading

import pytest

from proteus.gateway.openai.in_base64 import INLINE_BYTES, PIECE_BYTES, pieces, with_base64, written


@pytest.mark.parametrize("size", [0, 1, 2, 3, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 2])
def test_the_pieces_are_the_base64_of_the_whole(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert b"".join(pieces(data)) == base64.b64encode(data)
    assert json.loads(with_base64(b'{"n":1}', "data", data)) == {"n": 1, "data": base64.b64encode(data).decode()}


@pytest.mark.parametrize(("num_bytes", "in_thread"), [(INLINE_BYTES, False), (INLINE_BYTES + 1, True)])
def test_what_takes_long_is_written_in_a_thread(num_bytes: int, in_thread: bool) -> None:
    name = asyncio.run(written(num_bytes, lambda: threading.current_thread().name.encode()))
    assert (name != b"MainThread") == in_thread
