"""Visual tokens as bytes for a store that others can write to: whoever reads them believes nothing that is not signed.

Magic, the whole key, what computing took and when that was, rows and width, float32 values, all little-endian, and 32
bytes over it: a signature where the servers share a secret, else a checksum.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAGIC = b"proteus.vt.2\n"
HEAD = struct.Struct("<I2d2I")  # bytes of the key, seconds, moment, rows, width
MAX_COST_S = 3600.0  # that is believed: a report and a counter add it up
SEAL_BYTES = hashlib.sha256().digest_size
NAME_PREFIX = "proteus:vt:2:"

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Entry:
    rows: Rows  # (N, D), read-only
    cost_s: float  # what computing it took
    made_s: float  # since 1970, by the clock of the server that computed it


def name_of(key: bytes, secret: bytes) -> str:
    """Where the entry of a key is; with a secret it tells nothing of the key."""
    return NAME_PREFIX + _sealed(b"name", key, secret).hex()


def entry_bytes(key: bytes, shape: tuple[int, int]) -> int:
    """How long the entry of a key is when it holds (N, D) values."""
    return len(MAGIC) + HEAD.size + len(key) + shape[0] * shape[1] * 4 + SEAL_BYTES


def pack(key: bytes, rows: Rows, cost_s: float, made_s: float, secret: bytes) -> bytes:
    """The entry of (N, D) rows."""
    num_rows, width = rows.shape
    head = HEAD.pack(len(key), cost_s, made_s, num_rows, width)
    body = b"".join((MAGIC, head, key, np.ascontiguousarray(rows, dtype="<f4").tobytes()))
    return body + _sealed(b"entry", body, secret)


def unpack(data: bytes, key: bytes, shape: tuple[int, int], secret: bytes) -> Entry | None:
    """None for anything but a whole entry of this key, with this shape and sane values, sealed with this secret."""
    if len(data) != entry_bytes(key, shape):
        return None
    body, seal = data[:-SEAL_BYTES], data[-SEAL_BYTES:]
    if not body.startswith(MAGIC) or not hmac.compare_digest(seal, _sealed(b"entry", body, secret)):
        return None
    at = len(MAGIC) + HEAD.size
    key_bytes, cost_s, made_s, num_rows, width = HEAD.unpack_from(body, len(MAGIC))
    if (key_bytes, num_rows, width) != (len(key), *shape) or body[at : at + key_bytes] != key:
        return None
    rows = np.frombuffer(body, dtype="<f4", offset=at + key_bytes).reshape(shape).astype(np.float32, copy=False)
    rows.setflags(write=False)
    is_sane = 0 <= cost_s <= MAX_COST_S and 0 <= made_s < float("inf") and np.isfinite(rows).all()
    return Entry(rows, cost_s, made_s) if is_sane else None


def _sealed(purpose: bytes, data: bytes, secret: bytes) -> bytes:
    if secret:
        return hmac.digest(secret, purpose + b"\n" + data, "sha256")
    return hashlib.sha256(purpose + b"\n" + data).digest()
