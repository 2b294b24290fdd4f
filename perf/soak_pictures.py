"""Files of pictures for a soak: in every format and many sizes, some that no cache has seen, some broken."""

from __future__ import annotations

import io
import random
import struct
import zlib
from functools import cached_property

from PIL import Image
from pillow_heif.as_plugin import _save_heif  # not registered: nothing in this process opens HEIC by accident

from export.world.draw import draw
from export.world.scene import scene

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "HEIF", "AVIF")  # as Pillow and pillow-heif name them
MARKED = ("PNG", "JPEG")  # these can carry a mark that makes their bytes new at no cost
SMALL_PX = ((64, 64), (96, 96), (120, 80), (200, 300), (512, 384), (700, 700))
LARGE_PX = ((1000, 1000), (2000, 1500), (2400, 1600), (4000, 3000), (5000, 5000))
NUM_REPEATED = 48
PNG_START, JPEG_START = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
PNG_HEAD_BYTES = len(PNG_START) + 25  # with the chunk IHDR


class Stock:
    """The same files every time, each made once: that takes seconds."""

    def __init__(self) -> None:
        self.repeated = [
            encoded(number, SMALL_PX[number % len(SMALL_PX)], FORMATS[number % len(FORMATS)])
            for number in range(NUM_REPEATED)
        ]
        sizes = enumerate(SMALL_PX * len(MARKED), start=NUM_REPEATED)
        self._marked = [encoded(number, size, MARKED[number % len(MARKED)]) for number, size in sizes]
        self._count = 0

    @cached_property
    def _large(self) -> list[bytes]:
        return [encoded(number, size, "JPEG") for number, size in enumerate(LARGE_PX)]

    def again(self, chance: random.Random) -> bytes:
        """One of a few that everybody sends."""
        return chance.choice(self.repeated)

    def fresh(self, chance: random.Random) -> bytes:
        """Nobody has sent these bytes before."""
        return self._new(chance.choice(self._marked))

    def tiny(self) -> bytes:
        """The cheapest that is new."""
        return self._new(self._marked[0])

    def large(self, chance: random.Random) -> bytes:
        """1 to 25 megapixels, new."""
        return self._new(chance.choice(self._large))

    def every_large(self) -> list[bytes]:
        """One of each size, new, and the bomb that may just come in."""
        return [*map(self._new, self._large), self._new(self._bomb)]

    def cut(self, chance: random.Random) -> bytes:
        """The beginning of a file; its header is whole."""
        data = self.fresh(chance)
        return data[: max(200, int(len(data) * chance.uniform(0.3, 0.9)))]

    def damaged(self, chance: random.Random) -> bytes:
        """Some bytes of a good file are others."""
        data = bytearray(self.again(chance))
        for _ in range(chance.randint(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)

    @cached_property
    def _bomb(self) -> bytes:
        return bomb(*LARGE_PX[-1])

    def _new(self, data: bytes) -> bytes:
        self._count += 1
        return marked(data, f"soak {self._count}".encode())


def encoded(number: int, size: tuple[int, int], format_name: str) -> bytes:
    """The drawn scene of that number as a file."""
    picture = draw(scene("heldout", number)).resize(size)
    out = io.BytesIO()
    if format_name == "HEIF":
        picture.encoderinfo = {}
        _save_heif(picture, out, "")
    else:
        picture.save(out, format_name)
    return out.getvalue()


def marked(data: bytes, mark: bytes) -> bytes:
    """A PNG or JPEG file with a comment; the pixels are the same."""
    if data.startswith(JPEG_START):
        return b"".join((JPEG_START, b"\xff\xfe", (len(mark) + 2).to_bytes(2, "big"), mark, data[2:]))
    return data[:PNG_HEAD_BYTES] + png_chunk(b"tEXt", b"Comment\0" + mark) + data[PNG_HEAD_BYTES:]


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(width_px: int, height_px: int) -> bytes:
    """A PNG of a few kilobytes that says it is so large, and is: all black."""
    row = zlib.compress(bytes(1 + width_px // 8 + (width_px % 8 > 0)) * min(height_px, 10_000), 9)
    head = struct.pack(">IIBBBBB", width_px, height_px, 1, 0, 0, 0, 0)
    return PNG_START + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", row) + png_chunk(b"IEND", b"")


def plain(width_px: int, height_px: int) -> bytes:
    """A PNG of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (width_px, height_px), "red").save(out, "PNG")
    return out.getvalue()
