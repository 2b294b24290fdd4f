"""Two tenants in front of the real server: apart from each other, held to their budgets, and billed to the token."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from proteus.cost.vector import ResourceVector
from proteus.gateway.tenancy.tenants_file import digest_of, new_key
from proteus.launcher import Server
from tests.gateway.running import Running, in_front_of, started
from tests.server.figures import is_idle, until
from tests.server.test_ask import CHART

WITHIN_S = 20.0
LONG = {"max_tokens": 900, "min_tokens": 900}


@dataclass(frozen=True, kw_only=True)
class House:
    """A gateway with tenants of its own names: the server's caches know them from no other test."""

    running: Running
    names: dict[str, str]
    keys: dict[str, str]
    log: Path

    def client(self, who: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[who]}"}
        return httpx.Client(base_url=self.running.url, headers=headers, timeout=60)

    def held(self) -> list[Any]:
        """Of every book."""
        gateway = self.running.gateway
        rooms = [dict(room.snapshot().held) for room in gateway.shares.rooms.values()]
        return [gateway.budgets.held(name) for name in self.names.values()] + rooms

    def is_empty(self) -> bool:
        held = self.held()
        budgets, rooms = held[: len(self.names)], held[len(self.names) :]
        return all(one == ResourceVector() for one in budgets) and not any(any(room.values()) for room in rooms)


LIMITS = {
    "acme": "",
    "bolt": "",
    "one": "in_flight = { requests = 1, output_tokens = 1000 }",
    "slow": "per_second = { output_tokens = 0.001 }\nburst_s = 200_000.0",  # 200 at once, and then none for long
    "few": 'models = ["demo-draw"]',
}


@pytest.fixture(scope="module")
def house(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("tenants")
    names = {who: f"{who}-{secrets.token_hex(4)}" for who in LIMITS}
    keys = {who: new_key() for who in LIMITS}
    tables = [
        f'[tenants.{names[who]}]\nkeys = ["sha256:{digest_of(keys[who].encode()).hex()}"]\n{limits}\n'
        for who, limits in LIMITS.items()
    ]
    (folder / "tenants.toml").write_text("\n".join(tables))
    deployment = in_front_of(
        server.ports.grpc_url,
        tenants=str(folder / "tenants.toml"),  # type: ignore[arg-type]
        metering={"path": str(folder / "meter.jsonl"), "max_bytes": 1 << 20, "max_files": 2},
    )
    with started(deployment) as running:
        yield House(running=running, names=names, keys=keys, log=folder / "meter.jsonl")


def comes_true(holds: Callable[[], bool]) -> bool:
    last_s = time.monotonic() + WITHIN_S
    while not (held := holds()) and time.monotonic() < last_s:
        time.sleep(0.02)
    return held


def asked(text: str = "What is this?", *, picture: bool = False, **fields: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if picture:
        url = "data:image/png;base64," + base64.b64encode(CHART.read_bytes()).decode()
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return {"model": "demo", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


def answered(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def refused(client: httpx.Client, body: dict[str, Any]) -> tuple[int, str, httpx.Response]:
    answer = client.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.json()["error"]["code"], answer


def lines_of(house: House, request_ids: set[str]) -> list[dict[str, Any]]:
    """Once they are written."""

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in house.log.read_text().splitlines()]

    assert comes_true(lambda: request_ids <= {line["request_id"] for line in lines()})
    return [line for line in lines() if line["request_id"] in request_ids]


def test_without_a_key_or_with_another_nobody_gets_in(house: House) -> None:
    for headers in ({}, {"authorization": f"Bearer {new_key()}"}, {"api-key": house.keys["acme"]}):
        answer = httpx.post(f"{house.running.url}/v1/chat/completions", json=asked(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_what_one_tenant_has_shown_is_not_in_the_caches_of_another(house: House) -> None:
    seen = {}
    for who in ("acme", "acme", "bolt", "bolt"):
        with house.client(who) as client:
            told = answered(client, asked(picture=True))
        account = told["proteus"]
        seen.setdefault(who, []).append((account["pictures"], account["usage"]["cached_tokens"] > 0))
    assert seen["acme"] == seen["bolt"] == [(["encoded"], False), (["cached"], True)]


def test_a_model_that_is_not_the_tenants_is_refused_and_metered(house: House) -> None:
    with house.client("few") as client:
        status, code, answer = refused(client, asked())
    assert (status, code) == (403, "not_allowed")
    (line,) = lines_of(house, {answer.headers["x-request-id"]})
    assert (line["tenant"], line["outcome"], line["status"]) == (house.names["few"], "not_allowed", 403)


def test_a_second_request_over_the_budget_in_flight_is_told_when_to_come_back(house: House, server: Server) -> None:
    with house.client("one") as client:
        with client.stream("POST", "/v1/chat/completions", json=asked(stream=True, **LONG)) as stream:
            lines = stream.iter_lines()
            next(lines)
            status, code, answer = refused(client, asked())
            assert (status, code) == (429, "over_budget")
            assert int(answer.headers["retry-after"]) >= 1
            assert f"[tenants.{house.names['one']}.in_flight] requests = 1" in answer.json()["error"]["limit"]
        assert comes_true(house.is_empty)  # the stream was left in its middle
        answered(client, asked())
        assert refused(client, asked(n=2))[:2] == (413, "media_too_large")
    assert until(server, is_idle)


def test_a_budget_per_second_counts_what_was_used(house: House) -> None:
    """200 tokens: three times 150 fit, for each answer has but few of them, and then one that needs all does not."""
    with house.client("slow") as client:
        used = 0
        for _ in range(3):
            told = answered(client, asked(max_tokens=150, stop=[" "]))
            used += told["usage"]["completion_tokens"]
        assert used < 50
        assert refused(client, asked(max_tokens=200))[:2] == (429, "over_budget")
        assert refused(client, asked(max_tokens=201))[:2] == (413, "media_too_large")


def test_who_leaves_has_used_all_that_was_begun(house: House) -> None:
    gateway = house.running.gateway
    with house.client("bolt") as client:
        with client.stream("POST", "/v1/chat/completions", json=asked(stream=True, **LONG)) as stream:
            request_id = stream.headers["x-request-id"]
            lines = stream.iter_lines()
            next(lines)
        assert comes_true(house.is_empty)
    (line,) = lines_of(house, {request_id})
    assert (line["outcome"], line["usage"], line["resources"]["output_tokens"]) == ("client_gone", {}, 900)
    assert gateway.visits.open == 0
    assert gateway.seats.figures() == {"open_requests": 0, "open_bytes": 0}


def test_the_metering_log_says_what_the_answers_said(house: House) -> None:
    told = {}
    for who in ("acme", "bolt"):
        with house.client(who) as client:
            for body in (asked("Hello"), asked(picture=True), asked("Hello", n=2)):
                answer = client.post("/v1/chat/completions", json=body)
                told[answer.headers["x-request-id"]] = answer.json()
            drawing = client.post("/v1/images/generations", json={"model": "demo-draw", "prompt": "a", "steps": 2})
            assert drawing.status_code == 200, drawing.text
            told[drawing.headers["x-request-id"]] = drawing.json()
    lines = lines_of(house, set(told))
    assert len(lines) == 8
    for line in lines:
        account = told[line["request_id"]]["proteus"]
        assert line["usage"] == account["usage"]
        assert line["resources"] == {name: value for name, value in account["resources"].items() if value}
        assert line["price"] == {name: account["price"][name] for name in ("currency", "amount")}
        assert (line["model"], line["pool"], line["outcome"]) == (account["model"], account["pool"], "served")
    assert "Hello" not in house.log.read_text()
    assert house.is_empty()
