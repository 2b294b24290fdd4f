"""PNG and APNG: size, mode, frames and orientation from the chunks; the image data are skipped by their lengths."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from proteus.errors import InvalidPicture
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader
from proteus.media.orientation import orientation_of

MAX_CHUNKS = 8192
MAX_TEXT_BYTES = 1 << 20  # of compressed metadata, unpacked
# (bit depth, colour type) of W3C PNG §11.2.1 -> mode.
MODES: Mapping[tuple[int, int], str] = {
    (1, 0): "1",
    (2, 0): "L",
    (4, 0): "L",
    (8, 0): "L",
    (16, 0): "I;16",
    (8, 2): "RGB",
    (16, 2): "RGB",
    (1, 3): "P",
    (2, 3): "P",
    (4, 3): "P",
    (8, 3): "P",
    (8, 4): "LA",
    (16, 4): "RGBA",
    (8, 6): "RGBA",
    (16, 6): "RGBA",
}
XMP_KEYWORD, EXIF_KEYWORD = b"XML:com.adobe.xmp", b"Raw profile type exif"
_CHUNK = struct.Struct(">I4s")
_IHDR = struct.Struct(">IIBB")


@dataclass(slots=True)
class _Found:
    """What the chunks tell, gathered on the way; of two of a kind the last counts."""

    exif: bytes | memoryview = b""
    texts: dict[bytes, tuple[bytes, memoryview]] = field(default_factory=dict)  # keyword -> (type, content)
    num_frames: int = 0  # of the animation control chunk; 0 without one
    frame_controls: int = 0
    has_default_image: bool = False  # image data that are no frame of the animation


def probe_png(data: memoryview) -> PictureHeader:
    """Raises Damaged or struct.error for broken files, InvalidPicture for one of more than MAX_CHUNKS chunks."""
    chunks = _chunks(data)
    kind, start, end = next(chunks)
    if kind != b"IHDR" or end - start < 13:
        raise Damaged
    width_px, height_px, depth, colour = _IHDR.unpack_from(data, start)
    mode = MODES.get((depth, colour))
    if mode is None or not width_px or not height_px:
        raise Damaged
    found = _Found()
    for kind, start, end in chunks:
        if kind == b"IHDR":  # readers differ in which of two counts
            raise Damaged
        _read(found, kind, data[start:end])
        if found.frame_controls > 1:
            break  # the rest are later frames
    return PictureHeader(
        format="png",
        width_px=width_px,
        height_px=height_px,
        orientation=orientation_of(found.exif or _from_hex(_text(found, EXIF_KEYWORD)), _text(found, XMP_KEYWORD)),
        mode=mode,
        num_frames=found.num_frames + found.has_default_image if found.num_frames else 1,
    )


def _chunks(data: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """(type, start of content, end of content), the image data told once and up to the last whole chunk."""
    at, total, before = 8, len(data), b""
    for _ in range(MAX_CHUNKS):
        if at + 8 > total:
            return
        length, kind = _CHUNK.unpack_from(data, at)
        if kind == b"IEND":
            return
        if kind != before or kind != b"IDAT":
            yield kind, at + 8, min(at + 8 + length, total)
        before = kind
        at += length + 12
    raise InvalidPicture(f"the png is cut into more than {MAX_CHUNKS:,} chunks", fix="save the picture anew")


def _read(found: _Found, kind: bytes, body: memoryview) -> None:
    match kind:
        case b"acTL":
            (num_frames,) = struct.unpack_from(">I", body)
            found.num_frames = num_frames if num_frames <= 1 << 31 else 0
        case b"fcTL":
            found.frame_controls += found.num_frames > 0
        case b"IDAT":
            found.has_default_image |= found.num_frames > 0 and not found.frame_controls
        case b"eXIf":
            found.exif = body
        case b"tEXt" | b"zTXt" | b"iTXt":
            for keyword in (XMP_KEYWORD, EXIF_KEYWORD):
                if body[: len(keyword) + 1] == keyword + b"\0":
                    found.texts[keyword] = kind, body[len(keyword) + 1 :]


def _text(found: _Found, keyword: bytes) -> bytes:
    """W3C PNG §11.3.3: plain, packed, or either behind a language and a translated keyword."""
    kind, body = found.texts.get(keyword, (b"tEXt", memoryview(b"")))
    text = bytes(body)
    if kind == b"zTXt":
        return _unpacked(text[1:])
    if kind == b"iTXt":
        _language, _translated, after = (text[2:].split(b"\0", 2) + [b"", b""])[:3]
        return _unpacked(after) if text[:1] == b"\1" else after
    return text


def _unpacked(packed: bytes) -> bytes:
    """At most MAX_TEXT_BYTES of it; what cannot be unpacked says nothing."""
    try:
        return zlib.decompressobj().decompress(packed, MAX_TEXT_BYTES)
    except zlib.error:
        return b""


def _from_hex(text: bytes) -> bytes:
    """ImageMagick's raw profile: an empty line, the name, the length, then lines of hexadecimal digits."""
    try:
        return bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
    except ValueError:
        return b""
