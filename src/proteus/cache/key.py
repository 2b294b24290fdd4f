"""What results of a picture and of a text depend on, field by field, and digests of it under which they are kept.

A digest finds an entry; that it is the right one is told by comparing every field. Who may share is one of them.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache

from proteus.families.llava import ResizeRule

DOMAIN = b"proteus.visual_tokens.3"
PROCESSOR_DOMAIN = b"proteus.pixel_values.1"
TEXT_DOMAIN = b"proteus.text_states.1"
SCOPE_DOMAIN = b"proteus.cache_scope.1"
FLOAT = struct.Struct(">d")

Size = tuple[int, int]  # (width, height) in px


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelRules:
    """What decides the pixels that a picture becomes, but for the picture and the size it is given as."""

    policy: str  # of our own steps, with its version
    decoders: str  # libraries that decode, convert and resize, with their versions
    background_rgb: tuple[int, int, int]
    animation: str
    resize: ResizeRule  # of the checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorKeyFields:
    """Of the pixels that the encoder reads."""

    scope_key: bytes  # stands for tenant and authorisation
    media_digest: bytes  # SHA-256 of the encoded bytes, taken where they are decoded
    target_px: Size | None  # made smaller to; None: its own size
    pixels: PixelRules


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderVersion:
    """What decides the visual tokens that pixels become."""

    revision: str  # of the checkpoint: its config and weights
    graphs: str  # SHA-256 over the files that encoder and connector run: weights again, operators and their precision
    runtime: str  # that runs them, with its version
    dtype: str  # of the result


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureKeyFields:
    """Of the visual tokens. Two requests share an entry only when all fields are equal."""

    scope_key: bytes  # stands for tenant and authorisation
    media_digest: bytes  # SHA-256 of the encoded bytes
    given_px: Size | None  # made smaller to; None: its own size
    bucket: str  # the encoder's shape
    visual_tokens: int  # that were planned
    pixels: PixelRules
    encoder: EncoderVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKeyFields:
    """Of what the text encoder makes of one text."""

    cache_scope: str  # tenant and authorisation; "" is shared by all who send none
    revision: str  # of the checkpoint
    ids: tuple[tuple[str, bytes], ...]  # name of each input and its ids, little-endian
    salt: bytes = b""  # random after a collision, else empty


def media_digest(data: bytes) -> bytes:
    """SHA-256 of the encoded bytes of one medium."""
    return hashlib.sha256(data).digest()


def scope_key(cache_scope: str) -> bytes:
    """32 bytes that stand for a cache scope, which may be as long as a request, and is nobody's business."""
    return _digest(SCOPE_DOMAIN, cache_scope)


def picture_key(key: PictureKeyFields) -> bytes:
    """32 bytes."""
    return hashlib.sha256(DOMAIN + whole(key)).digest()


def processor_key(key: ProcessorKeyFields) -> bytes:
    """32 bytes."""
    return hashlib.sha256(PROCESSOR_DOMAIN + whole(key)).digest()


def text_key(key: TextKeyFields) -> bytes:
    """32 bytes. Triton's response cache compares a 64-bit hash of raw bytes; these come back as an output, so that a
    collision is seen.
    """
    inputs = (part for pair in key.ids for part in pair)
    return _digest(TEXT_DOMAIN, key.cache_scope, key.revision, key.salt, *inputs)


def whole(key: PictureKeyFields | ProcessorKeyFields) -> bytes:
    """All fields; equal only where every field is."""
    return b"".join(_framed(getattr(key, field.name)) for field in fields(key))


def _framed(value: object) -> bytes:
    """Kind and length before each value, so that no two lists of values run together."""
    match value:
        case PixelRules() | EncoderVersion():
            return _framed_once(value)
        case None:
            kind, data = b"n", b""
        case bytes():
            kind, data = b"b", value
        case str():
            kind, data = b"s", value.encode()
        case int():
            kind, data = b"i", str(value).encode()
        case float():
            kind, data = b"f", FLOAT.pack(value)
        case tuple():
            kind, data = b"t", b"".join(map(_framed, value))
        case _:
            raise TypeError(f"a key holds a {type(value).__name__}")
    return kind + len(data).to_bytes(8, "big") + data


@lru_cache(maxsize=16)
def _framed_once(part: PixelRules | EncoderVersion) -> bytes:
    """Of what is the same for every picture of a process."""
    return _framed(_values(part))


def _values(part: object) -> tuple[object, ...]:
    values = (getattr(part, field.name) for field in fields(part))  # type: ignore[arg-type]
    return tuple(_values(value) if is_dataclass(value) else value for value in values)


def _digest(*parts: str | bytes) -> bytes:
    """Every part is framed by its length, so that no two lists of parts run together."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()
