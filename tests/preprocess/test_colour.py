"""Every mode to RGB: the truth is worked out by hand, never by Pillow's own conversion."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from proteus.preprocess import colour
from proteus.preprocess.decode import decode
from tests.preprocess.pictures import LIMITS, encode, noise, png, srgb_profile, tiff
from tests.preprocess.profiles import DISPLAY_P3, SRGB, grey_profile, ink_profile, rgb_profile

SIDE_PX = 16
SIZE = (SIDE_PX, SIDE_PX)
NUM_PX = SIDE_PX * SIDE_PX
WHITE, RED = (255, 255, 255), (255, 0, 0)
HALF_RED = (255, 127, 127)  # 128/255 of red over white
SWAPPED = (SRGB[2], SRGB[1], SRGB[0])  # a profile whose red is blue

Colour = tuple[int, int, int]


def one_colour(rgb: npt.NDArray[np.uint8]) -> Colour:
    """The colour of a picture that has only one."""
    assert rgb.dtype == np.uint8 and rgb.shape[2] == 3
    assert (rgb == rgb[0, 0]).all()
    red, green, blue = rgb[0, 0].tolist()
    return red, green, blue


def near(got: Colour, wanted: Colour, levels: int) -> bool:
    return max(abs(one - other) for one, other in zip(got, wanted, strict=True)) <= levels


def paletted(colours: list[int], **options: object) -> bytes:
    picture = Image.new("P", SIZE, 1)
    picture.putpalette(colours)
    return encode(picture, "PNG", **options)


FILES: list[tuple[str, bytes, Colour, int]] = [
    ("1 bit white", encode(Image.new("1", SIZE, 1)), WHITE, 0),
    ("1 bit black", encode(Image.new("1", SIZE, 0), "TIFF", compression="group4"), (0, 0, 0), 0),
    ("grey", encode(Image.new("L", SIZE, 77)), (77, 77, 77), 0),
    ("grey of 2 bits", png(SIDE_PX, SIDE_PX, 2, 0, b"\x55" * 4), (85, 85, 85), 0),
    ("grey and half alpha", encode(Image.new("LA", SIZE, (0, 128))), (127, 127, 127), 1),
    ("palette", paletted([9, 9, 9, 10, 20, 30]), (10, 20, 30), 0),
    ("palette, other index transparent", paletted([9, 9, 9, 10, 20, 30], transparency=0), (10, 20, 30), 0),
    ("palette, index transparent", paletted([9, 9, 9, 10, 20, 30], transparency=1), WHITE, 0),
    ("palette, bytes of alpha", paletted([9, 9, 9, 255, 0, 0], transparency=b"\xff\x80"), HALF_RED, 1),
    ("RGBA", encode(Image.new("RGBA", SIZE, (255, 0, 0, 128))), HALF_RED, 1),
    ("RGBA hidden", encode(Image.new("RGBA", SIZE, (255, 0, 0, 0))), WHITE, 0),
    ("RGBA WebP", encode(Image.new("RGBA", SIZE, (255, 0, 0, 128)), "WEBP", lossless=True), HALF_RED, 1),
    ("RGBA TIFF", encode(Image.new("RGBA", SIZE, (255, 0, 0, 128)), "TIFF"), HALF_RED, 1),
    ("RGBA HEIC", encode(Image.new("RGBA", (64, 64), (255, 0, 0, 128)), "HEIF", quality=100), HALF_RED, 4),
    ("RGBA AVIF", encode(Image.new("RGBA", (64, 64), (255, 0, 0, 128)), "AVIF", quality=100), HALF_RED, 4),
    ("tRNS of 1 bit, black", encode(Image.new("1", SIZE, 0), transparency=0), WHITE, 0),
    ("tRNS of 1 bit, other", png(SIDE_PX, SIDE_PX, 1, 0, b"\0\0", key=b"\0\1"), (0, 0, 0), 0),
    ("tRNS of 1 bit, white", png(SIDE_PX, SIDE_PX, 1, 0, b"\xff\xff", key=b"\0\1"), WHITE, 0),
    ("tRNS of 2 bits", png(SIDE_PX, SIDE_PX, 2, 0, b"\x55" * 4, key=b"\0\1"), WHITE, 0),
    ("tRNS of 4 bits, other", png(SIDE_PX, SIDE_PX, 4, 0, b"\x55" * 8, key=b"\0\1"), (85, 85, 85), 0),
    ("tRNS of grey", encode(Image.new("L", SIZE, 7), transparency=7), WHITE, 0),
    ("tRNS of RGB", encode(Image.new("RGB", SIZE, (1, 2, 3)), transparency=(1, 2, 3)), WHITE, 0),
    ("tRNS of RGB, other", encode(Image.new("RGB", SIZE, (1, 2, 3)), transparency=(3, 2, 1)), (1, 2, 3), 0),
    ("tRNS of 16 bits", png(SIDE_PX, SIDE_PX, 16, 0, b"\x12\x34" * SIDE_PX, key=b"\x12\x34"), WHITE, 0),
    ("tRNS of 16 bits, near", png(SIDE_PX, SIDE_PX, 16, 0, b"\x12\x34" * SIDE_PX, key=b"\x12\x35"), (18, 18, 18), 0),
    ("tRNS of 48 bits", png(SIDE_PX, SIDE_PX, 16, 2, b"\1\2\3\4\5\6" * SIDE_PX, key=b"\1\2\3\4\5\6"), WHITE, 0),
    ("48-bit PNG", png(SIDE_PX, SIDE_PX, 16, 2, b"\x12\x34\xab\xcd\xff\xff" * SIDE_PX), (0x12, 0xAB, 0xFF), 0),
    ("64-bit PNG", png(SIDE_PX, SIDE_PX, 16, 6, b"\xff\xff\0\0\0\0\x80\x80" * SIDE_PX), HALF_RED, 1),
    ("32-bit grey and alpha PNG", png(SIDE_PX, SIDE_PX, 16, 4, b"\0\0\x80\x80" * SIDE_PX), (127, 127, 127), 1),
    ("CMYK JPEG as Adobe", encode(Image.new("CMYK", SIZE, (0, 255, 255, 0)), "JPEG", quality=100), RED, 2),
    ("CMYK TIFF", encode(Image.new("CMYK", SIZE, (0, 255, 255, 0)), "TIFF"), RED, 0),
    ("CMYK TIFF, half black", encode(Image.new("CMYK", SIZE, (0, 0, 0, 128)), "TIFF"), (127, 127, 127), 0),
    ("YCbCr TIFF", encode(Image.new("YCbCr", SIZE, (76, 85, 255)), "TIFF"), RED, 2),
    ("grey JPEG", encode(Image.new("L", SIZE, 90), "JPEG", quality=100), (90, 90, 90), 1),
]


def raw_tiff(order: str, letters: str, values: tuple[float, ...], photometric: int, **tags: int) -> bytes:
    """A picture of one colour, its samples packed as `letters` say."""
    bits = tuple(8 * struct.calcsize(letter) for letter in letters)
    pixel = struct.pack(order + letters, *values)
    return tiff(SIDE_PX, SIDE_PX, pixel * NUM_PX, order=order, bits=bits, photometric=photometric, **tags)


GREYS: list[tuple[str, bytes, int]] = [
    ("16 bits, little endian", raw_tiff("<", "H", (0x1234,), 1), 0x12),
    ("16 bits, big endian", raw_tiff(">", "H", (0xFE34,), 1), 0xFE),
    ("16 bits, white is zero", raw_tiff("<", "H", (0x1234,), 0), 255 - 0x12),
    ("16 bits, signed and negative", raw_tiff("<", "h", (-5,), 1, sample_format=2), 0),
    ("16 bits, signed", raw_tiff("<", "h", (0x7FFF,), 1, sample_format=2), 0x7F),
    ("32 bits that fit into 8", raw_tiff("<", "I", (200,), 1), 200),
    ("32 bits that fit into 16", raw_tiff("<", "I", (0x1234,), 1), 0x12),
    ("32 bits, all of them", raw_tiff("<", "I", (0xFFFFFFFF,), 1), 255),
    ("32 bits, signed and negative", raw_tiff(">", "i", (-70_000,), 1, sample_format=2), 0),
    ("float up to 1", raw_tiff("<", "f", (0.5,), 1, sample_format=3), 128),
    ("float up to 255", raw_tiff(">", "f", (200.0,), 1, sample_format=3), 200),
    ("float up to 65535", raw_tiff("<", "f", (32896.0,), 1, sample_format=3), 128),
    ("float beyond", raw_tiff("<", "f", (1e9,), 1, sample_format=3), 255),
    ("float that is no number", raw_tiff("<", "f", (float("nan"),), 1, sample_format=3), 0),
    ("float without end", raw_tiff("<", "f", (float("inf"),), 1, sample_format=3), 255),
    ("float, white is zero", raw_tiff("<", "f", (0.25,), 0, sample_format=3), 255 - 64),
]
RAW_COLOURS: list[tuple[str, bytes, Colour, int]] = [
    ("48 bits, little endian", raw_tiff("<", "HHH", (0x1234, 0xABCD, 0xFFFF), 2), (0x12, 0xAB, 0xFF), 0),
    ("48 bits, big endian", raw_tiff(">", "HHH", (0x1234, 0xABCD, 0xFFFF), 2), (0x12, 0xAB, 0xFF), 0),
    ("alpha already multiplied", raw_tiff("<", "BBBB", (128, 0, 0, 128), 2, extra_samples=1), HALF_RED, 1),
    ("grey, alpha already multiplied", raw_tiff("<", "BB", (64, 128), 1, extra_samples=1), (191, 191, 191), 1),
    ("a fourth sample that is no alpha", raw_tiff("<", "BBBB", (9, 8, 7, 0), 2, extra_samples=0), (9, 8, 7), 0),
    # sRGB red is L 54.29, a 80.8, b 69.9 under D50; L in 255ths of 100, a and b signed.
    ("CIELAB", raw_tiff("<", "Bbb", (138, 81, 70), 8), RED, 6),
    ("CIELAB, middle grey", raw_tiff("<", "Bbb", (137, 0, 0), 8), (128, 128, 128), 2),
]


@pytest.mark.parametrize(("data", "wanted", "levels"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_file_of_one_colour_shows_that_colour(data: bytes, wanted: Colour, levels: int) -> None:
    assert near(one_colour(decode(data, LIMITS)), wanted, levels), one_colour(decode(data, LIMITS))


@pytest.mark.parametrize(("data", "wanted"), [case[1:] for case in GREYS], ids=[case[0] for case in GREYS])
def test_grey_of_many_bits_follows_the_stated_rule(data: bytes, wanted: int) -> None:
    assert one_colour(decode(data, LIMITS)) == (wanted,) * 3


@pytest.mark.parametrize(
    ("data", "wanted", "levels"), [case[1:] for case in RAW_COLOURS], ids=[case[0] for case in RAW_COLOURS]
)
def test_tiff_sample_layouts_show_their_colour(data: bytes, wanted: Colour, levels: int) -> None:
    assert near(one_colour(decode(data, LIMITS)), wanted, levels), one_colour(decode(data, LIMITS))


@pytest.mark.parametrize(
    ("mode", "value", "wanted", "levels"),
    [
        ("PA", (1, 128), HALF_RED, 1),
        ("La", (64, 128), (191, 191, 191), 1),
        ("RGBa", (128, 0, 0, 128), HALF_RED, 1),
        ("RGBX", (1, 2, 3, 0), (1, 2, 3), 0),
        ("HSV", (85, 255, 255), (0, 255, 0), 3),
        ("I;16B", 0xFE34, (0xFE,) * 3, 0),
    ],
)
def test_mode_that_only_some_decoder_gives_is_read_alike(
    mode: str, value: tuple[int, ...] | int, wanted: Colour, levels: int
) -> None:
    picture = Image.new(mode, SIZE, value)
    if mode == "PA":
        picture.putpalette([0, 0, 0, 255, 0, 0])
    assert near(one_colour(colour.to_rgb(picture, WHITE)), wanted, levels)


def test_transparency_shows_the_background_of_the_contract() -> None:
    limits = LIMITS.model_copy(update={"background": "#0a141e"})
    assert one_colour(decode(encode(Image.new("RGBA", SIZE, (255, 0, 0, 0))), limits)) == (10, 20, 30)


@pytest.mark.parametrize(("value", "wanted"), [(0xFFF, 255), (0x800, 128), (0x01F, 1)])
def test_grey_of_12_bits_keeps_its_highest_eight(value: int, wanted: int) -> None:
    pair = (value << 12 | value).to_bytes(3, "big")
    data = tiff(SIDE_PX, SIDE_PX, pair * (NUM_PX // 2), order="<", bits=(12,), photometric=1)
    assert one_colour(decode(data, LIMITS)) == (wanted,) * 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"])
def test_strips_of_a_large_picture_join_without_a_seam(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grey = np.asarray(noise(37, 29).convert("L")).astype(np.int32) * 300
    deep = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    picture = Image.fromarray(grey.astype(deep[mode])) if mode in deep else noise(37, 29).convert("RGB")
    picture = picture if mode in deep or mode == "RGB" else _as_mode(picture, mode)
    whole = colour.to_rgb(picture.copy(), WHITE)
    monkeypatch.setattr(colour, "STRIP_PX", 100)
    assert np.array_equal(colour.to_rgb(picture, WHITE), whole)


def _as_mode(picture: Image.Image, mode: str) -> Image.Image:
    return Image.merge("LAB", picture.split()) if mode == "LAB" else picture.convert(mode)


# --- colour profiles ---


@pytest.mark.parametrize(
    ("in_p3", "in_srgb"), [((234, 51, 35), RED), ((117, 251, 76), (0, 255, 0)), ((0, 0, 245), (0, 0, 255))]
)
@pytest.mark.parametrize("name", ["PNG", "TIFF", "WEBP", "JPEG", "HEIF", "AVIF"])
def test_display_p3_becomes_srgb(name: str, in_p3: Colour, in_srgb: Colour) -> None:
    options = {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}}.get(name, {"quality": 100})
    data = encode(Image.new("RGB", (64, 64), in_p3), name, icc_profile=rgb_profile(DISPLAY_P3), **options)
    lossy = name in ("JPEG", "HEIF", "AVIF")
    assert near(one_colour(decode(data, LIMITS)), in_srgb, 20 if lossy else 8), decode(data, LIMITS)[0, 0]


@pytest.mark.parametrize("version", [2, 4])
def test_profile_of_either_version_is_followed(version: int) -> None:
    data = encode(Image.new("RGB", SIZE, RED), icc_profile=rgb_profile(SWAPPED, version=version))
    assert near(one_colour(decode(data, LIMITS)), (0, 0, 255), 2)


def test_profile_comes_before_transparency() -> None:
    """Half of a red that means blue, over white."""
    data = encode(Image.new("RGBA", SIZE, (255, 0, 0, 128)), icc_profile=rgb_profile(SWAPPED))
    assert near(one_colour(decode(data, LIMITS)), (127, 127, 255), 2)


def test_palette_is_read_through_the_profile() -> None:
    data = paletted([9, 9, 9, 255, 0, 0], icc_profile=rgb_profile(SWAPPED))
    assert near(one_colour(decode(data, LIMITS)), (0, 0, 255), 2)


def test_grey_profile_is_followed() -> None:
    """55/255 of full light is the sRGB level 128."""
    data = encode(Image.new("L", SIZE, 55), icc_profile=grey_profile(1.0))
    assert near(one_colour(decode(data, LIMITS)), (128, 128, 128), 1)


def test_profile_for_inks_is_followed() -> None:
    profile = ink_profile((138, 209, 198))  # the L, a, b of sRGB red
    for name in ("TIFF", "JPEG"):
        data = encode(Image.new("CMYK", SIZE, (10, 20, 30, 0)), name, icc_profile=profile)
        assert near(one_colour(decode(data, LIMITS)), RED, 6)


@pytest.mark.parametrize(
    "profile",
    [
        b"no profile at all",
        rgb_profile(SWAPPED)[:200],
        rgb_profile(SWAPPED)[:132] + b"\xff" * 300,
        grey_profile(1.0),
        ink_profile((138, 209, 198)),
    ],
    ids=["junk", "cut", "damaged table", "for grey", "for inks"],
)
def test_profile_that_cannot_be_used_leaves_the_colours_alone(profile: bytes) -> None:
    picture = noise(31, 17)
    assert np.array_equal(decode(encode(picture, icc_profile=profile), LIMITS), np.asarray(picture))


@pytest.mark.parametrize("profile", [srgb_profile(), rgb_profile(SRGB)], ids=["Pillow's", "ours"])
def test_srgb_profile_leaves_every_pixel_as_it_is(profile: bytes) -> None:
    picture = noise(31, 17)
    assert np.array_equal(decode(encode(picture, icc_profile=profile), LIMITS), np.asarray(picture))
