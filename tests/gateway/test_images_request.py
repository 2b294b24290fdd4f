"""Every field of OpenAI's image requests is served, taken with one value, or refused by name; ours are `draw`'s."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai.types.image_generate_params import ImageGenerateParamsBase, ImageGenerateParamsStreaming

from proteus.deployment import Deployment
from proteus.errors import InvalidRequest
from proteus.gateway.errors import UnsupportedField
from proteus.gateway.openai.images_request import FIELDS, ImagesRequest, preview_every
from proteus.gateway.openai.images_schema import REQUEST
from proteus.gateway.order import Tenant, Visit
from proteus.gateway.planning.artist import Artist
from proteus.gateway.planning.models import Models
from tests.gateway.running import DEMO

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
OPENAI = [*ImageGenerateParamsBase.__annotations__, *ImageGenerateParamsStreaming.__annotations__]
ASKED = {"model": "demo-draw", "prompt": "a red circle"}
REFUSED_VALUES = [
    ("style", "vivid"),
    ("svg", {"model": "x"}),
    ("frame_count", 4),
    ("frame_duration_ms", 100),
    ("complexity", "low"),
    ("quality", "high"),
    ("quality", "standard"),
    ("moderation", "low"),
    ("background", "transparent"),
    ("response_format", "url"),
    ("output_format", "gif"),
    ("output_format", "svg"),
]
WRONG_VALUES = [
    ("partial_images", 4),
    ("partial_images", -1),
    ("partial_images", True),
    ("n", 0),
    ("n", 9),
    ("n", "2"),
    ("size", "64"),
    ("size", "4096x4096"),
    ("output_format", "bmp"),
    ("output_compression", 0),
    ("output_compression", 50),  # of a PNG
    ("steps", 0),
    ("guidance", 0.5),
    ("seed", -1),
    ("stream", "yes"),
    ("service_tier", "fast"),
    ("user", "u" * 129),
    ("prompt", ""),
    ("prompt", ["a"]),
    ("model", 7),
    ("cache_scope", "another's"),
    ("request_id", "mine"),
    ("tenant", "another"),
    ("preview_every", 1),
    ("format", "png"),
]


@pytest.fixture(scope="module")
def artist() -> Artist:
    """The demo's."""
    deployment = Deployment.load(DEMO)
    assert deployment.gateway is not None
    return Models(deployment, deployment.gateway).artist("demo-draw", Tenant(name="local", cache_scope="local"))


def drawing(artist: Artist, **fields: Any) -> dict[str, Any]:
    """What the document asks `draw` for."""
    return ImagesRequest.parse(ASKED | fields).drawing(artist).model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    "name", [*ImageGenerateParamsBase.__annotations__, *ImageGenerateParamsStreaming.__annotations__]
)
def test_every_field_of_openai_has_its_place(name: str) -> None:
    places = [name in FIELDS.served, name in FIELDS.neutral, name in FIELDS.refused]
    assert places.count(True) == 1


def test_the_schema_tells_of_every_field_that_is_taken() -> None:
    schema = REQUEST["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == FIELDS.served | set(FIELDS.neutral)


@pytest.mark.parametrize("name", sorted(FIELDS.served | set(FIELDS.neutral) | FIELDS.refused))
def test_the_page_tells_of_every_field(name: str) -> None:
    assert f"`{name}`" in PAGE.partition("## Drawing")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("name", "value"), REFUSED_VALUES)
def test_what_only_openai_serves_is_refused_by_name(artist: Artist, name: str, value: object) -> None:
    with pytest.raises(UnsupportedField) as refused:
        drawing(artist, **{name: value})
    assert refused.value.param == name
    assert name in str(refused.value)


@pytest.mark.parametrize(("name", "value"), WRONG_VALUES)
def test_a_wrong_value_is_refused_by_name(artist: Artist, name: str, value: object) -> None:
    asked = {"stream": True, **ASKED, name: value}
    with pytest.raises(InvalidRequest) as refused:
        artist.plan(Visit(path="", address=""), ImagesRequest.parse(asked).drawing(artist))
    assert name in str(refused.value)


def test_partial_images_want_a_stream(artist: Artist) -> None:
    with pytest.raises(InvalidRequest, match="without a stream"):
        drawing(artist, partial_images=1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, {}),
        ({"size": "auto", "quality": "auto", "background": "opaque", "response_format": "b64_json"}, {}),
        (dict.fromkeys((*FIELDS.served - set(ASKED), *FIELDS.neutral, *FIELDS.refused)), {}),
        ({"size": "96x64", "n": 2}, {"size": "96x64", "n": 2}),
        ({"output_format": "jpeg", "output_compression": 50}, {"format": "jpeg", "quality": 50}),
        ({"output_compression": 100}, {"quality": 100}),
        ({"service_tier": "flex"}, {"latency_class": "batch"}),
        ({"stream": True, "partial_images": 3, "steps": 20}, {"steps": 20, "preview_every": 5}),
        (
            {"seed": 7, "guidance": 1.5, "sampler": "heun", "negative_prompt": "blue", "first_index": 2},
            {"seed": 7, "guidance": 1.5, "sampler": "heun", "negative_prompt": "blue", "first_index": 2},
        ),
        ({"user": "u", "safety_identifier": "s", "moderation": "auto"}, {}),
    ],
)
def test_openais_words_become_those_of_draw(artist: Artist, fields: dict[str, Any], words: dict[str, Any]) -> None:
    assert drawing(artist, **fields) == {"prompt": "a red circle", **words}


def test_the_safety_identifier_goes_before_the_user() -> None:
    assert ImagesRequest.parse(ASKED | {"user": "u"}).user == "u"
    assert ImagesRequest.parse(ASKED | {"user": "u", "safety_identifier": "s"}).user == "s"


@pytest.mark.parametrize("partial_images", [1, 2, 3])
def test_never_more_previews_than_asked_for_and_as_many_as_fit(partial_images: int) -> None:
    for steps in range(1, 101):
        shown = range(preview_every(partial_images, steps), steps, preview_every(partial_images, steps))
        assert len(shown) <= partial_images
        assert len(shown) == partial_images or steps <= partial_images * (partial_images + 1)
