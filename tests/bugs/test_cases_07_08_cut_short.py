"""Seen: a truncated JPEG opens, and fails later with an internal error; so do empty and random bytes.

Cause: opening a picture reads its header only, and the decoding happened where nobody expected an error.
Right: the client's error with a fixed text, whatever was cut and wherever; never a half-grey picture. A cut is tried at
many places, so that a decoder which fills up what is missing would be seen.
"""

from __future__ import annotations

import os

import pytest

from proteus.backend.fleet import Context, EncodedPicture
from proteus.errors import InvalidPicture, MediaTooLarge, ProteusError
from proteus.preprocess.decode import decode
from tests.bugs.door import PICTURE, asked
from tests.door.test_chat import BLUE, RED, Models
from tests.preprocess.pictures import EVERY_FORMAT, LIMITS, encode, noise

CUTS = (1, 2, 7, 12, 13, 40, 64, 512)
# What ends a file without a pixel before it: the picture is whole.
HARMLESS = {("GIF", 1), ("GIF", 2)}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_picture_cut_short_is_the_clients_error(name: str, cut: int) -> None:
    data = encode(noise(160, 120), name)
    if (name, cut) in HARMLESS:
        assert decode(data[:-cut], LIMITS).shape == (120, 160, 3)
        return
    with pytest.raises(InvalidPicture, match="truncated or damaged"):
        decode(data[:-cut], LIMITS)


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_start_of_a_file_is_no_picture(name: str) -> None:
    data = encode(noise(160, 120), name)
    for length in (*range(0, 64, 3), 100, 200, 300):
        with pytest.raises(InvalidPicture):
            decode(data[:length], LIMITS)


def test_interlaced_and_progressive_pictures_are_not_shown_half_done() -> None:
    for data in (encode(noise(160, 120), "JPEG", progressive=True), encode(noise(160, 120), "GIF", interlace=1)):
        for share in (0.5, 0.8, 0.95):
            with pytest.raises(InvalidPicture):
                decode(data[: int(len(data) * share)], LIMITS)


def test_empty_and_random_bytes_are_no_picture() -> None:
    for data in (b"", b"\0", os.urandom(1), os.urandom(4_096), b"\xff\xd8" + os.urandom(4_096)):
        with pytest.raises(InvalidPicture):
            decode(data, LIMITS)


class Choosy(Models):
    """Takes every picture but one."""

    def __init__(self, error: ProteusError) -> None:
        super().__init__()
        self.error = error

    async def image_tokens(
        self, picture: bytes, key: bytes, context: Context, target_px: tuple[int, int] | None = None
    ) -> EncodedPicture:
        self.encode_error = self.error if picture == BLUE else None
        return await super().image_tokens(picture, key, context, target_px)


@pytest.mark.parametrize("error", [InvalidPicture("truncated", fix="send it whole"), MediaTooLarge("over memory")])
def test_picture_that_only_its_decoder_found_damaged_is_named_among_others(error: ProteusError) -> None:
    with pytest.raises(type(error), match=f"^{error.code}: picture 3: {error.what}"):
        asked(RED, RED, BLUE, RED, content=[PICTURE] * 4, models=Choosy(error))
