"""Every mistake in a request to draw is named: field, value, limit with its key, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proteus.deployment import Deployment
from proteus.door.draw_request import DrawRequest, Wish
from proteus.errors import InvalidRequest, PromptTooLong, ProteusError
from proteus.limits import DrawLimits

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml").draw
assert DEMO is not None
LIMITS = DrawLimits.model_validate(
    DEMO.model_dump() | {"formats": ["png", "jpeg"], "max_request_bytes": 5_000, "max_prompt_bytes": 100}
)


def document(**fields: Any) -> bytes:
    return json.dumps({"prompt": "a red circle", **fields}).encode()


def wish(data: bytes) -> Wish:
    return Wish.of(DrawRequest.parse(data, LIMITS), LIMITS)


def test_only_a_prompt_must_be_there() -> None:
    assert wish(document()) == Wish(
        width_px=64, height_px=64, steps=20, guidance=2.0, sampler="euler", n=1, format="png", quality=90
    )


def test_what_is_asked_for_is_taken() -> None:
    fields = {"size": "96x64", "steps": 1, "guidance": 1, "sampler": "heun", "n": 8, "format": "jpeg", "quality": 1}
    assert wish(document(**fields)) == Wish(
        width_px=96, height_px=64, steps=1, guidance=1.0, sampler="heun", n=8, format="jpeg", quality=1
    )
    assert wish(document(size="96x64")).size == "96x64"


@pytest.mark.parametrize("field", ["size", "steps", "guidance", "sampler", "seed", "format", "quality", "deadline_ms"])
def test_null_is_as_a_field_left_out(field: str) -> None:
    assert wish(document(**{field: None})) == wish(document())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ""}, ["prompt is empty", "say what to draw"]),
        ({"prompt": " \n\t\u00a0"}, ["prompt is empty"]),
        ({"prompt": None}, ["prompt = null"]),
        ({"prompt": ["a"]}, ['prompt = ["a"]', "valid string"]),
        ({"negative_prompt": None}, ["negative_prompt = null"]),
        ({"size": ""}, ['size = ""', "WIDTHxHEIGHT"]),
        ({"size": "64"}, ['size = "64"', "WIDTHxHEIGHT", '"64x64"']),
        ({"size": "64X64"}, ['size = "64X64"', "WIDTHxHEIGHT"]),
        ({"size": "64x64 "}, ["WIDTHxHEIGHT"]),
        ({"size": "-64x64"}, ["WIDTHxHEIGHT"]),
        ({"size": "0x64"}, ["WIDTHxHEIGHT"]),
        ({"size": "٦٤x٦٤"}, ["WIDTHxHEIGHT"]),
        ({"size": "9" * 4_000 + "x64"}, ["WIDTHxHEIGHT", "…"]),
        ({"size": "\x1b[2J\n64x64"}, [r"\x1b[2J\n64x64", "WIDTHxHEIGHT"]),
        ({"size": 64}, ["size = 64", "valid string"]),
        ({"size": "65x64"}, ['size = "65x64"', "[draw] side_multiple_px = 32", '"64x64"']),
        ({"size": "64x80"}, ['size = "64x80"', "[draw] side_multiple_px = 32"]),
        ({"size": "32x64"}, ['size = "32x64"', "[draw] min_side_px = 64"]),
        ({"size": "64x128"}, ['size = "64x128"', "[draw] max_side_px = 96"]),
        ({"size": "99968x99968"}, ["[draw] max_side_px = 96"]),
        ({"steps": 0}, ["steps = 0", "1 to [draw] max_steps = 100"]),
        ({"steps": -1}, ["steps = -1", "[draw] max_steps = 100"]),
        ({"steps": 101}, ["steps = 101", "[draw] max_steps = 100"]),
        ({"steps": 1000}, ["steps = 1,000", "[draw] max_steps = 100"]),
        ({"steps": 2**63}, ["steps = 9223372036854775808"]),
        ({"steps": 20.0}, ["steps = 20.0", "valid integer"]),
        ({"steps": "20"}, ['steps = "20"', "valid integer"]),
        ({"steps": True}, ["steps = true"]),
        ({"guidance": float("nan")}, ["guidance = nan", "[draw] max_guidance = 20"]),
        ({"guidance": float("inf")}, ["guidance = inf", "[draw] max_guidance = 20"]),
        ({"guidance": 0.99}, ["guidance = 0.99", "1 (none) to [draw] max_guidance = 20"]),
        ({"guidance": -3}, ["guidance = -3"]),
        ({"guidance": 20.5}, ["guidance = 20.5", "[draw] max_guidance = 20"]),
        ({"guidance": 10**400}, ["guidance = "]),
        ({"guidance": "3"}, ['guidance = "3"', "valid number"]),
        ({"sampler": "ancestral"}, ['sampler = "ancestral"', "'euler', 'ddim', 'heun' or 'dpmpp_2m'"]),
        ({"sampler": "Euler"}, ['sampler = "Euler"']),
        ({"seed": -1}, ["seed = -1", "greater than or equal to 0"]),
        ({"seed": 2**63}, ["seed = 9223372036854775808", "less than"]),
        ({"seed": 1.5}, ["seed = 1.5"]),
        ({"seed": {"state": [1, 2]}}, ["seed = {", "valid integer"]),
        ({"first_index": -1}, ["first_index = -1"]),
        ({"first_index": 2**31}, ["first_index = 2147483648", "less than or equal to 2147483647"]),
        ({"n": 0}, ["n = 0", "1 to [draw] max_images = 8"]),
        ({"n": 9}, ["n = 9", "[draw] max_images = 8"]),
        ({"format": "gif"}, ['format = "gif"', "'png', 'jpeg' or 'webp'"]),
        ({"format": "webp"}, ['format = "webp"', "[draw] formats = png, jpeg"]),
        ({"quality": 0}, ["quality = 0"]),
        ({"quality": 101}, ["quality = 101", "less than or equal to 100"]),
        ({"preview_every": -1}, ["preview_every = -1"]),
        ({"preview_by": "magic"}, ['preview_by = "magic"', "'linear' or 'decoder'"]),
        ({"latency_class": "text"}, ['latency_class = "text"', "'interactive' or 'batch'"]),
        ({"deadline_ms": 0}, ["deadline_ms = 0"]),
        ({"request_id": ""}, ['request_id = ""']),
        ({"colour": "red"}, ["unknown field colour", "remove the field"]),
        ({"Steps": 3}, ["unknown field Steps"]),
        ({"\x1b[31mred\n": 3}, [r"unknown field \x1b[31mred\n; "]),
        ({"\u202e": 3}, [r"unknown field \u202e; "]),
        ({"\x1b" * 400: 3}, [r"unknown field \x1b\x1b", "…"]),
        ({"colour": 1, "seed": -1}, ["and 1 more"]),
    ],
)
def test_a_mistake_is_named_with_field_value_limit_and_fix(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wish(document(**fields))
    for word in [*words, "invalid_request: ", "fix: "]:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable(), "it would move the cursor of whoever reads it"


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_a_text_of_too_many_bytes_is_too_long(field: str) -> None:
    assert wish(document(**{field: "é" * 50}))
    with pytest.raises(PromptTooLong, match=rf"{field} has 102 bytes; limit: \[draw\] max_prompt_bytes = 100; fix: "):
        wish(document(**{field: "é" * 51}))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["not JSON"]),
        (b"a red circle", ["not JSON"]),
        (b"[]", ["the request = []"]),
        (b"{}", ["prompt is missing", "add the field"]),
        (b'{"prompt": "\\ud800"}', ["not JSON"]),
        (b'{"prompt": "\xe9"}', ["not UTF-8 (byte 12)"]),
        (b"[" * 4_000, ["not JSON"]),
        (b'{"prompt": "' + b"a" * 5_000 + b'"}', ["5,014 bytes", "[draw] max_request_bytes = 5,000", "shorter"]),
    ],
)
def test_what_is_no_document_is_said_so(data: bytes, words: list[str]) -> None:
    with pytest.raises(ProteusError) as caught:
        wish(data)
    for word in [*words, "fix: "]:
        assert word in str(caught.value)


def test_area_is_limited_besides_the_sides() -> None:
    limits = LIMITS.model_copy(update={"max_pixels": 96 * 64})
    with pytest.raises(InvalidRequest, match=r'size = "96x96"; limit: width x height at most \[draw\] max_pixels = 6,'):
        Wish.of(DrawRequest.parse(document(size="96x96"), limits), limits)
