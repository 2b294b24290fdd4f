"""Bad input over the wire gets an error of a fixed code that names what, the limit and the fix, and harms nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proteus.client import Client
from proteus.launcher import Server
from tests.server.test_bad_requests import LEAK
from tests.server.test_draw import PROMPT, files
from tests.server.wire import error_of


def document(**fields: Any) -> bytes:
    return json.dumps({"prompt": PROMPT, **fields}).encode()


def fields(**given: Any) -> tuple[bytes, tuple[str, ...]]:
    """A document with one field wrong: the error names it."""
    return document(**given), ("invalid_request", *given)


BAD: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty prompt": fields(prompt=""),
    "blank prompt": fields(prompt=" \n\t"),
    "no prompt": (b"{}", ("invalid_request", "prompt")),
    "null prompt": fields(prompt=None),
    "prompt of other text encoder tokens": (document(prompt="red " * 40), ("prompt_too_long", "prompt", "limit: ")),
    "prompt of too many bytes": (document(prompt="a" * 5_000), ("prompt_too_long", "[draw] max_prompt_bytes")),
    "negative prompt too long": (document(negative_prompt="red " * 40), ("prompt_too_long", "negative_prompt")),
    "document of too many bytes": (document(prompt="a" * 70_000), ("invalid_request", "[draw] max_request_bytes")),
    "size no size": fields(size="big"),
    "size a number": fields(size=32),
    "size not a multiple": (document(size="33x32"), ("invalid_request", "[draw] side_multiple_px = 8")),
    "size too small": (document(size="8x32"), ("invalid_request", "[draw] min_side_px")),
    "size too large": (document(size="56x32"), ("invalid_request", "[draw] max_side_px")),
    "steps 0": (document(steps=0), ("invalid_request", "steps = 0", "[draw] max_steps")),
    "steps 1000": (document(steps=1000), ("invalid_request", "steps = 1,000", "[draw] max_steps = 100")),
    "steps a half": fields(steps=0.5),
    "guidance not a number": (document(guidance=float("nan")), ("invalid_request", "guidance", "[draw] max_guidance")),
    "guidance without end": (document(guidance=float("inf")), ("invalid_request", "guidance", "[draw] max_guidance")),
    "guidance under 1": (document(guidance=0.5), ("invalid_request", "guidance = 0.5", "[draw] max_guidance")),
    "guidance over": (document(guidance=20.1), ("invalid_request", "guidance = 20.1", "[draw] max_guidance = 20")),
    "unknown sampler": (document(sampler="plms"), ("invalid_request", "sampler", "euler", "dpmpp_2m")),
    "seed below 0": fields(seed=-1),
    "seed too large": fields(seed=2**63),
    "first_index below 0": fields(first_index=-1),
    "n 0": (document(n=0), ("invalid_request", "n = 0", "[draw] max_images")),
    "n 9": (document(n=9), ("invalid_request", "n = 9", "[draw] max_images = 8")),
    "unknown format": (document(format="gif"), ("invalid_request", "format", "png")),
    "quality 0": fields(quality=0),
    "preview_every below 0": fields(preview_every=-1),
    "preview_by magic": fields(preview_by="magic"),
    "deadline 0": fields(deadline_ms=0),
    "more evaluations than a request may have": (
        document(n=8, steps=100, sampler="heun"),
        ("media_too_large", "[draw.admission.request] evaluations"),
    ),
    "unknown field": (document(colour="red"), ("invalid_request", "unknown field colour")),
    "another door's field": (document(messages=[]), ("invalid_request", "unknown field messages")),
    "request_id of nothing": fields(request_id=""),
    "stop and more": (b'{"stop": {"request_id": "a"}, "prompt": "a"}', ("invalid_request", "prompt")),
    "stop without an id": (b'{"stop": {}}', ("invalid_request", "stop.request_id")),
    "not UTF-8": (document(prompt="\u00ff").replace(b"\\u00ff", b"\xff\xfe"), ("invalid_request", "UTF-8")),
    "lone surrogate": (document(prompt="\ud800"), ("invalid_request",)),
    "not JSON": (b"a red circle", ("invalid_request", "JSON")),
    "nothing": (b"", ("invalid_request", "JSON")),
    "JSON list": (b"[]", ("invalid_request",)),
    "deep JSON": (b"[" * 60_000, ("invalid_request",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_a_clear_error(draw_server: Server, name: str) -> None:
    text, words = BAD[name]
    error = error_of(draw_server.ports.grpc_url, text, [], model="draw")
    assert error, "the server accepted it"
    for word in (*words, "fix: "):
        assert word in error
    assert error.startswith(f"{words[0]}: ") or f"] {words[0]}: " in error
    assert not LEAK.search(error), error
    assert len(error) < 600, "an error is not an echo"


def test_an_unknown_parameter_is_refused(draw_server: Server) -> None:
    error = error_of(draw_server.ports.grpc_url, document(), [], model="draw", steps="5")
    assert "steps" in error and "fix: " in error


def test_the_server_keeps_drawing_the_same_through_bad_requests(draw_server: Server) -> None:
    with Client(draw_server.ports.grpc_url) as client:
        before = files(client.draw(PROMPT, seed=3))
        for text, _ in BAD.values():
            error_of(draw_server.ports.grpc_url, text, [], model="draw")
        assert files(client.draw(PROMPT, seed=3)) == before
