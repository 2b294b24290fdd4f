"""TIFF and BigTIFF: size, mode and orientation of the first page, and how many pages follow it."""

from __future__ import annotations

from collections.abc import Mapping

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader
from proteus.media.ifd import Directory, Layout, first_directory, next_directory, read_directory
from proteus.media.orientation import directory_orientation

MAX_PAGES = 4096
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 256, 257, 258, 259, 262
SAMPLES, EXTRA_SAMPLES, SAMPLE_FORMAT, XMP = 277, 338, 339, 700
UNCOMPRESSED, OLD_JPEG = 1, 6
# Photometric interpretation, TIFF 6.0 §8 and §20 to §23.
WHITE_IS_ZERO, BLACK_IS_ZERO, COLOUR, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
UNSIGNED, SIGNED, FLOAT = 1, 2, 3
ASSOCIATED_ALPHA, ALPHA = 1, 2  # kinds of extra samples; 0 is unspecified
ALPHAS = frozenset({ASSOCIATED_ALPHA, ALPHA, 999})  # 999 as one program writes it
# (bits, sample format) of grey -> mode; 16 bits have one for each byte order.
GREYS: Mapping[tuple[int, int], str] = {
    (1, UNSIGNED): "1",
    (2, UNSIGNED): "L",
    (4, UNSIGNED): "L",
    (8, UNSIGNED): "L",
    (8, SIGNED): "L",
    (12, UNSIGNED): "I;16",
    (16, UNSIGNED): "I;16",
    (16, SIGNED): "I",
    (32, UNSIGNED): "I",
    (32, SIGNED): "I",
    (32, FLOAT): "F",
}


def probe_tiff(data: memoryview) -> PictureHeader:
    """Raises Damaged or struct.error for broken files, InvalidPicture for samples of no known meaning, MediaTooLarge
    over MAX_PAGES pages.
    """
    layout, offset = first_directory(data)
    page = read_directory(data, layout, offset)
    width_px, height_px = page.integer(WIDTH), page.integer(HEIGHT)
    if width_px <= 0 or height_px <= 0:
        raise Damaged
    return PictureHeader(
        format="tiff",
        width_px=width_px,
        height_px=height_px,
        orientation=directory_orientation(page, page.content(XMP)),
        mode=_mode(page),
        num_frames=_count_pages(data, layout, offset),
    )


def _count_pages(data: memoryview, layout: Layout, offset: int) -> int:
    """Directories in the chain; one that was seen before ends it."""
    seen: set[int] = set()
    while offset and offset not in seen:
        seen.add(offset)
        if len(seen) > MAX_PAGES:
            raise MediaTooLarge(
                f"the tiff has more than {MAX_PAGES:,} pages", limit=f"{MAX_PAGES:,} pages", fix="send fewer pages"
            )
        offset = next_directory(data, layout, offset)
    return len(seen)


def _mode(page: Directory) -> str:
    compression = page.integer(COMPRESSION, UNCOMPRESSED)
    meaning = YCBCR if compression == OLD_JPEG else page.integer(PHOTOMETRIC, WHITE_IS_ZERO)
    bits, extra = page.integer(BITS, 1), page.integers(EXTRA_SAMPLES)
    samples = page.integer(SAMPLES, 3 if compression == OLD_JPEG else 1)
    mode: str | None
    if meaning in (WHITE_IS_ZERO, BLACK_IS_ZERO):
        mode = _grey_mode(page, bits, extra)
    elif meaning == COLOUR:
        mode = "RGBA" if _has_alpha(samples, extra) else "RGB"
    elif meaning == PALETTE:
        mode = "PA" if ALPHA in extra else "P"
    elif meaning == YCBCR and samples > 1:
        mode = "YCbCr" if compression == UNCOMPRESSED else "RGB"
    else:
        mode = {CMYK: "CMYK", YCBCR: "L", LAB: "LAB"}.get(meaning)
    if mode is None:
        raise InvalidPicture(
            f"a tiff of {bits} bits with photometric interpretation {meaning}",
            limit="grey, palette, RGB, CMYK, YCbCr or CIELab",
            fix="save it as PNG or JPEG",
        )
    return mode


def _grey_mode(page: Directory, bits: int, extra: tuple[int, ...]) -> str | None:
    if extra:
        return {ASSOCIATED_ALPHA: "La", ALPHA: "LA"}.get(extra[0], "L")
    mode = GREYS.get((bits, page.integer(SAMPLE_FORMAT, UNSIGNED)))
    return "I;16B" if mode == "I;16" and page.layout.order == ">" else mode


def _has_alpha(samples: int, extra: tuple[int, ...]) -> bool:
    return extra[0] in ALPHAS if extra else samples == 4
