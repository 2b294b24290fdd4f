"""What /v1/cost says before is what the server counts after, to the token and to the last digit of a price."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from proteus.client import Client
from proteus.deployment import Deployment
from proteus.launcher import Server
from tests.gateway.running import DEMO, in_front_of, running
from tests.gateway.test_models import light_file

COST, CHAT, IMAGES = "/v1/cost", "/v1/chat/completions", "/v1/images/generations"


def picture(width_px: int, height_px: int, colour: str, kind: str = "PNG", **more: Any) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (width_px, height_px), colour).save(file, kind)
    url = "data:;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url, **more}}


def asked(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": list(content)}], "max_tokens": 8, **fields}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.fixture(scope="module")
def http(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The demo's gateway, which has the same server as a light model of the name `tiny`."""
    light = {
        "deployment": str(light_file(tmp_path_factory.mktemp("light"))),
        "servers": [{"grpc": server.ports.grpc_url}],
    }
    deployment = in_front_of(server.ports.grpc_url, deployment=Deployment.load(DEMO), light=light)
    with running(deployment) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


RED = picture(120, 90, "red")
QUESTIONS = [
    asked(text("What colour is a tomato?")),
    asked(RED, text("What colour is it?")),
    asked(text("Which of"), RED, text("and"), picture(1600, 1200, "blue", "JPEG", detail="low"), text("is red?")),
    asked(picture(640, 20 * 32, "green", "WEBP", detail="high"), text("Describe it."), n=3),
    asked(RED, text("What colour is it?"), model="auto"),
    asked(text("Hello"), model="auto"),
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_was_told_before_is_what_is_counted_after(http: httpx.Client, question: dict[str, Any]) -> None:
    told, answer = http.post(COST, json=question).json(), http.post(CHAT, json=question).json()
    ours, used = answer["proteus"], answer["proteus"]["usage"]
    assert (told["text_tokens"], told["visual_tokens"]) == (used["text_tokens"], used["visual_tokens"])
    assert told["resources"] == ours["resources"]
    assert (told["model"], told["pool"], told.get("auto")) == (answer["model"], ours["pool"], ours.get("auto"))
    for before, after in zip(told["pictures"], ours["media"], strict=True):
        assert {name: before[name] for name in ("bucket", "tier", "downscaled", "visual_tokens")} == {
            name: after[name] for name in ("bucket", "tier", "downscaled", "visual_tokens")
        }
    assert 0 < ours["price"]["amount"] <= told["price"]["amount"]


def test_a_price_is_of_what_was_used_and_cached_tokens_cost_less(http: httpx.Client) -> None:
    question = asked(picture(77, 55, "yellow"), text("What colour is the thing in the middle of it?"))
    first, second = (http.post(CHAT, json=question).json()["proteus"] for _ in range(2))
    assert (first["usage"]["cached_tokens"], second["usage"]["cached_tokens"] > 36) == (0, True)
    assert second["price"]["amount"] < first["price"]["amount"]
    used = first["usage"]
    amount = 0.0002 * used["text_tokens"] + 0.0004 * used["visual_tokens"] + 0.0008 * used["output_tokens"]
    assert first["price"]["amount"] == pytest.approx(amount / 1000 + 0.0001, rel=1e-12)


def test_a_drawing_is_counted_as_it_was_told(http: httpx.Client) -> None:
    drawing = {"model": "demo-draw", "prompt": "a red circle", "size": "64x64", "n": 2, "steps": 3, "seed": 7}
    told, answer = http.post(COST, json=drawing).json(), http.post(IMAGES, json=drawing).json()
    used = answer["proteus"]["usage"]
    assert told["text_tokens"] == used["text_tokens"]
    for name in ("images", "evaluations", "token_passes"):
        assert told["resources"][name] == used[name]
    assert told["price"] == answer["proteus"]["price"]


def test_what_is_told_of_limits_is_what_the_server_publishes(http: httpx.Client, server: Server) -> None:
    with Client(server.ports.grpc_url) as client:
        published = client.contract()
    told = http.get("/v1/contract").json()
    assert {name: told[name] for name in published} == published


def test_light_and_full_model_are_chosen_by_the_question(http: httpx.Client) -> None:
    answers = [
        http.post(CHAT, json=asked(RED, text(question), model="auto")).json()
        for question in ("What colour is it?", "What number is written?")
    ]
    assert [answer["model"] for answer in answers] == ["tiny", "demo"]
    assert [answer["proteus"]["auto"]["because"] for answer in answers] == [
        "asks for a colour; 120x90 px",
        "asks to read; 120x90 px",
    ]
