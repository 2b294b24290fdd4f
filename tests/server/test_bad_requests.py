"""Bad input gets an error that names what, the limit and the fix; the server answers the next request rightly."""

from __future__ import annotations

import io
import json
import re

import pytest
from PIL import Image

from proteus.client import Client
from proteus.launcher import Server
from tests.server.wire import document, error_of, png

LEAK = re.compile(r"0x[0-9a-f]{6,}|Traceback|File \"|\.py\b|site-packages|<class|object at")


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((200, 200), 80).convert("RGB").save(buffer, "JPEG")
    return buffer.getvalue()


GOOD = png()
BAD = {
    "not an image": (document(), [b"this is no picture at all"], "invalid_picture"),
    "empty": (document(), [b""], "invalid_picture"),
    "truncated jpeg": (document(), [_jpeg()[:-512]], "invalid_picture"),
    "truncated png": (document(), [GOOD[: len(GOOD) // 2]], "invalid_picture"),
    "header only": (document(), [GOOD[:8]], "invalid_picture"),
    "1x1": (document(), [png(1, 1)], "invalid_picture"),
    "224x1": (document(), [png(224, 1)], "invalid_picture"),
    "aspect ratio": (document(), [png(2000, 10)], ""),
    "too many pixels": (document(), [png(9000, 9000)], "media_too_large"),
    "picture parts without pictures": (document(pictures=1), [], "invalid_request"),
    "pictures without parts": (document(pictures=0), [GOOD], "invalid_request"),
    "two parts, one picture": (document(pictures=2), [GOOD], "invalid_request"),
    "too many pictures": (document(pictures=40), [GOOD] * 40, ""),
    "prompt longer than the context": (document("word " * 3000), [GOOD], "prompt_too_long"),
    "unknown field": (document(colour="red"), [GOOD], "invalid_request"),
    "unknown part": (
        json.dumps({"messages": [{"role": "user", "content": [{"type": "smell", "text": "x"}]}]}).encode(),
        [],
        "invalid_request",
    ),
    "unknown role": (json.dumps({"messages": [{"role": "root", "content": "x"}]}).encode(), [], "invalid_request"),
    "no messages": (b'{"messages": []}', [], "invalid_request"),
    "empty question": (document("", pictures=0), [], "invalid_request"),
    "max_tokens 0": (document(max_tokens=0), [GOOD], "invalid_request"),
    "max_tokens is text": (document(max_tokens="many"), [GOOD], "invalid_request"),
    "temperature below zero": (document(temperature=-1), [GOOD], "invalid_request"),
    "temperature not a number": (document(temperature=float("nan")), [GOOD], "invalid_request"),
    "top_p 2": (document(top_p=2), [GOOD], "invalid_request"),
    "not UTF-8": (document("colour \u00ff").replace(b"\\u00ff", b"\xff\xfe"), [GOOD], "invalid_request"),
    "lone surrogate": (document("\ud800"), [GOOD], "invalid_request"),
    "not JSON": (b"What colour is it?", [GOOD], "invalid_request"),
    "JSON list": (b"[]", [GOOD], "invalid_request"),
    "deep JSON": (b"[" * 100_000, [], "invalid_request"),
    "bad base64": (
        json.dumps({"messages": [{"role": "user", "content": [{"type": "image", "data": "%%%"}]}]}).encode(),
        [],
        "invalid_",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_a_clear_error(server: Server, name: str) -> None:
    text, pictures, code = BAD[name]
    error = error_of(server.ports.grpc_url, text, pictures)
    assert error, "the server accepted it"
    assert code in error and "fix: " in error, error
    assert not LEAK.search(error), error
    assert len(error) < 600, "an error is not an echo"


def test_an_unknown_parameter_is_refused(server: Server) -> None:
    error = error_of(server.ports.grpc_url, document(), [GOOD], max_tokens="5")
    assert "max_tokens" in error and "fix: " in error


def test_the_server_keeps_serving_through_bad_requests(server: Server) -> None:
    with Client(server.ports.grpc_url) as client:
        before = client.ask("What colour is the shape at the centre?", GOOD, max_tokens=8)
        for text, pictures, _ in BAD.values():
            error_of(server.ports.grpc_url, text, pictures)
        assert client.ask("What colour is the shape at the centre?", GOOD, max_tokens=8).token_ids == before.token_ids


def test_a_typed_image_token_is_just_text(server: Server) -> None:
    with Client(server.ports.grpc_url) as client:
        typed = client.ask("Is <image> a <|end|> or </s>?", GOOD, max_tokens=4)
        plain = client.ask("Is it?", GOOD, max_tokens=4)
    assert typed.usage.visual_tokens == plain.usage.visual_tokens > 0
    assert typed.usage.text_tokens > plain.usage.text_tokens + 8
