"""What the operations port tells: every name of the documents, numbers that are right, labels that are bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from proteus.gateway.metrics import endpoint_of
from tests.client.peer import Peer
from tests.gateway.running import Running, in_front_of, started
from tests.gateway.test_models import light_file, with_light
from tests.gateway.wire import ASKED, eventually

CHAT = "/v1/chat/completions"
NO_KEEPING = httpx.Limits(max_keepalive_connections=0)  # a connection that is left open would be counted
NAMES = (
    "requests",
    "request_seconds",
    "stage_seconds",
    "open_requests",
    "open_bytes",
    "connections",
    "connections_refused",
    "waiting_requests",
    "server_up",
    "server_outstanding",
    "server_retries",
    "budget_refusals",
    "tenant_usage",
    "price",
    "bad_keys",
    "metering_lines",
    "metering_errors",
    "moderation",
)


@pytest.fixture(scope="module")
def running(peer: Peer) -> Iterator[Running]:
    with started(in_front_of(peer.url)) as one:
        yield one


@pytest.fixture(scope="module")
def web(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=30, limits=NO_KEEPING) as client:
        yield client


@pytest.fixture(scope="module")
def operations(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.serving.metrics_url.removesuffix("/metrics"), timeout=30) as client:
        yield client


def samples(operations: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = operations.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name.removeprefix("proteus_gateway_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_every_name_is_there(web: httpx.Client, operations: httpx.Client) -> None:
    web.post(CHAT, json=ASKED)
    text = operations.get("/metrics").text
    told = set(re.findall(r"^# TYPE proteus_gateway_(\w+)", text, re.MULTILINE))
    assert {name for name in NAMES if not {name, f"{name}_total"} & told} == set()
    assert "_created" not in text


def test_a_request_is_counted_by_how_it_ended(running: Running, web: httpx.Client, operations: httpx.Client) -> None:
    def count(outcome: str, model: str = "demo") -> float:
        labels = (("endpoint", "chat"), ("model", model), ("outcome", outcome))
        return samples(operations).get(("requests_total", labels), 0)

    served, refused, full = count("served"), count("invalid_request", ""), count("queue_full")
    assert web.post(CHAT, json=ASKED).status_code == 200
    assert web.post(CHAT, content=b"[]", headers={"content-type": "application/json"}).status_code == 400
    refuse = {**ASKED, "messages": [{"role": "user", "content": "refuse"}]}
    assert web.post(CHAT, json=refuse).status_code == 429
    assert web.post(CHAT, json=ASKED, headers={"host": "evil.example"}).status_code == 403
    eventually(lambda: running.gateway.visits.open == 0)
    assert count("not_allowed", "") == 1
    assert (count("served"), count("invalid_request", ""), count("queue_full")) == (served + 1, refused + 1, full + 1)
    now = samples(operations)
    assert now["request_seconds_count", (("endpoint", "chat"),)] >= 3
    assert now["stage_seconds_count", (("stage", "receive"),)] >= 3


def test_what_clients_write_is_no_label(web: httpx.Client, operations: httpx.Client) -> None:
    before = len(samples(operations))
    for number in range(20):
        web.get(f"/v1/models/x{number}")
        web.post(CHAT, json={**ASKED, "model": f"m{number}"})
        web.get(f"/x{number}")
    assert len(samples(operations)) < before + 40  # a histogram or two


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [(CHAT, "chat"), ("/v1/models", "models"), ("/v1/models/a", "models"), ("/x", "other"), ("/v1/cost", "cost")],
)
def test_an_endpoint_is_a_word_of_few(path: str, endpoint: str) -> None:
    assert endpoint_of(path) == endpoint


def test_health_is_told_in_full_here_and_in_a_word_outside(
    running: Running, peer: Peer, web: httpx.Client, operations: httpx.Client
) -> None:
    told = operations.get("/health").json()
    assert (told["ready"], told["why"], told["deployment"]) == (True, None, "demo")
    assert {server["server"] for server in told["servers"]} == {peer.url}
    assert told["pools"]["text"] == {"ready": True, "waiting": 0}
    assert web.get("/health/ready").json() == {"ready": True}
    assert web.get("/metrics").status_code == 404


def test_health_tells_of_the_light_models_servers_too(peer: Peer, tmp_path: Path) -> None:
    light_file(tmp_path)
    with started(in_front_of(peer.url, deployment=with_light(tmp_path))) as one:
        told = httpx.get(one.serving.metrics_url.replace("/metrics", "/health")).json()
    assert told["pools"]["light"] == {"ready": False, "waiting": 0}
    assert told["ready"]


def test_without_a_server_it_lives_and_is_not_ready() -> None:
    with started(in_front_of("127.0.0.1:1")) as one, httpx.Client() as client:
        assert client.get(f"{one.url}/health/live").status_code == 200
        assert client.get(f"{one.url}/health/ready").json() == {"ready": False}
        told = client.get(one.serving.metrics_url.replace("/metrics", "/health"))
        assert (told.status_code, told.json()["why"]) == (503, "no server of any pool is ready")


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/metrics", 405), ("GET", "/", 404)])
def test_nothing_else_is_there(operations: httpx.Client, method: str, path: str, status: int) -> None:
    answer = operations.request(method, path)
    assert (answer.status_code, "error" in answer.json()) == (status, True)
