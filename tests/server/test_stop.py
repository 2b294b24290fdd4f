"""Requests of a real server that are stopped by their id or left by their client; what they held is free then."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from proteus.client import Answer, Client, Piece, ServerError
from proteus.deployment import Deployment
from proteus.launcher import Server
from tests.server.figures import is_idle, metrics, until
from tests.server.test_ask import CHART, QUESTION
from tests.server.test_stages import ANY_TOKEN, DEMO

SLOTS = Deployment.load(DEMO).llm.slots
CROWD = 3 * SLOTS  # endless ones: whatever share of the slots the policy in force leaves texts, who comes next waits
CANCELLED = 'proteus_llm_ended_total{outcome="cancelled"}'
WASTED = 'proteus_llm_wasted_tokens_total{phase="decode"}'
ENDLESS: dict[str, Any] = {"max_tokens": 900, **ANY_TOKEN}


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.ports.grpc_url) as made:
        yield made


class Asked:
    """A request that runs in a thread; `begun` is set with its first piece."""

    def __init__(self, client: Client, pool: ThreadPoolExecutor, **options: Any) -> None:
        self.begun = threading.Event()
        self.answer: Future[Answer] = pool.submit(self._ask, client, options)

    def _ask(self, client: Client, options: dict[str, Any]) -> Answer:
        for item in client.stream(QUESTION, CHART, **options):
            if isinstance(item, Piece):
                self.begun.set()
            else:
                return item
        raise RuntimeError("the stream ended without an answer")


def test_a_request_is_stopped_by_its_id_while_it_decodes(server: Server, client: Client) -> None:
    client.ask(QUESTION, max_tokens=1)
    assert until(server, is_idle), "the door tells its figures from its first request on"
    before = metrics(server)
    with ThreadPoolExecutor(1) as pool:
        asked = Asked(client, pool, request_id="decodes", **ENDLESS)
        assert asked.begun.wait(30)
        assert client.stop("decodes") == 1
        answer = asked.answer.result(30)
    assert answer.finish_reason == "cancelled"
    assert 0 < len(answer.token_ids) < 900
    assert client.stop("decodes") == 0, "it has ended"
    assert until(server, lambda now: now.get(CANCELLED) == before.get(CANCELLED, 0.0) + 1 and is_idle(now))
    assert metrics(server)[WASTED] - before[WASTED] == len(answer.token_ids)


def test_a_request_is_stopped_by_its_id_while_it_waits_for_a_slot(server: Server, client: Client) -> None:
    with ThreadPoolExecutor(SLOTS + 1) as pool:
        running = [Asked(client, pool, request_id=f"runs {number}", **ENDLESS) for number in range(SLOTS)]
        waiting = Asked(client, pool, request_id="waits", latency_class="batch", **ENDLESS)
        while client.stop("waits") == 0:
            assert not waiting.answer.done()
        answer = waiting.answer.result(30)
        for number in range(SLOTS):
            client.stop(f"runs {number}")
        for asked in running:
            asked.answer.result(30)
    assert answer.finish_reason == "cancelled"
    assert until(server, is_idle)


def test_all_answers_of_a_request_are_stopped_together(server: Server, client: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = Asked(client, pool, request_id="many", n=SLOTS, **ENDLESS)
        assert asked.begun.wait(30)
        assert client.stop("many") == 1
        answer = asked.answer.result(30)
    assert [choice.finish_reason for choice in answer.choices] == ["cancelled"] * SLOTS
    assert until(server, is_idle)


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"cache_scope": "b"}, {}], ids=["tenant", "scope", "none"])
def test_another_tenant_stops_nothing_and_is_told_what_a_stranger_is(client: Client, other: dict[str, str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = Asked(client, pool, request_id="mine", tenant="a", cache_scope="a", **ENDLESS)
        assert asked.begun.wait(30)
        assert client.stop("mine", **other) == client.stop("never was", **other) == 0
        assert not asked.answer.done()
        assert client.stop("mine", tenant="a", cache_scope="a") == 1
        assert asked.answer.result(30).finish_reason == "cancelled"


def test_an_id_is_used_once_at_a_time(client: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = Asked(client, pool, request_id="one", **ENDLESS)
        assert asked.begun.wait(30)
        with pytest.raises(ServerError, match="request_id is that of another open request"):
            client.ask(QUESTION, request_id="one", max_tokens=1)
        client.stop("one")
        asked.answer.result(30)
    assert client.ask(QUESTION, request_id="one", max_tokens=1).finish_reason == "length"


@pytest.mark.parametrize("n", [1, 4])
def test_clients_that_leave_free_every_slot_and_all_that_was_held(server: Server, client: Client, n: int) -> None:
    for _ in range(SLOTS):
        with Client(server.ports.grpc_url) as leaver:
            stream = leaver.stream(QUESTION, CHART, n=n, **ENDLESS)
            assert isinstance(next(stream), Piece)
    assert client.ask(QUESTION, CHART, max_tokens=1).finish_reason == "length"
    assert until(server, is_idle)


def test_nothing_is_held_after_a_storm_of_stops(server: Server, client: Client) -> None:
    def ask(number: int) -> str:
        return client.ask(QUESTION, CHART, request_id=str(number), n=1 + number % 3, **ENDLESS).finish_reason

    with ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(ask, number) for number in range(24)]
        while not all(one.done() for one in asked):
            for number in range(24):
                client.stop(str(number))
        assert {one.result() for one in asked} <= {"cancelled", "length"}
    assert until(server, is_idle)


def held(now: Mapping[str, float]) -> float:
    return now['proteus_reserved{resource="requests"}']


def test_every_answer_counts_in_the_ledger(server: Server, client: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = Asked(client, pool, request_id="counted", n=3, **ENDLESS)
        assert until(server, lambda now: held(now) == 3) or asked.answer.done()
        client.stop("counted")
        asked.answer.result(30)
    assert until(server, is_idle)
