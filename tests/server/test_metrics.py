"""Known traffic, and what the metrics port tells of it: times by what a request was, outcomes, memory of the stubs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from proteus.client import Answer, Client
from proteus.launcher import Server
from tests.preprocess.pictures import encode, noise
from tests.server.figures import metrics, until
from tests.server.wire import document, error_of

TEXT = 'latency_class="text",modality="text",size="none"'
SMALL = 'latency_class="media",modality="image",size="0.25 MP"'
TWO = 'latency_class="media",modality="images",size="1 MP"'
Figures = Mapping[str, float]


def total(now: Figures, family: str, labels: str = "") -> float:
    """Over all series of a family that have these labels next to each other."""
    return sum(value for name, value in now.items() if name.partition("{")[0] == family and labels in name)


def picture(width: int, height: int) -> bytes:
    """New to every cache."""
    return encode(noise(width, height, int(time.monotonic_ns() % 2**31)))


@pytest.fixture(scope="module")
def traffic(server: Server) -> tuple[list[Answer], list[Answer], Figures, Figures]:
    """Answers to text and about pictures, the figures before and those after."""
    small, large = picture(200, 100), picture(1000, 800)
    before = metrics(server)
    with Client(server.ports.grpc_url) as client:
        text = [client.ask(f"What is {number}?") for number in range(5)]
        pictures = [client.ask("What is it?", asked) for asked in ([small], [small], [small, large])]
    served = 'proteus_requests_total{outcome="served"}'
    assert until(server, lambda now: now.get(served, 0) == before.get(served, 0) + 8)
    return text, pictures, before, metrics(server)


def grown(traffic: tuple[Any, Any, Figures, Figures], family: str, labels: str = "") -> float:
    *_, before, after = traffic
    return total(after, family, labels) - total(before, family, labels)


@pytest.mark.parametrize(("labels", "requests"), [(TEXT, 5), (SMALL, 2), (TWO, 1), ("", 8)])
def test_each_request_is_in_the_histogram_of_its_kind(traffic: Any, labels: str, requests: int) -> None:
    for family in ("proteus_ttft_seconds_count", "proteus_inter_token_seconds_count"):
        assert grown(traffic, family, labels) == requests


def test_stages_add_up_to_ttft_and_decoding(traffic: Any) -> None:
    stages_s = grown(traffic, "proteus_stage_seconds_sum")
    decode_s = grown(traffic, "proteus_stage_seconds_sum", 'stage="decode"')
    ttft_s = grown(traffic, "proteus_ttft_seconds_sum")
    assert math.isclose(stages_s - decode_s, ttft_s, rel_tol=1e-6)


def test_the_histograms_hold_what_the_reports_said(traffic: Any) -> None:
    text, pictures, *_ = traffic
    ttft_ms = sum(answer.ttft_ms for answer in (*text, *pictures))
    assert math.isclose(grown(traffic, "proteus_ttft_seconds_sum") * 1e3, ttft_ms, rel_tol=1e-3)


@pytest.mark.parametrize(("stage", "small"), [("preprocess", 1), ("encode", 1), ("connector", 1), ("prefill", 2)])
def test_hits_of_caches_are_in_no_stage(traffic: Any, stage: str, small: int) -> None:
    seen = [
        series
        for series in traffic[3]
        if series.startswith("proteus_stage_seconds_count") and SMALL in series and f'stage="{stage}"' in series
    ]
    assert sum(traffic[3][series] - traffic[2].get(series, 0) for series in seen) == small


def test_pixels_and_visual_tokens_are_counted(traffic: Any) -> None:
    assert grown(traffic, "proteus_decoded_pixels_total") == 200 * 100 + 1000 * 800
    tokens = sum(answer.usage.visual_tokens for answer in traffic[1])
    assert grown(traffic, "proteus_visual_tokens_total") == tokens
    assert grown(traffic, "proteus_visual_tokens_total", 'source="cached"') == tokens / 2


def test_the_last_bucket_holds_every_request(traffic: Any) -> None:
    *_, after = traffic
    assert total(after, "proteus_ttft_seconds_bucket", 'le="+Inf"') == total(after, "proteus_ttft_seconds_count")


@pytest.mark.parametrize(
    ("send", "outcome"),
    [
        (lambda url: error_of(url, b"{", []), "invalid_request"),
        (lambda url: error_of(url, document(max_tokens=10**6), [b"no picture"]), "invalid_picture"),
        (lambda url: error_of(url, document(pictures=0, max_tokens=10**6), []), "prompt_too_long"),
        (lambda url: error_of(url, document(pictures=9), [b""] * 9), "media_too_large"),
        (lambda url: error_of(url, b"{", [], model="draw"), "draw invalid_request"),
    ],
    ids=["a document that is none", "no picture", "a long answer", "many pictures", "drawing"],
)
def test_what_is_refused_before_admission_is_counted(server: Server, send: Callable[[str], str], outcome: str) -> None:
    draw, _, code = outcome.rpartition(" ")
    series = f'proteus_{draw}{"_" if draw else ""}requests_total{{outcome="{code}"}}'
    before = metrics(server).get(series, 0)
    text = send(server.ports.grpc_url)
    assert text.startswith(f"{code}:")
    assert until(server, lambda now: now.get(series, 0) == before + 1)


def test_drawings_have_stages_by_their_size(server: Server) -> None:
    series = (
        'proteus_stage_seconds_count{latency_class="media",modality="draw",size="64x64",stage="denoise",tier="none"}'
    )
    before = metrics(server).get(series, 0)
    with Client(server.ports.grpc_url) as client:
        client.draw("a red circle", size="64x64", steps=2)
    assert until(server, lambda now: now.get(series, 0) == before + 1)


def test_the_memory_of_every_model_is_told_once(server: Server) -> None:
    def told(now: Figures) -> dict[str, float]:
        name = "proteus_stub_memory_bytes{model="
        return {series[len(name) + 1 : -2]: value for series, value in now.items() if series.startswith(name)}

    assert until(server, lambda now: set(told(now)) == {*server.stub_pids(), "tritonserver"})
    assert np.all(np.array(list(told(metrics(server)).values())) > 2**20)
