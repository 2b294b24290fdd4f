"""The path of chat over HTTP: what goes to the server, and what comes back, chunk by chunk."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import pytest
from PIL import Image

from proteus.gateway.openai.chat import user_hash
from proteus.gateway.order import Tenant, Visit
from tests.client.peer import LOGPROBS, REPORT, Peer
from tests.gateway.running import in_front_of, started

PATH = "/v1/chat/completions"
COUNTED = {
    "prompt_tokens": 45,
    "completion_tokens": 3,
    "total_tokens": 48,
    "prompt_tokens_details": {"cached_tokens": 8, "text_tokens": 9, "image_tokens": 36},
}


def asked(question: object, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": question}], **fields}


def png(width_px: int, height_px: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width_px, height_px), "red").save(file, "PNG")
    return file.getvalue()


def picture(data: bytes, **more: Any) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": url, **more}}


def events(http: httpx.Client, document: dict[str, Any]) -> list[Any]:
    """The documents of a stream; `[DONE]` as it is."""
    answer = http.post(PATH, json=document)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = answer.text.split("\n\n")
    assert lines.pop() == ""
    data = [line.removeprefix("data: ") for line in lines]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def test_a_completion_has_openais_form_and_ours_beside_it(http: httpx.Client) -> None:
    answer = http.post(PATH, json=asked("one two", service_tier="auto"))
    document = answer.json()
    request_id = answer.headers["x-request-id"]
    told = document.pop("proteus")
    assert isinstance(document.pop("created"), int)
    assert document.pop("system_fingerprint").startswith("fp_")
    assert document == {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "model": "demo",
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "one two ", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": COUNTED,
    }
    assert (told["request_id"], told["model"], told["pool"]) == (request_id, "demo", "text")
    assert told["resources"]["output_tokens"] == 128
    assert told["price"]["currency"] == "EUR"
    assert {name: told[name] for name in ("usage", "ingress_ms", "ttft_ms", "caches", "media")} == {
        name: REPORT[name] for name in ("usage", "ingress_ms", "ttft_ms", "caches", "media")
    }
    stages_ms = told["stages_ms"]
    assert list(stages_ms)[:2] == ["receive", "plan"]
    assert stages_ms.pop("total") == pytest.approx(sum(stages_ms.values()), abs=0.01)


def test_the_server_is_told_whose_request_it_is(http: httpx.Client, peer: Peer) -> None:
    request_id = http.post(PATH, json=asked("whose", top_k=2, deadline_ms=9_000)).headers["x-request-id"]
    document = peer.documents[-1]
    assert 0 < document.pop("deadline_ms") <= 9_000
    assert document == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "whose"}]}],
        "top_k": 2,
        "request_id": request_id,
        "tenant": "local",
        "cache_scope": "local",
    }
    assert peer.sent[-1] is not None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_picture_stands_where_it_stood(http: httpx.Client, peer: Peer, place: int) -> None:
    parts: list[Any] = [{"type": "text", "text": "before "}, {"type": "text", "text": "after"}]
    parts.insert(place, picture(png(40, 30), detail="low"))
    answer = http.post(PATH, json=asked(parts)).json()
    (message,) = peer.documents[-1]["messages"]
    assert [part["type"] for part in message["content"]].index("image") == place
    assert message["content"][place]["detail"] == "low"
    assert answer["proteus"]["pool"] == "picture"
    assert answer["proteus"]["resources"]["items"] == 1
    assert peer.requests[-1].raw_input_contents[1] == png(40, 30)


def test_pictures_keep_their_order(http: httpx.Client, peer: Peer) -> None:
    http.post(PATH, json=asked([picture(png(40, 30)), {"type": "text", "text": "or"}, picture(png(30, 40))]))
    assert peer.requests[-1].raw_input_contents[1] == png(40, 30) + png(30, 40)


def test_a_stream_is_a_role_then_text_then_the_reason_then_done(http: httpx.Client) -> None:
    *chunks, done = events(http, asked("one two", stream=True))
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk and "proteus" not in chunk for chunk in chunks)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in (
            ({"role": "assistant", "content": "", "refusal": None}, None),
            ({"content": "one "}, None),
            ({"content": "two "}, None),
            ({}, "stop"),
        )
    ]


def test_usage_comes_last_where_it_is_wanted(http: httpx.Client) -> None:
    *chunks, last, _ = events(http, asked("one two", stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], COUNTED)
    assert last["proteus"]["usage"] == REPORT["usage"]


def test_each_of_several_answers_begins_and_ends_by_itself(http: httpx.Client) -> None:
    *chunks, _ = events(http, asked("two answers", n=2, stream=True, logprobs=True))
    of = [[chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index] for index in (0, 1)]
    for index, (choices, reason) in enumerate(zip(of, ("stop", "length"), strict=True)):
        assert choices[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content", "") for choice in choices) == f"{index}: one {index}: more"
        assert [choice["finish_reason"] for choice in choices] == [None, None, None, reason]
        assert [choice["logprobs"] for choice in choices[1:3]] == [{"content": LOGPROBS, "refusal": None}] * 2


def test_several_answers_are_one_completion(http: httpx.Client) -> None:
    choices = http.post(PATH, json=asked("two answers", n=2, logprobs=True)).json()["choices"]
    assert [(choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in choices] == [
        (0, "0: one 0: more", "stop"),
        (1, "1: one 1: more", "length"),
    ]
    assert choices[0]["logprobs"] == {"content": LOGPROBS * 2, "refusal": None}


@pytest.mark.parametrize(("wanted", "told"), [(True, [1, 1, 1]), (False, [0])])
def test_a_token_without_text_is_told_where_logprobs_are_wanted(
    http: httpx.Client, wanted: bool, told: list[int]
) -> None:
    chunks = events(http, asked("in pieces", stream=True, logprobs=wanted))[1:-2]
    contents = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert "".join(contents) == "\u00e9"
    assert [len((chunk["choices"][0]["logprobs"] or {"content": ()})["content"]) for chunk in chunks] == told


@pytest.mark.parametrize(
    ("question", "status", "code"),
    [
        ("break off", 500, "internal"),
        ("end early", 503, "unavailable"),
        ("end for others", 503, "unavailable"),
        ("refuse", 429, "queue_full"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error_with_its_status(
    http: httpx.Client, question: str, status: int, code: str
) -> None:
    answer = http.post(PATH, json=asked(question))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("question", "code"), [("break off", "internal"), ("end early", "unavailable"), ("end for others", "unavailable")]
)
def test_a_stream_that_breaks_off_ends_with_the_error_and_without_done(
    http: httpx.Client, question: str, code: str
) -> None:
    *chunks, last = events(http, asked(question, stream=True))
    assert last["error"]["code"] == code
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "half"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_a_stream_that_has_not_begun_is_refused_with_a_status(http: httpx.Client) -> None:
    answer = http.post(PATH, json=asked("refuse", stream=True))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"{}", "model is missing"),
        (b'{"model": "demo"}', "messages is missing"),
        (b'{"model": "demo", "messages": []}', "messages"),
        (rb'{"model": "demo", "messages": [{"role": "user", "content": "\ud800"}]}', "JSON"),
        (rb'{"model": "\ud800", "messages": []}', "JSON"),
        (b'{"model": "demo", "messages": [{"role": "user", "content": "\xff"}]}', "JSON"),
    ],
)
def test_what_is_no_request_is_refused(http: httpx.Client, body: bytes, told: str) -> None:
    answer = http.post(PATH, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "url", ["https://example.com/a.png", "http://127.0.0.1:8091/metrics", "file:///etc/passwd", "gopher://x/"]
)
def test_an_address_that_fetch_does_not_allow_is_refused_before_anything_is_sent(
    http: httpx.Client, peer: Peer, url: str
) -> None:
    seen = len(peer.documents)
    answer = http.post(PATH, json=asked([{"type": "image_url", "image_url": {"url": url}}]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "fetch_failed")
    assert len(peer.documents) == seen


def test_a_user_is_known_by_a_hash_that_is_the_tenants_own() -> None:
    def of(tenant: str, user: str | None) -> str:
        visit = Visit(path=PATH, address="", tenant=Tenant(name=tenant, cache_scope=tenant))
        return user_hash(visit, user)

    assert of("acme", None) == ""
    assert of("acme", "ann") == of("acme", "ann")
    assert len({of("acme", "ann"), of("acme", "bob"), of("other", "ann")}) == 3
    assert "ann" not in of("acme", "ann")


@pytest.mark.parametrize("model", ["other", "demo-draw", "../demo", "\u202edemo\n"])
def test_a_model_that_does_not_answer_is_not_found(http: httpx.Client, model: str) -> None:
    error = http.post(PATH, json=asked("a") | {"model": model}).json()["error"]
    assert (error["code"], error["param"], error["type"]) == ("not_found", "model", "not_found_error")
    assert error["message"].isprintable()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "document"),
    [(PATH, asked("end for others")), ("/v1/images/generations", {"model": "demo-draw", "prompt": "stopped", "n": 2})],
)
def test_what_its_server_did_not_complete_has_no_price(
    peer: Peer, path: str, document: dict[str, Any], stream: bool
) -> None:
    with started(in_front_of(peer.url)) as one:
        answer = httpx.post(one.url + path, json=document | {"stream": stream}, timeout=30)
        assert '"code":"unavailable"' in answer.text
    assert one.gateway.metering.prices() == {("local", "EUR"): 0.0}


def test_a_completion_with_many_logprobs_is_written_as_one_with_few(http: httpx.Client) -> None:
    document = http.post(PATH, json=asked("forty tokens", logprobs=True)).json()
    (choice,) = document["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 40
    assert entries[0] == LOGPROBS[0]
    assert choice["logprobs"]["refusal"] is None
    assert (choice["message"]["content"], choice["finish_reason"]) == ("x" * 40, "stop")
    assert document["usage"] == COUNTED
