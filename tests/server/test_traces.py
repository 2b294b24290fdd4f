"""Traces of a server that is told of a collector: one request is one trace, from the client's own span on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from perf.collector import Collector, Spans, collecting
from proteus.client import Client
from proteus.launcher import Server, Tracing
from tests.server.wire import document, error_of, message, png

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
CALLS = {"image_tokens", "llm"}
OF_PICTURES = {"image_preprocess", "vision_encoder", "connector"}
OF_TEXT = {"lm_queue", "prefill", "decode"}
TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("traced") / "server.log"
    with Server(DEMO, log=log, tracing=Tracing(url=collector.url)) as server:
        yield server


def traces(spans: Spans) -> dict[str, Spans]:
    by_trace: dict[str, Spans] = {}
    for span in spans:
        by_trace.setdefault(span["traceId"], []).append(span)
    return by_trace


def whole(spans: Spans, model: str) -> Spans:
    """The trace that has all of Triton's spans and the door's; none until it is there."""
    for trace in traces(spans).values():
        if {"InferRequest", model, f"{model} request"} <= {span["name"] for span in trace}:
            return trace
    return []


def trace_of(collector: Collector, act: Callable[[], object], model: str = "chat") -> dict[str, dict[str, Any]]:
    """The spans of the one request that `act` makes, by name; nothing of it arrives later."""
    collector.spans.clear()
    act()
    found = collector.until(lambda spans: bool(whole(spans, model)))
    return {span["name"]: span for span in whole(found, model)}


def send(url: str, text: bytes, pictures: list[bytes]) -> None:
    """With a client's own span above it."""
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        headers = [("traceparent", f"00-{TRACE}-{CLIENT}-01")]
        for event in stub.ModelStreamInfer(iter([message(text, pictures)]), timeout=30, metadata=headers):
            assert not event.error_message


@pytest.fixture(scope="module")
def client(traced: Server) -> Iterator[Client]:
    with Client(traced.ports.grpc_url) as client:
        yield client


def test_one_request_is_one_trace_of_every_model(client: Client, collector: Collector) -> None:
    trace = trace_of(collector, lambda: client.ask("What is it?", [png(colour="teal")]))
    doors = {"InferRequest", "chat", "chat request", "ingress", "admission"}
    assert doors | CALLS | OF_PICTURES | OF_TEXT <= set(trace)
    assert trace["chat request"]["parentSpanId"] == trace["chat"]["spanId"]
    for parent, names in (("chat request", CALLS), ("image_tokens", OF_PICTURES), ("llm", OF_TEXT)):
        assert {trace[name]["parentSpanId"] for name in names} == {trace[parent]["spanId"]}


def test_spans_lie_one_after_the_other_by_one_clock(client: Client, collector: Collector) -> None:
    trace = trace_of(collector, lambda: client.ask("What is it?", [png(colour="navy")]))
    order = ("ingress", "admission", "image_preprocess", "vision_encoder", "connector", "lm_queue", "prefill", "decode")
    ends = [int(trace[name]["endTimeUnixNano"]) for name in order]
    assert ends == sorted(ends)
    outer, inner = trace["InferRequest"], trace["decode"]
    assert int(outer["startTimeUnixNano"]) <= int(inner["startTimeUnixNano"]) <= int(outer["endTimeUnixNano"])


def test_a_cached_picture_has_no_span_of_its_stages(client: Client, collector: Collector) -> None:
    new, cached = (trace_of(collector, lambda: client.ask("What is it?", [png(colour="olive")])) for _ in range(2))
    assert set(new) - set(cached) == {"image_tokens", *OF_PICTURES}


def test_a_trace_begins_with_the_clients_own_span(traced: Server, collector: Collector) -> None:
    """Triton 2.51 now and then loses the header of a stream: one of several must have it, and nobody another's."""
    parents = []
    for _ in range(5):
        trace = trace_of(collector, lambda: send(traced.ports.grpc_url, document(pictures=0), []))
        assert len({span["traceId"] for span in trace.values()}) == 1
        parents.append((trace["llm"]["traceId"], trace["InferRequest"].get("parentSpanId")))
    assert (TRACE, CLIENT) in parents


def test_an_error_is_the_outcome_of_its_trace(traced: Server, collector: Collector) -> None:
    """Of requests that are refused at once, Triton 2.51 loses a tenth of its own spans; the door's are all there."""
    collector.spans.clear()
    refused = document("What is it?", pictures=0, max_tokens=10**6)
    for _ in range(5):
        error_of(traced.ports.grpc_url, refused, [])

    def of_door(spans: Spans) -> Spans:
        return [span for span in spans if span["name"] == "chat request"]

    roots = of_door(collector.until(lambda spans: len(of_door(spans)) == 5))
    told = [{attribute["key"]: attribute["value"] for attribute in root["attributes"]} for root in roots]
    assert told == [{"proteus.outcome": {"stringValue": "prompt_too_long"}}] * 5
    assert "What is it" not in json.dumps(roots)


def test_drawing_is_traced(client: Client, collector: Collector) -> None:
    trace = trace_of(collector, lambda: client.draw("a red circle", size="64x64", steps=2), "draw")
    assert {"text_encoder", "denoiser", "vae_decoder", "admission"} <= set(trace)


def test_triton_writes_its_own_traces_to_files(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with (
        Server(DEMO, log=tmp_path / "server.log", tracing=Tracing(file=file)) as server,
        Client(server.ports.grpc_url) as client,
    ):
        client.ask("What is it?")
        client.ask("And now?")
    (first, *_) = sorted(tmp_path.glob("trace.json.*"))
    assert {"chat"} == {event["model_name"] for event in json.loads(first.read_text()) if "model_name" in event}
