"""The pictures of a request, in the order of its parts: attached, in base64, as data URIs or by URL; headers checked.

parts → Source (where the bytes are) → bytes → Picture (digest, header, within the contract)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from proteus.cache.key import media_digest
from proteus.door.request import AnyPicture, ChatMessage, PictureContent
from proteus.errors import InvalidRequest, ProteusError
from proteus.limits import ImageLimits, TierName
from proteus.media.accept import accept_picture, check_bytes, check_count
from proteus.media.beginning import probe_beginning
from proteus.media.header import PictureHeader
from proteus.media.probe import probe_picture
from proteus.media.source import from_text

MAX_SCHEME_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the bytes of one picture are: exactly one of `attached`, `text` and `url` is set."""

    tier: TierName
    file_bytes: int | None = None  # of the whole file, where only its beginning is there: enough to tell what it costs
    attached: bytes | None = None
    text: str | None = None  # base64 or a data URI
    url: str | None = None  # http or https


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    data: bytes  # as encoded by the client
    digest: bytes  # SHA-256 of `data`
    header: PictureHeader
    tier: TierName
    file_bytes: int | None = None  # where `data` are only the beginning of the file

    @property
    def num_bytes(self) -> int:
        """Of the whole file."""
        return len(self.data) if self.file_bytes is None else self.file_bytes


def split(data: bytes, lengths: npt.NDArray[np.int64] | None, limits: ImageLimits) -> tuple[bytes, ...]:
    """Cut `image_bytes` into pictures; without lengths it is one picture. Raises InvalidRequest or MediaTooLarge.

    Lengths are counted before they are read: there may be a hundred million of nothing.
    """
    if lengths is None:
        return (data,) if data else ()
    check_count(len(lengths), limits)
    sizes = [int(length) for length in lengths]
    if any(size < 0 for size in sizes) or sum(sizes) != len(data):
        raise InvalidRequest(
            f"image_lengths add up to {sum(sizes):,}, image_bytes has {len(data):,} bytes",
            fix="send one length for each picture, in the order of image_bytes",
        )
    pictures, start = [], 0
    for size in sizes:
        pictures.append(data[start : start + size])
        start += size
    return tuple(pictures)


def sources(messages: Sequence[ChatMessage], attached: Sequence[bytes], limits: ImageLimits) -> tuple[Source, ...]:
    """Every picture of the conversation, counted; raises InvalidRequest or MediaTooLarge."""
    places = [place for message in messages for place in message.pictures()]
    wanted = sum(isinstance(place, PictureContent) and place.data is None for place in places)
    if wanted != len(attached):
        raise InvalidRequest(
            f'the messages ask for {wanted} attached pictures ({{"type": "image"}}), image_bytes holds {len(attached)}',
            fix="send as many pictures as there are image parts without data",
        )
    check_count(len(places), limits)
    rest = iter(attached)
    return tuple(_source(place, rest) for place in places)


def read(source: Source, number: int, fetched: Mapping[str, bytes], limits: ImageLimits) -> Picture:
    """Bytes, digest and header of picture `number` (from 1), within the contract; `fetched` holds what came by URL.

    Raises InvalidPicture or MediaTooLarge, naming the picture.
    """
    try:
        data = _bytes(source, fetched, limits)
        file_bytes = _more_than(data, source.file_bytes)
        check_bytes(file_bytes or len(data), limits)
        header = probe_picture(data) if file_bytes is None else probe_beginning(data)
    except ProteusError as error:
        raise error.about(f"picture {number}") from error
    picture = Picture(data=data, digest=media_digest(data), header=header, tier=source.tier, file_bytes=file_bytes)
    accept(picture, number, limits)
    return picture


def accept(picture: Picture, number: int, limits: ImageLimits) -> None:
    """Whether picture `number`, read under one contract, is within another; raises as `read` does."""
    try:
        accept_picture(picture.header, picture.num_bytes, limits)
    except ProteusError as error:
        raise error.about(f"picture {number}") from error


def _more_than(data: bytes, file_bytes: int | None) -> int | None:
    """None where the file is there whole."""
    if file_bytes is not None and file_bytes < len(data):
        raise InvalidRequest(
            f"total_bytes = {file_bytes:,}, but there are {len(data):,} bytes", fix="give the size of the whole file"
        )
    return None if file_bytes == len(data) else file_bytes


def _source(place: AnyPicture, rest: Iterator[bytes]) -> Source:
    if isinstance(place, PictureContent):
        if place.data is None:
            return Source(tier=place.detail, attached=next(rest))
        return Source(tier=place.detail, text=place.data)
    url, tier = place.image_url.url, place.image_url.detail
    is_web = "://" in url[:MAX_SCHEME_CHARS]  # of a scheme that is not allowed, too: its refusal says so
    return Source(tier=tier, url=url) if is_web else Source(tier=tier, text=url)


def _bytes(source: Source, fetched: Mapping[str, bytes], limits: ImageLimits) -> bytes:
    if source.attached is not None:
        return source.attached
    if source.url is not None:
        return fetched[source.url]
    return from_text(source.text or "", max_bytes=limits.max_bytes)
