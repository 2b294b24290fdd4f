"""The check of contents, in front of a peer: what is refused, blurred and held back, and what becomes of no verdict."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import pytest
from PIL import Image

from client import moderation_example
from proteus.deployment import DeploymentError
from proteus.gateway.gateway import Gateway
from proteus.gateway.openai.chat import user_hash
from proteus.gateway.order import Visit
from tests.client.peer import Peer
from tests.gateway.endpoint import answered, endpoint
from tests.gateway.running import Running, in_front_of, started
from tests.preprocess.pictures import encode, noise

CHAT, IMAGES = "/v1/chat/completions", "/v1/images/generations"
SETTINGS = {"before": True, "after": True, "timeout_ms": 5_000, "on_failure": "refuse", "max_at_once": 8}
LONG = "This sentence is long enough to be checked by itself. "


@contextmanager
def gateway(peer: Peer, **settings: Any) -> Iterator[tuple[httpx.Client, Running]]:
    with (
        started(in_front_of(peer.url, moderation=SETTINGS | settings)) as one,
        httpx.Client(base_url=one.url, timeout=30) as http,
    ):
        yield http, one


@pytest.fixture(scope="module")
def example() -> Iterator[str]:
    """The URL of client/moderation_example.py."""
    rules = {"violence": ["bomb"], "spam": ["lottery"]}
    with moderation_example.server(0, rules, (100, 100)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/check"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def guarded(peer: Peer, example: str) -> Iterator[tuple[httpx.Client, Running]]:
    with gateway(peer, url=example) as both:
        yield both


@pytest.fixture(scope="module")
def guarded_after(peer: Peer, example: str) -> Iterator[tuple[httpx.Client, Running]]:
    with gateway(peer, url=example, before=False) as both:
        yield both


def asked(text: str, *pictures: bytes, **fields: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for picture in pictures:
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"model": "demo", "messages": [{"role": "user", "content": parts}], **fields}


def streamed(answer: httpx.Response) -> tuple[str, list[dict[str, Any]]]:
    """The text that left, and all events."""
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(one) for one in data if one != "[DONE]"]
    choices = [choice for event in events for choice in event.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices), events


def picture_of(data: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data["b64_json"])))


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (CHAT, asked("how do I build a Bomb?")),
        (CHAT, asked("how do I build a bomb?", stream=True)),
        (
            CHAT,
            {"model": "demo", "messages": [{"role": "system", "content": "bomb"}, {"role": "user", "content": "x"}]},
        ),
        (IMAGES, {"model": "demo-draw", "prompt": "a bomb"}),
        (IMAGES, {"model": "demo-draw", "prompt": "a cat", "negative_prompt": "bomb", "stream": True}),
    ],
)
def test_a_prompt_is_refused_before_it_is_sent(
    guarded: tuple[httpx.Client, Running], peer: Peer, path: str, document: dict[str, Any]
) -> None:
    before = len(peer.requests)
    answer = guarded[0].post(path, json=document)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "content_refused")
    assert "violence" in error["message"]
    assert "bomb" not in answer.text.lower()
    assert len(peer.requests) == before


def test_a_word_in_two_parts_is_the_word_that_the_model_reads(guarded: tuple[httpx.Client, Running]) -> None:
    document = asked("how do I build a bo")
    document["messages"][0]["content"].append({"type": "text", "text": "mb?"})
    answer = guarded[0].post(CHAT, json=document)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "content_refused")
    assert answer.json()["error"]["message"].startswith("the prompt")


@pytest.mark.parametrize(
    ("path", "document"),
    [(CHAT, asked("a bomb", user="u")), (IMAGES, {"model": "demo-draw", "prompt": "a bomb", "user": "u"})],
)
def test_of_a_refused_prompt_it_is_known_for_whom_it_was(
    guarded: tuple[httpx.Client, Running], monkeypatch: pytest.MonkeyPatch, path: str, document: dict[str, Any]
) -> None:
    visits = SimpleQueue[Visit]()
    monkeypatch.setattr(guarded[1].gateway, "ended", visits.put)
    assert guarded[0].post(path, json=document).status_code == 422
    while not (visit := visits.get(timeout=10)).user_hash:  # one before this
        pass
    assert visit.user_hash == user_hash(visit, "u")


def test_what_is_allowed_is_told(guarded: tuple[httpx.Client, Running]) -> None:
    answer = guarded[0].post(CHAT, json=asked("what a nice day")).json()
    assert answer["choices"][0]["message"]["content"] == "what a nice day "
    assert answer["proteus"]["moderation"] == {"before": {"verdict": "allow"}, "after": {"verdict": "allow"}}
    assert {"moderation", "moderation_after"} <= set(answer["proteus"]["stages_ms"])


def test_a_whole_answer_is_refused(guarded_after: tuple[httpx.Client, Running]) -> None:
    answer = guarded_after[0].post(CHAT, json=asked("you won the lottery"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "content_refused")
    assert "lottery" not in answer.text


def test_a_stream_ends_before_what_is_refused(guarded_after: tuple[httpx.Client, Running]) -> None:
    answer = guarded_after[0].post(CHAT, json=asked(LONG * 3 + "And you won the lottery today.", stream=True))
    text, events = streamed(answer)
    assert text == LONG * 3
    assert events[-1]["error"]["code"] == "content_refused"
    assert "lottery" not in answer.text


def test_a_stream_that_is_allowed_is_whole(guarded_after: tuple[httpx.Client, Running]) -> None:
    question = LONG * 5 + "short rest"
    document = asked(question, stream=True, stream_options={"include_usage": True})
    text, events = streamed(guarded_after[0].post(CHAT, json=document))
    assert text == question + " "
    assert events[-1]["proteus"]["moderation"] == {"after": {"verdict": "allow"}}


def test_a_picture_is_blurred_and_planned_again(guarded: tuple[httpx.Client, Running], peer: Peer) -> None:
    large, small = encode(noise(300, 200)), encode(noise(90, 60))
    answer = guarded[0].post(CHAT, json=asked("what is it?", large, small, large)).json()
    assert answer["proteus"]["moderation"]["before"] == {"verdict": "blur", "category": "large"}
    sent = peer.requests[-1]
    first, *others = _pictures(sent.raw_input_contents)
    assert others == [small, first]
    assert Image.open(io.BytesIO(first)).size == (256, 171)
    assert answer["proteus"]["resources"]["media_bytes"] == 2 * len(first) + len(small)


def test_equal_pictures_are_shown_once(peer: Peer) -> None:
    picture = encode(noise(90, 60))
    with endpoint(answered({"verdict": "allow"})) as there, gateway(peer, url=there.url, after=False) as (http, _):
        http.post(CHAT, json=asked("what is it?", picture, picture)).raise_for_status()
    shown = there.subjects[0]["pictures"]
    assert [base64.b64decode(one["data"]) for one in shown] == [picture]
    assert (shown[0]["format"], shown[0]["width_px"], shown[0]["height_px"]) == ("png", 90, 60)


def test_drawn_pictures_are_checked_one_by_one(peer: Peer) -> None:
    """And partial images, which nobody checks, are neither asked for nor sent."""
    document = {"model": "demo-draw", "prompt": "a cat", "n": 2, "stream": True, "partial_images": 3}
    blur = answered({"verdict": "blur", "category": "faces", "pictures": [0]})
    with endpoint(blur) as there, gateway(peer, url=there.url, before=False) as (http, _):
        _, events = streamed(http.post(IMAGES, json=document))
        whole = http.post(IMAGES, json=document | {"stream": False, "partial_images": 0}).json()
    assert [event["type"] for event in events] == ["image_generation.completed"] * 2
    assert "preview_every" not in peer.documents[-2] or peer.documents[-2]["preview_every"] == 0
    assert [len(subject["pictures"]) for subject in there.subjects] == [1] * 4
    assert {picture_of(event).size for event in (*events, *whole["data"])} == {(64, 64)}
    assert whole["proteus"]["moderation"] == {"after": {"verdict": "blur", "category": "faces"}}


def test_a_drawn_picture_is_refused(peer: Peer) -> None:
    refusal = answered({"verdict": "refuse", "category": "faces"})
    with endpoint(refusal) as there, gateway(peer, url=there.url, before=False) as (http, _):
        answer = http.post(IMAGES, json={"model": "demo-draw", "prompt": "a cat"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "content_refused")


@pytest.mark.parametrize("lie", [answered(b"{"), answered({"verdict": "allow"}, "302 Found", "Location: /"), b""])
@pytest.mark.parametrize("on_failure", ["refuse", "allow"])
def test_without_a_verdict_the_file_says_what_becomes_of_it(
    peer: Peer, lie: bytes, on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint(lie) as there, gateway(peer, url=there.url, on_failure=on_failure) as (http, one):
        answer = http.post(CHAT, json=asked("secret words"))
        figures = one.gateway.moderation.figures()
    if on_failure == "refuse":
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert figures == {("failed", "before"): 1}
    else:
        unchecked = {"verdict": "unchecked"}
        assert answer.json()["proteus"]["moderation"] == {"before": unchecked, "after": unchecked}
        assert figures == {("unchecked", "before"): 1, ("unchecked", "after"): 1}
    assert f"on_failure = {on_failure}" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("on_failure", ["refuse", "allow"])
def test_too_many_at_once_are_refused_whatever_else_fails(peer: Peer, on_failure: str) -> None:
    """An endpoint that never answers: those that find no place do not slip through."""
    slow = {"timeout_ms": 300, "max_at_once": 1, "after": False, "on_failure": on_failure}
    with (
        endpoint(b"", ends=False) as there,
        gateway(peer, url=there.url, **slow) as (http, _),
        ThreadPoolExecutor(8) as threads,
    ):
        answers = list(threads.map(lambda _: http.post(CHAT, json=asked("x")).status_code, range(8)))
    assert set(answers) == {429, 503 if on_failure == "refuse" else 200}


def test_a_client_that_leaves_gives_its_place_back(peer: Peer) -> None:
    before = len(peer.requests)
    with (
        endpoint(b"", ends=False) as there,
        gateway(peer, url=there.url, timeout_ms=60_000, max_at_once=1) as (http, one),
    ):
        with pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=asked("x"), timeout=0.5)
        places = one.gateway.moderation._free
        end = threading.Event()
        for _ in range(1_000):
            if not places.locked():
                break
            end.wait(0.01)
        assert not places.locked()
    assert len(peer.requests) == before


def test_a_python_check_is_an_entry_point(peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checks.py").write_text(
        "from proteus.gateway.moderation.subject import Verdict\n"
        "class Words:\n"
        "    async def check(self, subject):\n"
        "        if 'raise' in subject.texts[0]:\n"
        "            raise ValueError(subject.texts[0])\n"
        "        if 'lie' in subject.texts[0]:\n"
        "            return True\n"
        "        return Verdict(refused='bad' in subject.texts[0], category='words')\n"
    )
    package = tmp_path / "checks-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: checks\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[proteus.moderation]\nwords = checks:Words\nbroken = checks:Nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with gateway(peer, entry_point="words") as (http, _):
        codes = [http.post(CHAT, json=asked(text)).status_code for text in ("good", "bad", "raise", "lie")]
    assert codes == [200, 422, 503, 503]
    with pytest.raises(DeploymentError, match="cannot be made"):
        Gateway(in_front_of(peer.url, moderation=SETTINGS | {"entry_point": "broken"}))
    with pytest.raises(DeploymentError, match="there are: broken, words"):
        Gateway(in_front_of(peer.url, moderation=SETTINGS | {"entry_point": "nowhere"}))


def test_checks_are_counted_for_the_metrics(guarded: tuple[httpx.Client, Running]) -> None:
    http, one = guarded
    before = one.gateway.moderation.figures()
    http.post(CHAT, json=asked("fine"))
    http.post(CHAT, json=asked("a bomb"))
    after = one.gateway.moderation.figures()
    grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    assert grown == {("allow", "before"): 1, ("allow", "after"): 1, ("refuse", "before"): 1}
    assert b'proteus_gateway_moderation_total{verdict="refuse",when="before"}' in one.gateway.metrics.text()


def _pictures(tensors: Any) -> list[bytes]:
    """Of a request message: its bytes, cut by their lengths."""
    data, lengths = tensors[1], tensors[2]
    found, at = [], 0
    for start in range(0, len(lengths), 8):
        length = int.from_bytes(lengths[start : start + 8], "little")
        found.append(data[at : at + length])
        at += length
    return found
