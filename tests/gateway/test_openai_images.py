"""The real OpenAI SDK has pictures drawn: at once, streamed, from threads and from asyncio."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator

import openai
import pytest
from openai.types import ImageGenCompletedEvent, ImageGenPartialImageEvent
from PIL import Image

from tests.client.draw_scripts import STEPS, picture

PROMPT = "a red circle"


@pytest.fixture
def client(gateway_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def pixels(text: str | None) -> bytes:
    assert text is not None
    return Image.open(io.BytesIO(base64.b64decode(text))).tobytes()


def expected(index: int, step: int = STEPS, size: tuple[int, int] = (64, 64)) -> bytes:
    return Image.open(io.BytesIO(picture(index, step, size, "png"))).tobytes()


def test_pictures_at_once(client: openai.OpenAI) -> None:
    answer = client.images.generate(
        model="demo-draw", prompt=PROMPT, n=2, size="64x64", response_format="b64_json", extra_body={"seed": 3}
    )
    assert answer.data is not None
    assert [pixels(image.b64_json) for image in answer.data] == [expected(0), expected(1)]
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens_details is not None
    assert (answer.size, answer.output_format, answer.quality) == ("64x64", "png", None)


def test_a_stream_of_partial_images(client: openai.OpenAI) -> None:
    stream = client.images.generate(
        model="demo-draw", prompt=PROMPT, n=2, partial_images=2, stream=True, output_format="webp"
    )
    told = list(stream)
    partials = [event for event in told if isinstance(event, ImageGenPartialImageEvent)]
    done = [event for event in told if isinstance(event, ImageGenCompletedEvent)]
    assert [event.partial_image_index for event in partials] == [0, 0, 1, 1]
    assert [event.model_extra["index"] for event in done if event.model_extra] == [1, 0]
    for event in told:  # exactly as the SDK's types have them
        type(event).model_validate(event.model_dump(warnings="error"))
        assert (event.background, event.quality, event.output_format, event.size) == ("opaque", "auto", "webp", "64x64")
    assert done[0].usage.input_tokens_details.image_tokens == 0


def test_from_asyncio(gateway_url: str) -> None:
    async def both() -> tuple[int, int]:
        async with openai.AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0) as asynchronous:
            whole = await asynchronous.images.generate(model="demo-draw", prompt=PROMPT)
            stream = await asynchronous.images.generate(model="demo-draw", prompt=PROMPT, stream=True, partial_images=3)
            return len(whole.data or ()), len([event async for event in stream])

    assert asyncio.run(both()) == (1, 4)


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"quality": "hd"}, openai.UnprocessableEntityError, "unsupported_field"),
        ({"model": "dall-e-2"}, openai.NotFoundError, "not_found"),
        ({"size": "1x1"}, openai.BadRequestError, "invalid_request"),
    ],
)
def test_refusals_are_the_sdks_errors(
    client: openai.OpenAI, fields: dict[str, str], kind: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(kind) as refused:
        client.images.generate(**{"model": "demo-draw", "prompt": PROMPT} | fields)  # type: ignore[call-overload]
    assert refused.value.code == code


def test_an_error_in_a_stream_is_raised(client: openai.OpenAI) -> None:
    stream = client.images.generate(model="demo-draw", prompt="break off", n=2, partial_images=1, stream=True)
    with pytest.raises(openai.APIError) as ended:
        list(stream)
    assert ended.value.code == "internal"
