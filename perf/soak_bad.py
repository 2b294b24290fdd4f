"""What a client should not send, with the code it is refused with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.raw_request import Raw
from perf.soak_pictures import Stock, bomb, plain
from proteus.client.wire import Model

ANSWER = "answer"
REQUEST, PICTURE, LARGE, LONG = "invalid_request", "invalid_picture", "media_too_large", "prompt_too_long"


Make = Callable[[Stock, random.Random], Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    make: Make
    outcomes: tuple[str, ...]  # codes, or an answer where the damage may be harmless


def ask(pictures: int = 1, text: str = "What is it?", **fields: Any) -> bytes:
    content = [{"type": "image"}] * pictures + [{"type": "text", "text": text}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}).encode()


def parts(*content: Mapping[str, Any]) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def drawing(**fields: Any) -> bytes:
    return json.dumps({"prompt": "a red circle", "steps": 1, **fields}).encode()


def document(text: bytes, *codes: str, model: Model = "chat", **parameters: str) -> Bad:
    raw = Raw(document=text, model=model, parameters=parameters)
    return Bad(make=lambda stock, chance: raw, outcomes=codes or (REQUEST,))


def picture(make: Callable[[Stock, random.Random], bytes], *outcomes: str) -> Bad:
    return Bad(make=lambda stock, chance: Raw(document=ask(), pictures=[make(stock, chance)]), outcomes=outcomes)


def given(data: bytes, *outcomes: str) -> Bad:
    return picture(lambda stock, chance: data, *outcomes)


def several(number: int, parts_of: int, lengths: Sequence[int] | None, *codes: str) -> Bad:
    def make(stock: Stock, chance: random.Random) -> Raw:
        return Raw(document=ask(parts_of), pictures=[stock.tiny() for _ in range(number)], lengths=lengths)

    return Bad(make=make, outcomes=codes)


BAD: Mapping[str, Bad] = {
    "picture cut short": picture(lambda stock, chance: stock.cut(chance), PICTURE),
    "picture with damage": picture(
        lambda stock, chance: stock.damaged(chance), ANSWER, PICTURE, LARGE, "media_not_supported"
    ),
    "random bytes": picture(lambda stock, chance: chance.randbytes(5_000), PICTURE),
    "no bytes": given(b"", PICTURE),
    "a page": given(b"<html><body>404</body></html>", PICTURE),
    "header alone": picture(lambda stock, chance: stock.fresh(chance)[:20], PICTURE),
    "bomb beyond the limit": given(bomb(60_000, 60_000), LARGE),
    "bomb within the limit": given(bomb(5_000, 5_000), ANSWER),
    "bomb that ends early": given(bomb(4_999, 5_000)[:-3_000], PICTURE),
    "too many pixels": given(plain(6_000, 6_000), LARGE),
    "sliver": given(plain(2_000, 10), PICTURE),
    "one pixel": given(plain(1, 1), PICTURE),
    "too many bytes": picture(lambda stock, chance: stock.tiny() + bytes(11_000_000), LARGE),
    "too many pictures": several(9, 9, None, REQUEST, LARGE),
    "fewer pictures than parts": several(1, 2, None, REQUEST),
    "more pictures than parts": several(2, 1, None, REQUEST),
    "lengths beyond the bytes": several(1, 1, [10**9], REQUEST),
    "lengths below nothing": several(1, 1, [-5], REQUEST),
    "base64 that is none": document(parts({"type": "image", "data": "%%%"}), "invalid_media"),
    "base64 of something else": document(parts({"type": "image", "data": "aGVsbG8gd29ybGQ="}), PICTURE),
    "data URI without base64": document(
        parts({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}), "invalid_media"
    ),
    "a file's URL": document(parts({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}), "fetch_failed"),
    "a host that is not allowed": document(
        parts({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}), "fetch_failed"
    ),
    "unknown part": document(parts({"type": "smell", "text": "x"})),
    "unknown field": document(ask(0, colour="red")),
    "unknown role": document(json.dumps({"messages": [{"role": "root", "content": "x"}]}).encode()),
    "no messages": document(b'{"messages": []}'),
    "no text": document(ask(0, "")),
    "no JSON": document(b"What colour is it?"),
    "half a document": document(ask(0)[:-9]),
    "a list": document(b"[]"),
    "nothing": document(b""),
    "deep": document(b"[" * 100_000),
    "no UTF-8": document(ask(0, "\u00ff").replace(b"\\u00ff", b"\xff\xfe")),
    "half a surrogate": document(ask(0, "\ud800")),
    "prompt beyond the context": document(ask(0, "word " * 3_000), LONG),
    "answer beyond the context": document(ask(0, max_tokens=100_000), LONG),
    "more text than allowed": document(ask(0, "a" * 70_000), REQUEST, LONG),
    "temperature below zero": document(ask(0, temperature=-1)),
    "temperature that is no number": document(ask(0, temperature=float("nan"))),
    "top_p of two": document(ask(0, top_p=2)),
    "no tokens": document(ask(0, max_tokens=0)),
    "too many answers": document(ask(0, n=1_000)),
    "a stop string of nothing": document(ask(0, stop=[""])),
    "a deadline of nothing": document(ask(0, deadline_ms=0)),
    "an id that is no text": document(ask(0, request_id="\u0007")),
    "unknown parameter": document(ask(0), temperature="1"),
    "stop without an id": document(b'{"stop": {}}'),
    "drawing of nothing": document(drawing(prompt=" "), model="draw"),
    "drawing of no size": document(drawing(size="big"), model="draw"),
    "drawing with too many steps": document(drawing(steps=10_000), model="draw"),
    "drawing beyond its budget": document(drawing(n=8, steps=100, sampler="heun"), LARGE, model="draw"),
    "drawing with an unknown field": document(drawing(colour="red"), model="draw"),
    "drawing of too many words": document(drawing(prompt="red circle " * 300), LONG, model="draw"),
    "drawing that is no JSON": document(b"a red circle", model="draw"),
}
