"""Header of Ogg sound (RFC 3533): Vorbis, Opus (RFC 7845) and FLAC, one stream in one file.

The length is the position that the last whole page gives, found from the end of the file; a stream cut out of a
longer one counts from the start of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.fields import number, too_many
from proteus.media.flac import read_stream_info
from proteus.media.header import AudioHeader

PAGE_MAX_BYTES = 27 + 255 + 255 * 255
TAIL_BYTES = 16 * PAGE_MAX_BYTES  # looked through for the last page that ends a packet
MAX_PAGES = 10_000  # looked at in the tail
FIRST = 0x02  # flag of the page that starts a stream
NO_POSITION = 0xFFFFFFFFFFFFFFFF  # of a page on which no packet ends
OPUS_RATE_HZ = 48_000


class Page(NamedTuple):
    flags: int
    position: int
    serial: int
    body: int  # its first byte
    end: int


class Sound(NamedTuple):
    codec: str
    rate_hz: int
    channels: int
    skipped: int  # samples at the start that are not heard


def probe_ogg(data: memoryview) -> AudioHeader:
    """Header of an Ogg sound; the rate of Opus is the one it is decoded at, 48 kHz.

    Raises Damaged for a broken file, InvalidMedia on other codecs, and on files of several streams, side by side or in
    a chain.
    """
    first = read_page(data, 0)
    if first is None or not first.flags & FIRST:
        raise Damaged
    sound = _identify(data, first)
    second = read_page(data, first.end)
    position = _last_position(data, first.serial)
    if second is not None and second.flags & FIRST or position is None:
        raise InvalidMedia("an ogg file of several streams", fix="send one stream of sound in one file")
    return AudioHeader(
        format="ogg",
        sample_rate_hz=sound.rate_hz,
        channels=sound.channels,
        duration_s=max(0, position - sound.skipped) / sound.rate_hz,
        codec=sound.codec,
    )


def read_page(data: memoryview, at: int) -> Page | None:
    """The page at `at`; None when there is none or it is cut."""
    if bytes(data[at : at + 5]) != b"OggS\0" or at + 27 > len(data):
        return None
    body = at + 27 + data[at + 26]
    end = body + sum(data[at + 27 : body])
    if end > len(data):
        return None
    return Page(data[at + 5], number(data, at + 6, 8, "little"), number(data, at + 14, 4, "little"), body, end)


def _last_position(data: memoryview, serial: int) -> int | None:
    """Position of the last page of the stream; None when a page of another stream follows it. Raises Damaged."""
    start = max(0, len(data) - TAIL_BYTES)
    tail = bytes(data[start:])
    at = len(tail)
    for _ in range(MAX_PAGES):
        at = tail.rfind(b"OggS", 0, at)
        if at < 0:
            raise Damaged
        page = read_page(data, start + at)
        if page is None or page.position == NO_POSITION:
            continue
        return page.position if page.serial == serial else None
    raise too_many("audio", "pages", MAX_PAGES)


def _identify(data: memoryview, first: Page) -> Sound:
    packet = data[first.body : first.end]
    for magic, read in CODECS.items():
        if bytes(packet[: len(magic)]) == magic:
            sound = read(packet)
            if not sound.rate_hz or not sound.channels:
                raise Damaged
            return sound
    name = next((name for magic, name in UNREAD.items() if bytes(packet[: len(magic)]) == magic), "another codec")
    raise InvalidMedia(f"an ogg file of {name}", fix="send ogg with vorbis, opus or flac")


def _vorbis(packet: memoryview) -> Sound:
    return Sound("vorbis", number(packet, 12, 4, "little"), number(packet, 11, 1), 0)


def _opus(packet: memoryview) -> Sound:
    return Sound("opus", OPUS_RATE_HZ, number(packet, 9, 1), number(packet, 10, 2, "little"))


def _flac(packet: memoryview) -> Sound:
    rate_hz, channels, _ = read_stream_info(packet, 13)
    return Sound("flac", rate_hz, channels, 0)


CODECS: Mapping[bytes, Callable[[memoryview], Sound]] = {b"\x01vorbis": _vorbis, b"OpusHead": _opus, b"\x7fFLAC": _flac}
UNREAD: Mapping[bytes, str] = {b"\x80theora": "theora video", b"Speex   ": "speex", b"fishead\0": "several streams"}
