"""What /v1/cost tells is what the request itself would be: the same plan, the same refusals, and nothing is run."""

from __future__ import annotations

import base64
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx
import pytest
from PIL import Image

from proteus.estimate import Wanted, estimate_request
from proteus.estimate_draw import WantedDrawing, estimate_draw
from tests.client.peer import Peer
from tests.gateway.running import DEMO, in_front_of, running

COST, CHAT, IMAGES = "/v1/cost", "/v1/chat/completions", "/v1/images/generations"
BEGINNING = 1_024


def picture_of(width_px: int, height_px: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.effect_noise((width_px, height_px), 60).convert("RGB").save(file, kind)
    return file.getvalue()


def part(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:;base64," + base64.b64encode(data).decode(), **more}}


def question(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": list(content)}], **fields}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_a_prompt_of_null_is_left_out(http: httpx.Client) -> None:
    asked = question(text("Hello"))
    assert http.post(COST, json=asked | {"prompt": None}).json() == http.post(COST, json=asked).json()


@pytest.mark.parametrize("prompt", ["x" * 70_000, "\u732b" * 23_000])
def test_a_long_prompt_is_refused_as_the_request_is(http: httpx.Client, prompt: str) -> None:
    asked = {"model": "demo-draw", "prompt": prompt}
    told, refused = (http.post(path, json=asked) for path in (COST, IMAGES))
    assert told.json() == refused.json()
    assert (told.status_code, told.json()["error"]["code"]) == (400, "prompt_too_long")


def test_a_question_costs_what_proteus_cost_says(http: httpx.Client, peer: Peer, tmp_path: Any) -> None:
    data = picture_of(300, 200)
    (tmp_path / "a.png").write_bytes(data)
    estimate = estimate_request(
        Wanted(files=[tmp_path / "a.png"], text="What is this?", max_tokens=8, tier="low"),
        checkpoint=None,
        deployment=DEMO,
    )
    asked = question(part(data, detail="low"), text("What is this?"), max_tokens=8, stream=True)
    seen = len(peer.requests)
    cost = http.post(COST, json=asked).json()
    assert len(peer.requests) == seen
    assert cost["resources"] == dict(estimate.total.named())
    assert (cost["object"], cost["model"], cost["pool"], cost["fits"]) == ("cost", "demo", "picture", True)
    assert cost["kv_bytes"] == estimate.total.kv_bytes
    assert cost["context_tokens"] == 1024
    assert cost["text_tokens"] + cost["visual_tokens"] == estimate.prompt_tokens
    assert cost["pictures"] == [
        {
            "width_px": 300,
            "height_px": 200,
            "format": "png",
            "bytes": len(data),
            "tier": "low",
            "bucket": "96x96 tiles",
            "given_px": [300, 200],
            "downscaled": False,
            "visual_tokens": 36,
            "patches": estimate.total.patches,
        }
    ]


def test_a_text_costs_its_tokens_and_the_longest_answers(http: httpx.Client) -> None:
    cost = http.post(COST, json=question(text("Hello"), max_tokens=10, n=3)).json()
    assert (cost["pool"], cost["visual_tokens"], cost["pictures"]) == ("text", 0, [])
    assert cost["resources"]["output_tokens"] == 30
    assert cost["price"]["amount"] == pytest.approx(0.0000002 * cost["text_tokens"] + 0.0000008 * 30, rel=1e-12)
    assert cost["price"]["per_picture"] is None


def test_a_drawing_costs_what_proteus_cost_says(http: httpx.Client) -> None:
    wanted = WantedDrawing(size="96x64", steps=7, guidance=3.0, images=2, prompt="a red circle")
    estimate = estimate_draw(wanted, checkpoint=None, deployment=DEMO)
    asked = {"model": "demo-draw", "prompt": "a red circle", "size": "96x64", "steps": 7, "guidance": 3.0, "n": 2}
    cost = http.post(COST, json=asked | {"stream": True}).json()
    assert cost["resources"] == dict(estimate.total.named())
    assert cost["text_tokens"] == estimate.text_tokens
    assert (cost["pool"], cost["drawing"]["steps"], cost["drawing"]["branches"]) == ("draw", 7, 2)
    assert cost["price"]["per_picture"] == pytest.approx(cost["price"]["amount"] / 2, rel=1e-9)


WRONG = [
    (CHAT, question(text("")), "invalid_request"),
    (CHAT, question(text("Hi"), tools=[{}]), "unsupported_field"),
    (CHAT, question(text("Hi"), colour="red"), "invalid_request"),
    (CHAT, question(text("Hi"), max_tokens=5_000), "prompt_too_long"),
    (CHAT, question(text("Hi"), n=9), "invalid_request"),
    (CHAT, question(*(part(picture_of(9, 9)) for _ in range(5))), "media_too_large"),
    (CHAT, question(part(b"no picture at all, no")), "invalid_picture"),
    (CHAT, question(part(picture_of(4, 40))), "invalid_picture"),
    (CHAT, question({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}), "fetch_failed"),
    (CHAT, question(text("Hi")) | {"model": "other"}, "not_found"),
    (CHAT, question(text("Hi")) | {"model": "demo-draw"}, "not_found"),
    (IMAGES, {"model": "demo-draw", "prompt": " "}, "invalid_request"),
    (IMAGES, {"model": "demo-draw", "prompt": "a", "size": "65x64"}, "invalid_request"),
    (IMAGES, {"model": "demo-draw", "prompt": "a", "style": "vivid"}, "unsupported_field"),
    (IMAGES, {"model": "demo", "prompt": "a"}, "not_found"),
]


@pytest.mark.parametrize(("path", "document", "code"), WRONG)
def test_it_refuses_as_the_request_itself_would(
    http: httpx.Client, path: str, document: dict[str, Any], code: str
) -> None:
    cost, itself = http.post(COST, json=document), http.post(path, json=document)
    assert (cost.status_code, cost.json()) == (itself.status_code, itself.json())
    assert cost.json()["error"]["code"] == code


URL_PART = {"type": "image_url", "image_url": {"url": "data:,", "total_bytes": 9}}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"prompt": None},
        {"model": "demo", "prompt": "a", "messages": []},
        {"model": "demo", "messages": {"total_bytes": 1}},
        {"model": "demo", "messages": [None, [], "x", {"role": "user", "content": [None, 1, [URL_PART], "x"]}]},
        {"model": "demo", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": []}]}]},
        {"model": "demo", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}]},
        {"model": "demo", "messages": [{"role": "user", "content": [{"type": ["image_url"], "total_bytes": 1}]}]},
        {"model": "demo", "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "total_bytes": 1}]}]},
        {"model": "demo", "messages": [{"role": "system", "content": [URL_PART]}, {"role": "user", "content": "a"}]},
        {"model": "demo", "total_bytes": 9, "messages": [{"role": "user", "content": "a"}]},
        {"model": ["demo"], "messages": [{"role": "user", "content": "a"}]},
    ],
)
def test_what_is_no_request_is_refused(http: httpx.Client, document: dict[str, Any]) -> None:
    answer = http.post(COST, json=document)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "AVIF"])
def test_the_beginning_of_a_file_is_enough(http: httpx.Client, kind: str) -> None:
    data = picture_of(400, 300, kind)
    whole = http.post(COST, json=question(text("What?"), part(data))).json()
    begun = http.post(COST, json=question(text("What?"), part(data[:BEGINNING], total_bytes=len(data)))).json()
    assert len(data) > BEGINNING
    assert begun == whole
    assert begun["resources"]["media_bytes"] == len(data)


def test_a_file_that_is_there_whole_is_no_beginning(http: httpx.Client) -> None:
    data = picture_of(90, 80, "GIF")
    answers = [http.post(COST, json=question(part(data, **more))) for more in ({}, {"total_bytes": None})]
    answers.append(http.post(COST, json=question(part(data, total_bytes=len(data)))))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json()


def test_each_picture_has_its_own_beginning(http: httpx.Client) -> None:
    small, large = picture_of(50, 40), picture_of(200, 100)
    asked = question(part(small), text("or"), part(large[:BEGINNING], total_bytes=len(large), detail="high"))
    pictures = http.post(COST, json=asked).json()["pictures"]
    assert [(one["width_px"], one["bytes"], one["tier"]) for one in pictures] == [
        (50, len(small), "auto"),
        (200, len(large), "high"),
    ]


PNG = picture_of(200, 100)


@pytest.mark.parametrize(
    ("content", "status", "code", "words"),
    [
        (part(PNG[:20], total_bytes=len(PNG)), 400, "invalid_picture", "picture 1: its first 20 bytes do not tell"),
        (part(picture_of(90, 90, "GIF")[:500], total_bytes=9_000), 400, "invalid_picture", "send more of the file"),
        (part(PNG[:500], total_bytes=10**9), 413, "media_too_large", "max_bytes"),
        (part(PNG, total_bytes=100), 400, "invalid_request", "total_bytes = 100"),
        (part(PNG, total_bytes=0), 400, "invalid_request", "picture 1: total_bytes = 0"),
        (part(PNG, total_bytes=True), 400, "invalid_request", "picture 1: total_bytes = true"),
        (part(PNG, total_bytes="9"), 400, "invalid_request", 'picture 1: total_bytes = "9"'),
        (
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "total_bytes": 9}},
            400,
            "invalid_request",
            "of a picture by URL",
        ),
    ],
)
def test_a_beginning_that_does_not_do_is_refused(
    http: httpx.Client, content: dict[str, Any], status: int, code: str, words: str
) -> None:
    answer = http.post(COST, json=question(content))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert words in answer.json()["error"]["message"]


def test_a_beginning_is_no_picture_for_chat(http: httpx.Client, peer: Peer) -> None:
    seen = len(peer.requests)
    answer = http.post(CHAT, json=question(part(PNG[:500], total_bytes=len(PNG))))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert len(peer.requests) == seen


class Pictures(BaseHTTPRequestHandler):
    """Gives PNG, and counts how often it is asked."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("content-type", "image/png")
        self.send_header("content-length", str(len(PNG)))
        self.end_headers()
        self.wfile.write(PNG)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_picture_by_url_is_fetched_here_once_and_sent_on_as_bytes(peer: Peer) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pictures) as site:
        serving = threading.Thread(target=site.serve_forever)
        serving.start()
        port = site.server_address[1]
        fetch = {
            "hosts": ["localhost"],
            "schemes": ["http"],
            "ports": [port],
            "private_networks": ["127.0.0.0/8", "::1/128"],
        }
        there = {"type": "image_url", "image_url": {"url": f"http://localhost:{port}/a.png"}}
        asked = question(there, text("or"), there)
        deployment = in_front_of(peer.url)
        changed = deployment.model_copy(update={"fetch": deployment.fetch.model_copy(update=fetch)})
        with running(changed) as url:
            cost = httpx.post(url + COST, json=asked).json()
            told = httpx.post(url + CHAT, json=asked)
        site.shutdown()
        serving.join()
    assert [picture["bytes"] for picture in cost["pictures"]] == [len(PNG)] * 2
    assert told.status_code == 200
    assert Pictures.asked == ["/a.png"] * 2
    assert peer.requests[-1].raw_input_contents[1] == PNG + PNG
    assert "localhost" not in str(peer.documents[-1])


def test_what_no_empty_server_would_take_is_refused_with_the_numbers(peer: Peer) -> None:
    deployment = in_front_of(peer.url)
    capacity = deployment.admission.capacity.model_copy(update={"visual_tokens": 40})
    admission = deployment.admission.model_copy(update={"capacity": capacity})
    with running(deployment.model_copy(update={"admission": admission})) as url:
        answer = httpx.post(url + COST, json=question(part(PNG), part(picture_of(30, 30))))
    assert answer.status_code == 413
    assert "visual_tokens = 72" in answer.json()["error"]["message"]


def test_a_drawing_that_no_empty_server_would_take_is_refused_with_the_numbers(http: httpx.Client) -> None:
    answer = http.post(COST, json={"model": "demo-draw", "prompt": "x", "n": 8, "steps": 100, "sampler": "heun"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "media_too_large")
    assert "evaluations = 3,184" in answer.json()["error"]["message"]
