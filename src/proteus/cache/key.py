"""Names of a picture's visual tokens and of a text's states: SHA-256 over all they depend on, and over who may share.

Triton's response cache compares a 64-bit hash of raw bytes; the 32 bytes from here are an input of every cached model
and come back as an output, so that a collision is seen by the caller.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, dataclass

DOMAIN = b"proteus.visual_tokens.1"
TEXT_DOMAIN = b"proteus.text_states.1"
SCOPE_DOMAIN = b"proteus.cache_scope.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureKeyFields:
    """Each field apart; two requests share an entry only when all are equal."""

    cache_scope: str  # tenant and authorisation; "" is shared by all who send none
    revision: str  # of the checkpoint
    policy: str  # of the preprocessing, with its version
    plan: str  # the shape that was planned: encoder side and visual tokens
    dtype: str  # of the result
    media_digest: bytes  # SHA-256 of the encoded bytes


def media_digest(data: bytes) -> bytes:
    """SHA-256 of the encoded bytes of one medium."""
    return hashlib.sha256(data).digest()


def scope_key(cache_scope: str) -> bytes:
    """32 bytes that stand for a cache scope where its name is nobody's business."""
    return _digest(SCOPE_DOMAIN, cache_scope)


def picture_key(fields: PictureKeyFields) -> bytes:
    """32 bytes."""
    return _digest(DOMAIN, *astuple(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKeyFields:
    """Of what the text encoder makes of one text."""

    cache_scope: str  # tenant and authorisation; "" is shared by all who send none
    revision: str  # of the checkpoint
    ids: tuple[tuple[str, bytes], ...]  # name of each input and its ids, little-endian
    salt: bytes = b""  # random after a collision, else empty


def text_key(fields: TextKeyFields) -> bytes:
    """32 bytes."""
    inputs = (part for pair in fields.ids for part in pair)
    return _digest(TEXT_DOMAIN, fields.cache_scope, fields.revision, fields.salt, *inputs)


def _digest(*fields: str | bytes) -> bytes:
    """Every field is framed by its length, so that no two lists of fields run together."""
    digest = hashlib.sha256()
    for field in fields:
        data = field.encode("utf-8") if isinstance(field, str) else field
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()
