"""The sender: open loop, and a result for every request however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perf.replay import send
from perf.replay.pictures import make_picture
from perf.replay.results import Result
from perf.replay.send import Heard, Sender, messages, size_of, told
from perf.replay.trace import ChatArrival, DrawArrival, Header, Trace, TracedPicture
from proteus.client import (
    Answer,
    Choice,
    ClientError,
    ConnectionFailed,
    Drawing,
    DrawUsage,
    InvalidInput,
    Piece,
    ServerError,
    TimedOut,
    Usage,
)

FOR_EVER_S = 60.0


def chat(arrival_s: float = 0.0, *, tenant: str = "ok", **fields: Any) -> ChatArrival:
    """The tenant says what becomes of it at the fake server."""
    usual = {"session": 0, "cache_scope": tenant, "text_seed": 1, "text_tokens": 3, "max_tokens": 2}
    return ChatArrival(**{**usual, "arrival_s": arrival_s, "tenant": tenant, **fields})


def draw(arrival_s: float = 0.0) -> DrawArrival:
    return DrawArrival(
        arrival_s=arrival_s,
        session=0,
        tenant="ok",
        cache_scope="ok",
        text_seed=1,
        size="96x64",
        steps=4,
        guidance=2.0,
        n=2,
    )


def picture(width_px: int = 40, height_px: int = 30, **fields: Any) -> TracedPicture:
    return TracedPicture(seed=width_px, width_px=width_px, height_px=height_px, format="png", **fields)


ERRORS: dict[str, ClientError] = {
    "full": ServerError("queue_full", "too many", fix="try again later"),
    "gone": ConnectionFailed("the server went away"),
    "slow": TimedOut("no complete answer"),
    "unreadable": InvalidInput("no Unicode"),
}


class FakeClient:
    """Answers at once, or as the tenant's name says; remembers what it was asked."""

    def __init__(self, url: str) -> None:
        self.asked = ASKED

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def stream_chat(self, asked: Any, files: Any, **options: Any) -> AsyncIterator[Piece | Answer]:
        self.asked.append({"messages": asked, "files": files, **options})
        if (error := ERRORS.get(options["tenant"])) is not None:
            raise error
        yield Piece(text="a", token_ids=(7,))
        if options["tenant"] == "silent":
            await asyncio.sleep(FOR_EVER_S)
        yield Piece(text="bc", token_ids=(8, 9))
        yield answer("cancelled" if options["tenant"] == "stopped" else "length")

    async def stream_draw(self, prompt: str, **options: Any) -> AsyncIterator[Drawing]:
        self.asked.append({"prompt": prompt, **options})
        yield drawing()


ASKED: list[dict[str, Any]] = []


def answer(finish_reason: str) -> Answer:
    return Answer(
        choices=(Choice(text="abc", token_ids=(7, 8, 9), finish_reason=finish_reason),),
        usage=Usage(text_tokens=3, visual_tokens=0, output_tokens=3),
        stages_ms={"prefill": 1.0, "total": 2.0},
        ttft_ms=1.5,
        caches={"encoder": {"lookups": 1, "hits": 1, "saved_ms": 4}},
        media=({"size": "1 MP", "downscaled": True},),
    )


def drawing() -> Drawing:
    usage = DrawUsage(images=2, text_tokens=5, evaluations=8, branches=2, latent_tokens=9, token_passes=72)
    return Drawing(
        pictures=(), finish_reason="done", usage=usage, stages_ms={"denoise": 3.0}, first_preview_ms=None, costs=()
    )


@pytest.fixture(autouse=True)
def fake_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "AsyncClient", FakeClient)
    monkeypatch.setattr(send, "picture_file", make_picture)  # keeps none on disk
    ASKED.clear()


def run(*requests: ChatArrival | DrawArrival, speed: float = 1.0) -> list[Result]:
    header = Header(profile="made", seed=0, seconds=1.0, requests=len(requests), objectives={})
    results: list[Result] = []
    sender = Sender(Trace(header=header, requests=requests), results.append, speed=speed, timeout_s=9.0)
    sender.make_pictures(lambda made: None)
    asyncio.run(sender.run("127.0.0.1:1"))
    assert (sender.counts.sent, sender.counts.done) == (len(requests), len(results))
    assert sender.counts.errors == sum(result.is_error for result in results)
    return sorted(results, key=lambda result: result.line)


@pytest.mark.parametrize(
    ("request_", "outcome"),
    [
        (chat(), "ok"),
        (draw(), "ok"),
        (chat(tenant="full"), "queue_full"),
        (chat(tenant="gone"), "connection_failed"),
        (chat(tenant="slow"), "timed_out"),
        (chat(tenant="unreadable"), "invalid_input"),
        (chat(tenant="stopped"), "cancelled"),
        (chat(tenant="silent", cancel_after_s=0.05), "cancelled"),
        (chat(cancel_after_s=30.0), "ok"),
    ],
)
def test_every_end_has_its_outcome(request_: ChatArrival | DrawArrival, outcome: str) -> None:
    (result,) = run(chat(), request_)[1:]
    assert result.outcome == outcome
    assert (result.error is None) == (outcome in ("ok", "cancelled"))


def test_requests_are_sent_at_their_moments_while_others_are_open() -> None:
    silent = chat(tenant="silent", cancel_after_s=0.4)
    first, second, third = run(chat(), silent.model_copy(update={"arrival_s": 0.1}), chat(0.2))
    assert (first.outcome, second.outcome, third.outcome) == ("ok", "cancelled", "ok")
    assert third.sent_s < second.end_s
    assert all(result.sent_s >= result.arrival_s for result in (first, second, third))
    assert second.first_s is not None


def test_speed_brings_arrivals_nearer_to_each_other() -> None:
    assert [result.arrival_s for result in run(chat(0.1), chat(0.4), speed=4.0)] == [0.025, 0.1]


def test_report_and_tokens_are_in_the_result() -> None:
    (result,) = run(chat(0.05))
    assert (result.usage["output_tokens"], result.ttft_ms, result.downscaled) == (3, 1.5, 1)
    assert result.stages_ms == {"prefill": 1.0, "total": 2.0}
    assert result.caches["encoder"]["hits"] == 1
    assert len(result.gaps_ms) == 2
    assert result.gaps_ms[0] == result.gaps_ms[1]
    assert Result.model_validate_json(result.model_dump_json()) == result


def test_a_drawing_has_its_cost_and_no_first_token() -> None:
    (result,) = run(draw())
    assert (result.modality, result.size, result.first_s, result.usage["evaluations"]) == ("draw", "96x64", None, 8)


def test_what_is_asked_is_what_the_trace_says() -> None:
    pictures = (picture(), picture(50, tier="low"))
    run(chat(pictures=pictures, deadline_ms=500, latency_class="batch", n=2), draw())
    asked_chat, asked_draw = ASKED[-2:]
    assert (asked_chat["max_tokens"], asked_chat["min_tokens"], asked_chat["n"]) == (2, 2, 2)
    assert (asked_chat["deadline_ms"], asked_chat["latency_class"], asked_chat["timeout_s"]) == (500, "batch", 9.0)
    assert [part.get("detail") for part in asked_chat["messages"][0]["content"]] == ["auto", "low", None]
    assert len(set(asked_chat["files"])) == 2
    assert (asked_draw["size"], asked_draw["steps"], asked_draw["n"]) == ("96x64", 4, 2)
    assert "deadline_ms" not in asked_draw


def test_what_warms_up_is_of_each_kind_and_shares_no_cache_with_the_run() -> None:
    run(chat(tenant="full"), chat(), draw(), chat(pictures=(picture(),)))
    warming = [asked for asked in ASKED if asked["cache_scope"] == send.WARM_SCOPE]
    assert len(warming) == 3
    assert len(ASKED) == 3 + 4


def test_gaps_are_those_of_each_answer_by_itself() -> None:
    heard = Heard()
    for index, ids, now_s in ((0, (1,), 1.0), (1, (1,), 1.5), (0, (2, 3), 2.0), (1, (), 2.2), (1, (2,), 2.5)):
        heard.add(Piece(text="", token_ids=ids, index=index), now_s)
    assert (heard.first_s, heard.gaps_ms) == (1.0, [500.0, 500.0, 1000.0])


@pytest.mark.parametrize(
    ("request_", "size"),
    [(chat(), None), (chat(pictures=(picture(400, 300), picture(1200, 900))), "4 MP"), (draw(), "96x64")],
)
def test_a_request_has_the_size_of_its_largest_picture(request_: ChatArrival | DrawArrival, size: str | None) -> None:
    assert size_of(request_) == size


def test_question_comes_after_the_pictures() -> None:
    (message,) = messages(chat(pictures=(picture(),)))
    assert [part["type"] for part in message["content"]] == ["image", "text"]
    assert len(message["content"][1]["text"].split()) == 3


def test_what_a_drawing_tells_has_no_caches() -> None:
    assert "caches" not in told(drawing())
