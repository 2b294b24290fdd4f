"""Pictures in every format and every way of the contract, asked of a real server; and what it tells of its work."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from proteus.client import Answer, Client, ServerError
from proteus.launcher import Server
from tests.preprocess.pictures import EVERY_FORMAT, encode, oriented
from tests.server.figures import metrics, until
from tests.server.wire import error_of

CHART = Path(__file__).parents[2] / "client" / "pictures" / "chart.png"
QUESTION = "Which bar is the tallest?"
LOSSLESS = {"PNG": {}, "BMP": {}, "TIFF": {}, "WEBP": {"lossless": True}}


@pytest.fixture(scope="module")
def chart() -> Image.Image:
    return Image.open(io.BytesIO(CHART.read_bytes())).convert("RGB")


@pytest.fixture(scope="module")
def expected(server: Server) -> Answer:
    with Client(server.ports.grpc_url) as client:
        return client.ask(QUESTION, CHART)


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_same_pixels_get_the_same_answer_in_every_lossless_format(
    server: Server, chart: Image.Image, expected: Answer, name: str
) -> None:
    with Client(server.ports.grpc_url) as client:
        assert client.ask(QUESTION, encode(chart, name, **LOSSLESS[name])).token_ids == expected.token_ids


@pytest.mark.parametrize("name", sorted(set(EVERY_FORMAT) - set(LOSSLESS) - {"GIF"}))
def test_lossy_formats_are_read_too(server: Server, chart: Image.Image, expected: Answer, name: str) -> None:
    with Client(server.ports.grpc_url) as client:
        assert client.ask(QUESTION, encode(chart, name, quality=95)).text == expected.text


@pytest.mark.parametrize("orientation", [3, 6])
def test_a_turned_picture_is_seen_upright(
    server: Server, chart: Image.Image, expected: Answer, orientation: int
) -> None:
    with Client(server.ports.grpc_url) as client:
        assert client.ask(QUESTION, oriented(chart, orientation, "PNG")).token_ids == expected.token_ids


def test_base64_data_uri_and_openai_parts_are_the_same_picture(server: Server, expected: Answer) -> None:
    plain = base64.b64encode(CHART.read_bytes()).decode()
    parts: list[dict[str, Any]] = [
        {"type": "image", "data": plain},
        {"type": "image", "data": base64.encodebytes(CHART.read_bytes()).decode()},
        {"type": "image", "data": f"data:image/jpeg;base64,{plain}"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{plain}", "detail": "high"}},
    ]
    with Client(server.ports.grpc_url) as client:
        for part in parts:
            messages = [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]
            assert client.chat(messages).token_ids == expected.token_ids


def test_detail_low_shrinks_a_large_picture_and_the_answer_stays_true(
    server: Server, chart: Image.Image, expected: Answer
) -> None:
    large = encode(chart.resize((1400, 1400), Image.Resampling.BICUBIC), "JPEG", quality=95)
    before = metrics(server).get("proteus_downscaled_total", 0.0)
    with Client(server.ports.grpc_url) as client:
        assert client.ask(QUESTION, large, detail="low").text == expected.text
        assert client.ask(QUESTION, large, detail="high").text == expected.text
    assert until(server, lambda now: now.get("proteus_downscaled_total", 0.0) >= before + 1)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, ["fetch_failed", "[fetch] hosts"]),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, ["fetch_failed"]),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, ["picture 1: ", "not base64"]),
        ({"type": "image", "data": "AAAA", "detail": "best"}, ["detail", "invalid_request"]),
        ({"type": "image_url", "image_url": {}}, ["image_url.url is missing"]),
    ],
)
def test_a_picture_that_cannot_come_in_is_refused_by_name(
    server: Server, part: dict[str, Any], words: list[str]
) -> None:
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]
    text = json.dumps({"messages": messages}).encode()
    error = error_of(server.ports.grpc_url, text, [])
    assert all(word in error for word in [*words, "fix: "]), error


def test_nothing_stays_reserved_after_a_storm_of_good_and_bad_requests(server: Server) -> None:
    good, cut = CHART.read_bytes(), CHART.read_bytes()[:-200]

    def ask(number: int) -> str:
        with Client(server.ports.grpc_url) as client:
            try:
                return client.ask(QUESTION, cut if number % 3 == 0 else good, tenant=f"tenant {number % 4}").text
            except ServerError as error:
                return str(error)

    admitted = 'proteus_admitted_total{latency_class="media"}'
    before = metrics(server).get(admitted, 0.0)
    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(ask, range(48)))
    assert all("invalid_picture" in text for text in told[::3])
    assert not any("invalid_picture" in text for number, text in enumerate(told) if number % 3)

    def nothing_is_held(now: Mapping[str, float]) -> bool:
        held = [value for name, value in now.items() if name.startswith("proteus_reserved{")]
        return now.get(admitted, 0.0) >= before + 48 and len(held) > 5 and not any(held)

    assert until(server, nothing_is_held)
    now = metrics(server)
    assert now['proteus_reserved_peak{resource="requests"}'] >= 1
    assert now["proteus_padding_waste"] == 0.0
