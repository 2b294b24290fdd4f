"""Seen: pictures in base64 are refused because of line breaks, of a missing prefix, or of a prefix that is there twice.

Cause: a strict decoder behind a prefix that was cut off by hand. A lenient one is no better: it passes over what is no
base64 and gives other bytes. Right: however the same bytes are written they are the same picture, and what cannot be
read is refused with the reason and the number of the picture.
"""

from __future__ import annotations

import base64
import textwrap
from typing import Any

import pytest

from proteus.door.pictures import read, sources
from proteus.door.request import ChatMessage
from proteus.errors import InvalidMedia
from tests.preprocess.pictures import LIMITS, encode, noise

PNG = encode(noise(40, 30), "PNG")
PLAIN = base64.b64encode(PNG).decode()
URL_SAFE = base64.urlsafe_b64encode(PNG).decode()
WRITTEN = {
    "plain": PLAIN,
    "a line break every 76": base64.encodebytes(PNG).decode(),
    "a line break every 64, as PEM has": "\r\n".join(textwrap.wrap(PLAIN, 64)),
    "url-safe": URL_SAFE,
    "without padding": URL_SAFE.rstrip("="),
    "with a prefix": f"data:image/png;base64,{PLAIN}",
    "with the prefix of another type": f"data:image/jpeg;base64,{PLAIN}",
    "with a prefix and line breaks": f"data:image/png;base64,\n{base64.encodebytes(PNG).decode()}",
}
TWICE = f"data:image/png;base64,data:image/png;base64,{PLAIN}"


def parts(text: str) -> list[dict[str, Any]]:
    """The two places of a request that take base64."""
    return [{"type": "image", "data": text}, {"type": "image_url", "image_url": {"url": text}}]


def pictures(*content: dict[str, Any]) -> list[bytes]:
    message = ChatMessage.model_validate({"role": "user", "content": list(content)})
    found = enumerate(sources([message], [], LIMITS), start=1)
    return [read(source, number, {}, LIMITS).data for number, source in found]


@pytest.mark.parametrize("way", WRITTEN)
def test_the_picture_is_the_same_however_its_base64_is_written(way: str) -> None:
    assert pictures(*parts(WRITTEN[way])) == [PNG, PNG]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TWICE, "prefix twice"),
        (PLAIN[:100] + "*" + PLAIN[100:], "character 101 is not base64"),
        (PLAIN[:100] + "%2B" + PLAIN[100:], "character 101 is not base64"),
        (PLAIN.rstrip("=")[:5], "cut off"),
        ("data:image/png," + PLAIN, "not base64"),
        ("data:image/png;base64," + "  \n ", "empty"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason_and_the_number(text: str, reason: str) -> None:
    for part in parts(text):
        with pytest.raises(InvalidMedia, match=f"^invalid_media: picture 2: .*{reason}.*; fix: "):
            pictures(parts(PLAIN)[0], part)
