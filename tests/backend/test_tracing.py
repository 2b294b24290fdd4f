"""The spans that a door sends beneath Triton's."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perf.collector import collecting
from proteus.backend.fleet import Context, EncodedPicture, LlmCall, LlmEnd, LlmEvent
from proteus.backend.spans import Trace, document
from proteus.backend.traced import TracedFleet
from proteus.backend.tracing import Tracing
from proteus.door.observed import Observed
from proteus.errors import InvalidPicture
from proteus.stages import EncodeMarks

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
MS = 10**6
MARKS = EncodeMarks(preprocess=(1 * MS, 3 * MS), encoder=(4 * MS, 5 * MS), connector=(0, 0))
END = LlmEnd(finish_reason="stop", cached_tokens=0, queue_us=1000, prefill_us=2000, decode_us=3000)
CALL = LlmCall(
    request_key=b"k",
    input_ids=np.zeros(1, dtype=np.int32),
    visual_tokens=None,
    visual_spans=(),
    media_keys=(),
    sampling=b"",
    scheduling=b"",
)


@dataclass
class Ended:
    outcome: str = "served"
    stages_ms: dict[str, float] = field(default_factory=dict)


class Models:
    error: InvalidPicture | None = None

    async def image_tokens(self, *_: Any) -> EncodedPicture:
        if self.error is not None:
            raise self.error
        return EncodedPicture(visual_tokens=np.zeros((1, 2), dtype=np.float32), marks=MARKS)

    async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
        yield LlmEvent(text="a", token_ids=(1,), end=None)
        yield LlmEvent(text="", token_ids=(), end=END)

    async def stop(self, request_key: bytes) -> None:
        raise AssertionError


def beneath(traceparent: str = TRACEPARENT) -> Trace:
    trace = Trace.beneath(traceparent)
    assert trace is not None
    return trace


def spans_of(trace: Trace) -> dict[str, dict[str, Any]]:
    return {span["name"]: dict(span) for span in trace.spans()}


def lasted_ms(span: dict[str, Any]) -> float:
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / MS


async def ask(trace: Trace | None, models: Models) -> None:
    fleet, context = TracedFleet(models), Context(parameters={}, trace=trace)
    await fleet.image_tokens(b"", b"", context)
    async for _ in fleet.generate(CALL, context):
        pass


@pytest.mark.parametrize("traceparent", ["", "01-x", f"00-{TRACE}-{PARENT}", f"ff-{TRACE}-{PARENT}-01", TRACE])
def test_a_header_of_another_version_gives_no_trace(traceparent: str) -> None:
    assert Trace.beneath(traceparent) is None


def test_calls_have_spans_made_of_what_the_models_tell() -> None:
    trace = beneath()
    asyncio.run(ask(trace, Models()))
    spans = spans_of(trace)
    assert set(spans) == {"image_tokens", "image_preprocess", "vision_encoder", "llm", "lm_queue", "prefill", "decode"}
    for name in ("image_preprocess", "vision_encoder"):
        assert spans[name]["parentSpanId"] == spans["image_tokens"]["spanId"]
    assert [lasted_ms(spans[name]) for name in ("image_preprocess", "vision_encoder")] == [2, 1]
    assert [lasted_ms(spans[name]) for name in ("lm_queue", "prefill", "decode")] == [1, 2, 3]
    assert spans["lm_queue"]["endTimeUnixNano"] == spans["prefill"]["startTimeUnixNano"]


def test_a_request_that_is_not_traced_costs_no_span() -> None:
    asyncio.run(ask(None, Models()))


def test_the_span_of_the_request_lies_beneath_tritons_and_holds_all_others() -> None:
    trace = beneath()
    asyncio.run(ask(trace, Models()))
    begun_ns = min(int(span["startTimeUnixNano"]) for span in spans_of(trace).values())
    trace.close("chat", (0, 1), "served", {"ingress": 5.0, "admission": 2.0, "decode": 9.0})
    spans = spans_of(trace)
    root = spans["chat request"]
    assert (root["traceId"], root["parentSpanId"]) == (TRACE, PARENT)
    assert {spans[name]["parentSpanId"] for name in ("ingress", "admission", "llm")} == {root["spanId"]}
    assert spans["ingress"]["endTimeUnixNano"] == spans["admission"]["startTimeUnixNano"]
    assert begun_ns > 0 and [lasted_ms(spans[name]) for name in ("ingress", "admission")] == [5, 2]
    told = {attribute["key"]: attribute["value"] for attribute in root["attributes"]}
    assert told["proteus.outcome"] == {"stringValue": "served"}
    assert told["proteus.decode_ms"] == {"doubleValue": 9.0}


def test_a_call_that_fails_tells_its_code_and_no_text() -> None:
    models, trace = Models(), beneath()
    models.error = InvalidPicture("secret.png is broken")
    with pytest.raises(InvalidPicture):
        asyncio.run(ask(trace, models))
    assert spans_of(trace)["image_tokens"]["status"] == {"code": 2, "message": "invalid_picture"}
    assert "secret" not in json.dumps(document([trace]))


@contextmanager
def counted() -> Iterator[Ended]:
    ended = Ended()
    yield ended
    ended.outcome = "known at the end"


def request(context: str | None) -> Any:
    return SimpleNamespace(trace=lambda: SimpleNamespace(get_context=lambda: context))


def test_traces_reach_the_collector_when_their_requests_are_over() -> None:
    with collecting() as collector:
        tracing = Tracing("chat", collector.url)
        with tracing.request(request(json.dumps({"traceparent": TRACEPARENT})), counted()) as (_, trace):
            assert trace is not None
        with tracing.request(request(None), counted()) as (_, untraced):
            assert untraced is None, "Triton has not sampled it"
        tracing.close()
        (span,) = collector.spans
        assert (span["name"], span["traceId"]) == ("chat request", TRACE)
        assert span["attributes"] == [{"key": "proteus.outcome", "value": {"stringValue": "known at the end"}}]


def test_without_a_collector_nothing_is_asked_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    tracing = Tracing("chat")
    with tracing.request(None, counted()) as (_, trace):
        assert trace is None
    tracing.close()


def test_a_collector_that_cannot_be_reached_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    tracing = Tracing("chat", "http://127.0.0.1:1/v1/traces?key=secret")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with tracing.request(request(json.dumps({"traceparent": TRACEPARENT})), counted()):
                pass
            tracing._send_all()
        tracing.close()
    assert [record.message.split(":")[0] for record in caplog.records] == ["no traces reach http"]
    assert "secret" not in caplog.text


def test_what_is_no_collector_ends_nothing() -> None:
    """The thread that sends goes on: a collector may be at that address a moment later."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_nonsense, args=(server,), daemon=True).start()
        tracing = Tracing("chat", f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces")
        with tracing.request(request(json.dumps({"traceparent": TRACEPARENT})), counted()):
            pass
        tracing._send_all()
        tracing.close()


def answer_nonsense(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"220 mail.internal ESMTP\r\n")


def test_a_request_that_fails_is_traced_with_its_outcome() -> None:
    with collecting() as collector:
        tracing = Tracing("chat", collector.url)
        seen = Observed()
        asked = request(json.dumps({"traceparent": TRACEPARENT}))
        with pytest.raises(InvalidPicture), tracing.request(asked, seen.request()):
            raise InvalidPicture("x")
        tracing.close()
        assert [span["attributes"][0]["value"]["stringValue"] for span in collector.spans] == ["invalid_picture"]
