from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from proteus.door.pictures import Picture, read, sources, split
from proteus.door.request import ChatMessage
from proteus.errors import InvalidMedia, InvalidPicture, InvalidRequest, MediaTooLarge, ProteusError
from proteus.limits import ImageLimits
from tests.preprocess.pictures import LIMITS, encode, noise

RED, BLUE, GREEN = (encode(noise(16, 12, seed)) for seed in range(3))


def user(*parts: dict[str, Any]) -> ChatMessage:
    return ChatMessage.model_validate({"role": "user", "content": list(parts)})


def inline(data: bytes) -> dict[str, Any]:
    return {"type": "image", "data": base64.b64encode(data).decode()}


ATTACHED: dict[str, Any] = {"type": "image"}


def collect(messages: list[ChatMessage], attached: list[bytes], limits: ImageLimits) -> list[Picture]:
    """As the door does, with one place on the web."""
    web = {"https://cdn.test/a.png": RED}
    found = enumerate(sources(messages, attached, limits), start=1)
    return [read(source, number, web, limits) for number, source in found]


def test_pictures_come_in_the_order_of_the_parts() -> None:
    messages = [user(ATTACHED, inline(BLUE)), user({"type": "text", "text": "and"}, ATTACHED)]
    pictures = collect(messages, [RED, GREEN], LIMITS)
    assert [picture.data for picture in pictures] == [RED, BLUE, GREEN]


def test_equal_bytes_have_equal_digests_however_they_travel() -> None:
    one, two, three = collect([user(ATTACHED, inline(RED), inline(BLUE))], [RED], LIMITS)
    assert one.digest == two.digest != three.digest


def test_base64_may_hold_line_breaks() -> None:
    text = base64.encodebytes(RED).decode()
    assert "\n" in text
    (picture,) = collect([user({"type": "image", "data": text})], [], LIMITS)
    assert picture.data == RED


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "data": "data:image/png;base64," + base64.b64encode(RED).decode()},
        {"type": "image_url", "image_url": {"url": "data:text/html;base64," + base64.urlsafe_b64encode(RED).decode()}},
        {"type": "image_url", "image_url": {"url": "https://cdn.test/a.png"}},
    ],
)
def test_a_picture_is_the_same_however_it_comes(part: dict[str, Any]) -> None:
    (picture,) = collect([user(part)], [], LIMITS)
    assert (picture.data, picture.tier) == (RED, "auto")


def test_detail_is_the_tier_of_its_own_picture() -> None:
    parts = [
        {**ATTACHED, "detail": "low"},
        {"type": "image_url", "image_url": {"url": "https://x.test", "detail": "high"}},
    ]
    assert [source.tier for source in sources([user(*parts)], [RED], LIMITS)] == ["low", "high"]


@pytest.mark.parametrize("url", ["https://x.test/a.png", "HTTP://x.test", "file:///etc/passwd", "gopher://x.test:70/1"])
def test_whatever_names_a_scheme_is_left_to_the_fetcher(url: str) -> None:
    (source,) = sources([user({"type": "image_url", "image_url": {"url": url}})], [], LIMITS)
    assert (source.url, source.text) == (url, None)


@pytest.mark.parametrize(
    ("messages", "attached", "error", "words"),
    [
        ([user(ATTACHED)], [], InvalidRequest, ["1 attached", "holds 0"]),
        ([user(inline(RED))], [RED], InvalidRequest, ["0 attached", "holds 1"]),
        ([user(ATTACHED, ATTACHED)], [RED], InvalidRequest, ["2 attached", "holds 1"]),
        ([user(*[ATTACHED] * 5)], [RED] * 5, MediaTooLarge, ["5 pictures", "max_pictures = 4"]),
        ([user(ATTACHED)], [b""], InvalidPicture, ["0 bytes"]),
        ([user({"type": "image", "data": "%%%"})], [], InvalidMedia, ["picture 1: character 1 is not base64"]),
        ([user(inline(RED), {"type": "image", "data": "A"})], [], InvalidMedia, ["picture 2: ", "cut off"]),
        ([user({"type": "image", "data": "é"})], [], InvalidMedia, ["not base64"]),
        ([user({"type": "image", "data": "A" * 4_000_004})], [], MediaTooLarge, ["3,000,003 bytes", "max_bytes"]),
        ([user(inline(b"no picture"))], [], InvalidPicture, ["no known picture"]),
    ],
)
def test_error_names_what_limit_and_fix(
    messages: list[ChatMessage], attached: list[bytes], error: type[ProteusError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        collect(messages, attached, LIMITS)
    for word in [*words, "fix: "]:
        assert word in str(caught.value)


def test_attached_bytes_are_cut_at_their_lengths() -> None:
    assert split(b"abcdef", np.array([1, 0, 5]), LIMITS) == (b"a", b"", b"bcdef")
    assert split(b"abc", None, LIMITS) == (b"abc",)
    assert split(b"", None, LIMITS) == ()


@pytest.mark.parametrize("lengths", [[1, 1], [7], [], [-1, 4], [2**62, 2**62]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="image_bytes has 3 bytes"):
        split(b"abc", np.array(lengths, dtype=np.int64), LIMITS)


class Unread(np.ndarray[Any, Any]):
    """Lengths of which only the number may be looked at."""

    def __iter__(self) -> Any:
        raise AssertionError("read before they were counted")

    def tolist(self) -> Any:
        return list(iter(self))


def test_lengths_are_counted_before_they_are_read() -> None:
    lengths = np.zeros(LIMITS.max_pictures + 1, dtype=np.int64).view(Unread)
    with pytest.raises(MediaTooLarge, match=r"5 pictures in one request; limit: \[image\] max_pictures = 4"):
        split(b"", lengths, LIMITS)
