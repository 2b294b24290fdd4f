"""One encoded picture to upright 8-bit RGB, of its own size or of a smaller one that was asked for.

For bytes that nobody vouches for: `proteus.preprocess.worker` runs it in a process of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image, ImageFile

from proteus.errors import InvalidPicture, ProteusError
from proteus.limits import ImageLimits, PictureFormat
from proteus.media.accept import accept_picture, check_bytes
from proteus.media.header import PictureHeader
from proteus.media.probe import probe_picture
from proteus.preprocess.colour import Rgb, to_rgb
from proteus.preprocess.openers import OPENERS, UPRIGHT_WHEN_LOADED

Size = tuple[int, int]  # (width, height) in px
Box = tuple[int, int, int, int]  # left, top, right, bottom in px

SHRINK = Image.Resampling.LANCZOS
REDUCING_GAP = 3.0  # the box filter of the first step never leaves less than three times the target
DRAFT_AT_LEAST = 2  # a JPEG is decoded at a fraction of its size when both sides keep this many times the target
# EXIF orientation -> what turns the stored pixels upright; 1 needs nothing.
TURNS: Mapping[int, Callable[[Rgb], Rgb]] = {
    2: np.fliplr,
    3: lambda rgb: np.rot90(rgb, 2),
    4: np.flipud,
    5: lambda rgb: rgb.swapaxes(0, 1),
    6: lambda rgb: np.rot90(rgb, -1),
    7: lambda rgb: np.rot90(rgb.swapaxes(0, 1), 2),
    8: np.rot90,
}


def decode(data: bytes, limits: ImageLimits, target_px: Size | None = None) -> Rgb:
    """Pixels (height, width, 3) of the first frame; `target_px` is the upright size to make, never larger than its own.

    Raises InvalidPicture or MediaTooLarge; over a limit, before any pixel is decoded. MemoryError when the decoder ran
    out of memory.
    """
    check_bytes(len(data), limits)
    header = probe_picture(data)
    accept_picture(header, len(data), limits)
    return decode_accepted(data, header, limits.background_rgb, target_px)


def decode_accepted(
    data: bytes, header: PictureHeader, background_rgb: tuple[int, int, int], target_px: Size | None = None
) -> Rgb:
    """As `decode`, for a picture whose header was read and accepted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(data, header, background_rgb, target_px)
    except (MemoryError, ProteusError):
        raise
    except Exception as error:  # decoders raise anything at all on malformed bytes
        said = str(error).lower()
        # libheif calls every limit of its own an error of memory; only those that count bytes are.
        counts_something_else = "security limit exceeded:" in said and "bytes" not in said
        if "memory" in said and not counts_something_else:
            raise MemoryError from error
        raise _broken(header.format) from error


def _decode(data: bytes, header: PictureHeader, background_rgb: tuple[int, int, int], target_px: Size | None) -> Rgb:
    picture = OPENERS[header.format](data)
    turn = None if header.format in UPRIGHT_WHEN_LOADED else TURNS.get(header.orientation)
    if sorted(picture.size) != sorted((header.width_px, header.height_px)):
        raise _contradicted()
    if target_px is not None:
        _check_target(target_px, header.upright_px)
        _draft(picture, target_px if turn is None else _stored(target_px, header))
    drafted = getattr(picture, "decoderconfig", ()) not in ((), (1, 0))
    frame = _frame_of(picture)
    picture.load()
    rgb = to_rgb(picture, background_rgb)
    del picture
    if frame is not None:
        rgb = _framed(rgb, frame, background_rgb)
    if turn is not None:
        rgb = turn(rgb)
    if not drafted and (rgb.shape[1], rgb.shape[0]) != header.upright_px:
        raise _contradicted()
    return np.ascontiguousarray(rgb) if target_px is None else _shrink(rgb, target_px)


def _frame_of(picture: ImageFile.ImageFile) -> Box | None:
    """What the first frame of a GIF covers of its screen; None when that is all of it, as in other formats."""
    extents = picture.tile[0].extents if picture.format == "GIF" else None
    return None if extents in (None, (0, 0, *picture.size)) else extents


def _framed(rgb: Rgb, frame: Box, background_rgb: tuple[int, int, int]) -> Rgb:
    """The background where nothing was painted: a decoder leaves the first colour of the palette there."""
    left, top, right, bottom = frame
    screen = np.full_like(rgb, background_rgb)
    screen[top:bottom, left:right] = rgb[top:bottom, left:right]
    return screen


def _check_target(target_px: Size, own_px: Size) -> None:
    if target_px[0] > own_px[0] or target_px[1] > own_px[1]:
        raise InvalidPicture(
            f"the picture is {own_px[0]}x{own_px[1]} px, smaller than the {target_px[0]}x{target_px[1]} px asked for",
            fix="ask for a size within the picture's own",
        )


def _stored(target_px: Size, header: PictureHeader) -> Size:
    return (target_px[1], target_px[0]) if header.orientation >= 5 else target_px


def _draft(picture: ImageFile.ImageFile, target_px: Size) -> None:
    """Let a JPEG's own transform do most of the shrinking, where enough is left for a clean resize."""
    wanted = (target_px[0] * DRAFT_AT_LEAST, target_px[1] * DRAFT_AT_LEAST)
    if picture.format == "JPEG" and picture.width >= wanted[0] and picture.height >= wanted[1]:
        picture.draft(None, wanted)


def _shrink(rgb: Rgb, target_px: Size) -> Rgb:
    if (rgb.shape[1], rgb.shape[0]) == target_px:
        return np.ascontiguousarray(rgb)
    picture = Image.fromarray(np.ascontiguousarray(rgb))
    return np.asarray(picture.resize(target_px, SHRINK, reducing_gap=REDUCING_GAP))


def _broken(picture_format: PictureFormat) -> InvalidPicture:
    """The error for bytes that start as a picture and go wrong later."""
    return InvalidPicture(
        f"the picture starts as {picture_format} but is truncated or damaged, or of a kind that is not read",
        fix="send the whole, intact file, or convert it to 8-bit RGB",
    )


def _contradicted() -> InvalidPicture:
    return InvalidPicture("the picture's pixels have another size than its header says", fix="save the picture anew")
