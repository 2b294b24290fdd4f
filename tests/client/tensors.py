"""Tensors into Triton's response messages, as the peer's models write them."""

from __future__ import annotations

import struct
from typing import Any


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw


def output(response: Any, name: str, datatype: str, size: int, raw: bytes) -> None:
    response.outputs.add(name=name, datatype=datatype, shape=[size])
    response.raw_output_contents.append(raw)
