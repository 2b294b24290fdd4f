"""The pictures of a request, in the order of its parts: from `image_bytes` or base64, counted, their headers read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proteus.cache.key import media_digest
from proteus.door.request import ChatMessage, PictureContent
from proteus.errors import InvalidPicture, InvalidRequest, MediaTooLarge
from proteus.limits import ImageLimits
from proteus.preprocess.header import read_header


@dataclass(frozen=True, slots=True)
class Picture:
    data: bytes  # as encoded by the client
    digest: bytes  # SHA-256 of `data`


def split(data: bytes, lengths: Sequence[int] | None) -> tuple[bytes, ...]:
    """Cut `image_bytes` into pictures; without lengths it is one picture. Raises InvalidRequest."""
    if lengths is None:
        return (data,) if data else ()
    if any(length < 0 for length in lengths) or sum(lengths) != len(data):
        raise InvalidRequest(
            f"image_lengths add up to {sum(lengths):,}, image_bytes has {len(data):,} bytes",
            fix="send one length for each picture, in the order of image_bytes",
        )
    pictures, start = [], 0
    for length in lengths:
        pictures.append(data[start : start + length])
        start += length
    return tuple(pictures)


def collect(messages: Sequence[ChatMessage], attached: Sequence[bytes], limits: ImageLimits) -> tuple[Picture, ...]:
    """Every picture of the conversation, header checked; raises InvalidRequest, InvalidPicture or MediaTooLarge."""
    places = [part for message in messages for part in message.parts() if isinstance(part, PictureContent)]
    wanted = sum(place.data is None for place in places)
    if wanted != len(attached):
        raise InvalidRequest(
            f'the messages ask for {wanted} attached pictures ({{"type": "image"}}), image_bytes holds {len(attached)}',
            fix="send as many pictures as there are image parts without data",
        )
    if len(places) > limits.max_pictures:
        raise MediaTooLarge(
            f"{len(places)} pictures in one request",
            limit=f"[image] max_pictures = {limits.max_pictures}",
            fix="send fewer pictures",
        )
    rest = iter(attached)
    return tuple(_read_all(places, rest, limits))


def _read_all(places: Sequence[PictureContent], rest: Iterator[bytes], limits: ImageLimits) -> Iterator[Picture]:
    for number, place in enumerate(places, start=1):
        data = next(rest) if place.data is None else _from_base64(place.data, number, limits)
        read_header(data, limits)
        yield Picture(data, media_digest(data))


def _from_base64(text: str, number: int, limits: ImageLimits) -> bytes:
    if text.startswith("data:"):
        raise InvalidPicture(f"picture {number} is a data: URL", fix="send the base64 after the comma alone")
    if len(text) > 2 * limits.max_bytes:  # before any work; the exact count follows after decoding
        raise MediaTooLarge(
            f"picture {number} has {len(text):,} characters of base64",
            limit=f"[image] max_bytes = {limits.max_bytes:,}",
            fix="send a smaller or more compressed picture",
        )
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidPicture(
            f"picture {number} is not base64", fix="use the standard alphabet (+ and /) with its padding"
        ) from error
