"""The name of a picture's visual tokens: SHA-256 over everything they depend on, and over who may share them.

Triton's response cache compares a 64-bit hash of raw bytes; the 32 bytes from here are an input of every cached model
and come back as an output, so that a collision is seen by the caller.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass

DOMAIN = b"proteus.visual_tokens.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureKeyFields:
    """Each field apart; two requests share an entry only when all are equal."""

    cache_scope: str  # tenant and authorisation; "" is shared by all who send none
    revision: str  # of the checkpoint
    policy: str  # of the preprocessing, with its version
    plan: str  # the shape that was planned: encoder side and visual tokens
    dtype: str  # of the result
    media_digest: bytes  # SHA-256 of the encoded bytes
    salt: bytes = b""  # random after a collision, else empty


def media_digest(data: bytes) -> bytes:
    """SHA-256 of the encoded bytes of one medium."""
    return hashlib.sha256(data).digest()


def picture_key(fields: PictureKeyFields) -> bytes:
    """32 bytes. Every field is framed by its length, so that no two lists of fields run together."""
    digest = hashlib.sha256()
    for field in (DOMAIN, *astuple(fields)):
        data = field.encode("utf-8") if isinstance(field, str) else field
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()
