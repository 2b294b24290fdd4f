"""Pictures by HTTP, in front of a peer: answers, events, what goes to the server, and what goes wrong on the way."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.client.peer import Peer
from tests.gateway.running import in_front_of, running

PATH = "/v1/images/generations"
ASKED = {"model": "demo-draw", "prompt": "a red circle"}


def post(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(PATH, json=ASKED | fields)


def events(answer: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """Name and document of each."""
    found = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines:
            found.append((lines.get("event", ""), json.loads(lines["data"])))
    return found


def size_of(picture: dict[str, Any]) -> tuple[int, int]:
    return Image.open(io.BytesIO(base64.b64decode(picture["b64_json"], validate=True))).size


def test_the_whole_answer_tells_pictures_usage_and_cost(http: httpx.Client) -> None:
    answer = post(http, n=2, seed=7, size="96x64").json()
    assert [(picture["index"], picture["seed"], picture["image_index"]) for picture in answer["data"]] == [
        (0, 7, 0),
        (1, 7, 1),
    ]
    assert [size_of(picture) for picture in answer["data"]] == [(96, 64), (96, 64)]
    assert (answer["size"], answer["output_format"], answer["background"]) == ("96x64", "png", "opaque")
    usage = answer["usage"]
    assert usage["output_tokens"] == usage["output_tokens_details"]["image_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    told = answer["proteus"]
    assert (told["model"], told["pool"], told["usage"]["images"]) == ("demo-draw", "draw", 2)
    assert told["resources"]["images"] == 2
    assert told["price"]["amount"] > 0
    assert [picture["evaluations"] for picture in told["pictures"]] == [40, 40]
    assert told["stages_ms"]["denoise"] == 250.5


def test_the_server_is_told_who_asks_and_nothing_more(http: httpx.Client, peer: Peer) -> None:
    post(http, output_format="jpeg", output_compression=80, user="someone", service_tier="flex", deadline_ms=60_000)
    document = dict(peer.documents[-1])
    assert document.pop("request_id")
    assert 0 < document.pop("deadline_ms") <= 60_000
    assert document.pop("seed") >= 0
    assert document == {
        "prompt": "a red circle",
        "format": "jpeg",
        "quality": 80,
        "latency_class": "batch",
        "tenant": "local",
        "cache_scope": "local",
    }


@pytest.mark.parametrize("partial_images", [0, 1, 2, 3])
def test_a_stream_has_partial_images_and_then_the_picture(http: httpx.Client, partial_images: int) -> None:
    told = events(post(http, stream=True, partial_images=partial_images))
    *partials, (last_name, last) = told
    assert [name for name, _ in partials] == ["image_generation.partial_image"] * partial_images
    assert [event["partial_image_index"] for _, event in partials] == list(range(partial_images))
    assert all(name == event["type"] for name, event in told)
    assert (last_name, last["seed"] >= 0, last["proteus"]["usage"]["images"]) == ("image_generation.completed", True, 1)
    assert size_of(last) == (64, 64)


def test_of_several_pictures_each_is_completed_by_itself(http: httpx.Client) -> None:
    told = [event for _, event in events(post(http, stream=True, n=3, partial_images=1))]
    assert [event["index"] for event in told] == [0, 1, 2, 2, 1, 0]
    assert [("proteus" in event) for event in told] == [False] * 5 + [True]
    cost = http.post("/v1/cost", json={"model": "demo-draw", "prompt": "a red circle"}).json()["drawing"]
    assert [event["usage"]["output_tokens"] for event in told[3:]] == [cost["latent_tokens"]] * 3


@pytest.mark.parametrize("name", ["go away", "end early", "break off"])
def test_an_error_ends_a_stream_that_has_begun(peer: Peer, name: str) -> None:
    """Each at a gateway of its own: a server that broke off gets nothing new for a while."""
    with running(in_front_of(peer.url)) as url, httpx.Client(base_url=url) as http:
        told = events(post(http, prompt=name, n=2, stream=True, partial_images=1))
    assert [event["type"] for _, event in told[:-1]] != []
    assert told[-1][1]["error"]["code"] in ("unavailable", "internal", "incomplete")


def test_a_drawing_that_somebody_stopped_is_no_answer(http: httpx.Client) -> None:
    answer = post(http, prompt="stopped", n=2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


def test_a_refusal_of_the_server_is_told(http: httpx.Client) -> None:
    answer = post(http, prompt="refuse")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "demo"}, 404, "not_found"),
        ({"model": "dall-e-3"}, 404, "not_found"),
        ({"style": "vivid"}, 422, "unsupported_field"),
        ({"colour": "red"}, 400, "invalid_request"),
        ({"prompt": "red " * 200}, 400, "prompt_too_long"),
        ({"prompt": "red " * 20_000}, 400, "prompt_too_long"),
        ({"n": 8, "steps": 100, "sampler": "heun"}, 413, "media_too_large"),
    ],
)
def test_what_cannot_be_drawn_is_refused(http: httpx.Client, fields: dict[str, Any], status: int, code: str) -> None:
    answer = post(http, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
