"""The OpenAI SDK through the gateway gets the pictures that our own client gets straight from the server."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import ImageGenCompletedEvent, ImageGenPartialImageEvent
from PIL import Image

from proteus.client import Client, Drawing
from proteus.launcher import Server
from tests.gateway.running import in_front_of, running

PROMPT = "a red circle at the top left on a white background"
MODEL = "demo-draw"


@pytest.fixture(scope="module")
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with (
        running(in_front_of(server.ports.grpc_url)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def directly(server: Server, **options: Any) -> Drawing:
    with Client(server.ports.grpc_url) as client:
        return client.draw(PROMPT, **options)


def decoded(text: str | None) -> bytes:
    assert text is not None
    return base64.b64decode(text, validate=True)


@pytest.mark.parametrize(
    ("words", "ours", "options"),
    [
        ({"n": 2}, {"seed": 7, "steps": 6}, {"n": 2, "seed": 7, "steps": 6}),
        (
            {"size": "96x64", "output_format": "jpeg", "output_compression": 70},
            {"seed": 7, "steps": 4, "guidance": 1.0, "sampler": "dpmpp_2m"},
            {
                "size": "96x64",
                "format": "jpeg",
                "quality": 70,
                "seed": 7,
                "steps": 4,
                "guidance": 1.0,
                "sampler": "dpmpp_2m",
            },
        ),
        (
            {"output_format": "webp"},
            {"seed": 3, "steps": 4, "first_index": 2, "negative_prompt": "blue"},
            {"format": "webp", "seed": 3, "steps": 4, "first_index": 2, "negative_prompt": "blue"},
        ),
    ],
)
def test_pictures_and_usage_are_those_of_our_client(
    server: Server, sdk: openai.OpenAI, words: dict[str, Any], ours: dict[str, Any], options: dict[str, Any]
) -> None:
    answer = sdk.images.generate(model=MODEL, prompt=PROMPT, **words, extra_body=ours)
    wanted = directly(server, **options)
    assert [decoded(picture.b64_json) for picture in answer.data or ()] == [one.data for one in wanted.pictures]
    assert answer.usage is not None
    assert answer.model_extra is not None
    assert answer.usage.input_tokens == wanted.usage.text_tokens
    assert answer.usage.output_tokens == wanted.usage.latent_tokens * wanted.usage.images
    told = answer.model_extra["proteus"]
    assert told["usage"]["token_passes"] == wanted.usage.token_passes == told["resources"]["token_passes"]
    assert told["resources"]["evaluations"] == wanted.usage.evaluations


def test_a_stream_ends_with_the_same_picture(server: Server, sdk: openai.OpenAI) -> None:
    stream = sdk.images.generate(
        model=MODEL, prompt=PROMPT, stream=True, partial_images=2, extra_body={"seed": 11, "steps": 12}
    )
    *partials, last = list(stream)
    assert all(isinstance(event, ImageGenPartialImageEvent) for event in partials)
    assert [event.partial_image_index for event in partials] == list(range(len(partials)))  # type: ignore[union-attr]
    assert len(partials) <= 2
    for event in partials:
        assert Image.open(io.BytesIO(decoded(event.b64_json))).format == "PNG"
    assert isinstance(last, ImageGenCompletedEvent)
    assert decoded(last.b64_json) == directly(server, seed=11, steps=12).pictures[0].data


def test_a_seed_that_the_gateway_chose_draws_the_picture_again(server: Server, sdk: openai.OpenAI) -> None:
    picture = (sdk.images.generate(model=MODEL, prompt=PROMPT, extra_body={"steps": 4}).data or [])[0]
    assert picture.model_extra is not None
    again = directly(server, seed=picture.model_extra["seed"], steps=4)
    assert again.pictures[0].data == decoded(picture.b64_json)
