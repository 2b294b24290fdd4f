"""A check in front of the real server: blurred uploads are encoded, blurred drawings keep their settings."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from client import moderation_example
from proteus.client import Client
from proteus.generation.encode import settings_of
from proteus.launcher import Server
from tests.gateway.running import in_front_of, running
from tests.server.test_ask import CHART, QUESTION

DRAWN_PX, PROMPT = (64, 64), "a red circle"


@pytest.fixture(scope="module")
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    """Behind a check that refuses a word, and blurs every picture above 60x60 px."""
    settings = {"before": True, "after": True, "timeout_ms": 10_000, "on_failure": "refuse", "max_at_once": 8}
    with moderation_example.server(0, {"violence": ["bomb"]}, (60, 60)) as check:
        thread = threading.Thread(target=check.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{check.server_port}/check"
        with (
            running(in_front_of(server.ports.grpc_url, moderation=settings | {"url": url})) as listening,
            openai.OpenAI(base_url=f"{listening}/v1", api_key="none", max_retries=0) as client,
        ):
            yield client
        check.shutdown()
        thread.join()


def told(answer: Any) -> dict[str, Any]:
    return answer.model_extra["proteus"]["moderation"]  # type: ignore[no-any-return]


def test_a_blurred_picture_is_read_in_place_of_the_clients(sdk: openai.OpenAI) -> None:
    url = f"data:image/png;base64,{base64.b64encode(CHART.read_bytes()).decode()}"
    parts: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    answer = sdk.chat.completions.create(model="demo", messages=[{"role": "user", "content": parts}], max_tokens=8)
    assert told(answer)["before"] == {"verdict": "blur", "category": "large"}
    assert answer.usage is not None
    assert answer.model_extra is not None
    resources = answer.model_extra["proteus"]["resources"]
    assert resources["media_bytes"] != CHART.stat().st_size
    assert answer.usage.prompt_tokens == resources["text_tokens"] + resources["visual_tokens"]


def test_a_stream_that_is_held_back_says_the_same(server: Server, sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "What colour is the circle?"}], stream=True
    )
    text = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
    with Client(server.ports.grpc_url) as client:
        assert text == client.ask("What colour is the circle?").text


def test_a_drawing_is_blurred_and_keeps_its_settings(server: Server, sdk: openai.OpenAI) -> None:
    answer = sdk.images.generate(model="demo-draw", prompt=PROMPT, extra_body={"seed": 7, "steps": 4})
    blurred = base64.b64decode((answer.data or [])[0].b64_json or "")
    with Client(server.ports.grpc_url) as client:
        sharp = client.draw(PROMPT, seed=7, steps=4).pictures[0]
    assert told(answer)["after"] == {"verdict": "blur", "category": "large"}
    assert blurred != sharp.data
    assert settings_of(blurred) == settings_of(sharp.data)
    assert Image.open(io.BytesIO(blurred)).size == DRAWN_PX


def test_a_refused_prompt_is_the_sdks_error(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        sdk.images.generate(model="demo-draw", prompt="a bomb")
    assert refused.value.code == "content_refused"
