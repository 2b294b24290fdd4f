"""Both clients against a peer that speaks the protocol; the blocking one runs in threads, the other in a loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from proteus.client import (
    Answer,
    AsyncClient,
    Client,
    ClientError,
    ConnectionFailed,
    InvalidInput,
    LikelyToken,
    Piece,
    ServerError,
    TimedOut,
    TokenLogprob,
    Usage,
)
from proteus.clock import clock_name
from tests.client.peer import CONTRACT, REFUSAL, REPORT, Peer, peer_to_stop

USAGE = Usage(text_tokens=9, visual_tokens=36, output_tokens=3, cached_tokens=8)


def ask_async(url: str, question: str, timeout_s: float | None = None) -> Answer:
    async def run() -> Answer:
        async with AsyncClient(url) as client:
            return await client.ask(question, timeout_s=timeout_s)

    return asyncio.run(run())


def ask_blocking(url: str, question: str, timeout_s: float | None = None) -> Answer:
    with Client(url) as client:
        return client.ask(question, timeout_s=timeout_s)


Ask = Callable[..., Answer]
both = pytest.mark.parametrize("ask", [ask_blocking, ask_async])


@both
def test_an_answer_is_typed_and_whole(ask: Ask, peer: Peer) -> None:
    answer = ask(peer.url, "what is this")
    assert answer.text == "what is this "
    assert answer.token_ids == (0, 1, 2, 99)
    assert answer.finish_reason == "stop"
    assert answer.usage == USAGE
    assert list(answer.stages_ms.items()) == list(REPORT["stages_ms"].items())
    assert answer.ingress_ms == REPORT["ingress_ms"]
    assert (answer.ttft_ms, answer.inter_token_ms) == (12.5, {"mean": 3.5, "max": 4.25})
    assert (answer.caches, list(answer.media)) == (REPORT["caches"], REPORT["media"])
    assert answer.pictures == ("encoded", "cached")


@both
def test_several_answers_are_told_apart_with_their_logprobs(ask: Ask, peer: Peer) -> None:
    answer = ask(peer.url, "two answers")
    assert [(choice.text, choice.token_ids, choice.finish_reason) for choice in answer.choices] == [
        ("0: one 0: more", (1, 2), "stop"),
        ("1: one 1: more", (2, 3), "length"),
    ]
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("0: one 0: more", (1, 2), "stop")
    likely = LikelyToken(token="a", logprob=-1.5, bytes=b"a")
    one = TokenLogprob(token="\ufffd", logprob=-0.5, bytes=b"\xc3", top_logprobs=(likely,))
    assert answer.logprobs == answer.choices[1].logprobs == (one, one)


@both
def test_an_answer_of_a_server_that_knows_one_choice_only_is_read(ask: Ask, peer: Peer) -> None:
    answer = ask(peer.url, "old server")
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, answer.usage.cached_tokens) == ("one", "length", 0)
    assert (answer.ttft_ms, answer.inter_token_ms, answer.caches, answer.media) == (None, None, {}, ())


@both
def test_a_request_says_when_it_was_sent_by_the_clock_of_the_machine(ask: Ask, peer: Peer) -> None:
    begun_ns = time.monotonic_ns()
    ask(peer.url, "one")
    (sent,) = peer.sent
    assert sent is not None
    assert sent["clock"] == clock_name()
    assert begun_ns < sent["ns"] < time.monotonic_ns()


def test_a_request_is_sent_when_its_stream_is_begun_and_not_when_it_is_made(peer: Peer) -> None:
    with Client(peer.url) as client:
        stream = client.stream("one")
        made_ns = time.monotonic_ns()
        list(stream)
    assert peer.sent[0] is not None
    assert peer.sent[0]["ns"] > made_ns


def test_a_moment_that_the_caller_gives_is_left_as_it_is(peer: Peer) -> None:
    given = {"clock": "mine", "ns": 7}
    with Client(peer.url) as client:
        client.ask("one", sent=given)
    assert peer.sent == [given]


@both
def test_a_machine_without_a_name_for_its_clock_says_nothing(
    ask: Ask, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proteus.clock.clock_name", lambda: None)
    ask(peer.url, "one")
    assert peer.sent == [None]


def stop_async(url: str, request_id: str, cache_scope: str = "", tenant: str = "") -> int:
    async def run() -> int:
        async with AsyncClient(url) as client:
            return await client.stop(request_id, cache_scope=cache_scope, tenant=tenant, timeout_s=10)

    return asyncio.run(run())


def stop_blocking(url: str, request_id: str, cache_scope: str = "", tenant: str = "") -> int:
    with Client(url) as client:
        return client.stop(request_id, cache_scope=cache_scope, tenant=tenant, timeout_s=10)


both_stops = pytest.mark.parametrize("stop", [stop_blocking, stop_async])


@both_stops
def test_a_stop_says_how_many_it_stopped(stop: Callable[..., int], peer: Peer) -> None:
    assert (stop(peer.url, "mine", cache_scope="a", tenant="b"), stop(peer.url, "another's")) == (1, 0)
    assert peer.documents == [
        {"stop": {"request_id": "mine", "cache_scope": "a", "tenant": "b"}},
        {"stop": {"request_id": "another's", "cache_scope": "", "tenant": ""}},
    ]


@both_stops
def test_a_stop_without_a_server_is_said_in_plain_words(stop: Callable[..., int], closed_url: str) -> None:
    with pytest.raises(ConnectionFailed, match="no server at"):
        stop(closed_url, "mine")


@both
def test_a_refusal_keeps_the_servers_words(ask: Ask, peer: Peer) -> None:
    with pytest.raises(ServerError) as caught:
        ask(peer.url, "refuse")
    assert str(caught.value) == REFUSAL
    assert (caught.value.code, caught.value.fix) == ("queue_full", "try again later")


def contract_async(url: str) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with AsyncClient(url) as client:
            return await client.contract(timeout_s=10)

    return asyncio.run(run())


def contract_blocking(url: str) -> dict[str, Any]:
    with Client(url) as client:
        return client.contract(timeout_s=10)


both_contracts = pytest.mark.parametrize("contract", [contract_blocking, contract_async])


@both_contracts
def test_the_contract_is_read_from_the_server(contract: Callable[[str], dict[str, Any]], peer: Peer) -> None:
    assert contract(peer.url) == CONTRACT


@both_contracts
@pytest.mark.parametrize(("model", "other"), [("chat", "draw"), ("draw", "chat")])
def test_a_server_of_one_model_has_the_contract_of_that_one(
    contract: Callable[[str], dict[str, Any]], model: str, other: str, peer: Peer
) -> None:
    del peer.published[other]
    assert contract(peer.url).keys() == ({"draw"} if model == "draw" else CONTRACT.keys() - {"draw"})


@both_contracts
@pytest.mark.parametrize("published", [{}, {"chat": {"deployment": "../deployments/demo.toml"}}])
def test_a_server_without_a_contract_is_said_so(
    contract: Callable[[str], dict[str, Any]], published: dict[str, dict[str, str]], peer: Peer
) -> None:
    peer.published = published
    with pytest.raises(ServerError, match="neither chat nor draw publishes limits") as caught:
        contract(peer.url)
    assert caught.value.code == "no_contract"


@both_contracts
def test_no_server_has_no_contract(contract: Callable[[str], dict[str, Any]], closed_url: str) -> None:
    with pytest.raises(ConnectionFailed, match="no server at"):
        contract(closed_url)


@both
@pytest.mark.parametrize(("question", "code"), [("break off", "internal"), ("end early", "incomplete")])
def test_half_an_answer_is_never_taken_for_a_whole(ask: Ask, question: str, code: str, peer: Peer) -> None:
    with pytest.raises(ServerError) as caught:
        ask(peer.url, question)
    assert caught.value.code == code


@both
def test_a_server_that_goes_away_is_said_so(ask: Ask, peer: Peer) -> None:
    with pytest.raises(ConnectionFailed, match="went away before the answer was complete"):
        ask(peer.url, "go away")


@both
def test_no_server_is_said_in_plain_words(ask: Ask, closed_url: str) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        ask(closed_url, "hi")
    assert str(caught.value) == f"no server at {closed_url}: start one with `proteus serve`"


@both
def test_a_timeout_stops_the_request_at_the_server(ask: Ask, peer: Peer) -> None:
    with pytest.raises(TimedOut, match=r"in time: raise timeout_s = 0\.3"):
        ask(peer.url, "never end", timeout_s=0.3)
    assert peer.cancelled.wait(timeout=10)


def test_a_timeout_is_kept_where_the_server_reads_nothing_any_more() -> None:
    async def run(url: str, stop: Callable[[], None]) -> float:
        async with AsyncClient(url) as client:
            await client.ask("one")
            stop()
            begun_s = time.monotonic()
            with pytest.raises(TimedOut, match=r"in time: raise timeout_s = 0\.5"):
                await client.ask("x" * 30_000_000, timeout_s=0.5)
            return time.monotonic() - begun_s

    with peer_to_stop() as (url, stop):
        assert asyncio.run(run(url, stop)) < 10


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "127.0.0.1", "", "a b:1"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidInput, match="give host:port of the gRPC port"):
        Client(url)


def test_pieces_come_first_and_the_answer_last(peer: Peer) -> None:
    with Client(peer.url) as client:
        *pieces, answer = client.stream("one two")
    assert pieces == [
        Piece(text="one ", token_ids=(0,)),
        Piece(text="two ", token_ids=(1,)),
        Piece(text="", token_ids=(99,)),
    ]
    assert isinstance(answer, Answer)
    assert answer.text == "".join(piece.text for piece in cast(list[Piece], pieces))


def test_a_finished_stream_is_not_cancelled(peer: Peer) -> None:
    with Client(peer.url) as client:
        client.ask("one")
        client.ask("two")
    assert not peer.cancelled.is_set()


def test_closing_the_iterator_cancels_at_the_server(peer: Peer) -> None:
    with Client(peer.url) as client:
        stream = client.stream("never end")
        assert next(stream) == Piece(text="half", token_ids=(1,))
        cast(Generator[Piece, None, None], stream).close()
        assert peer.cancelled.wait(timeout=10)


def test_forgetting_the_iterator_cancels_at_the_server(peer: Peer) -> None:
    with Client(peer.url) as client:
        for _ in client.stream("never end"):
            break
        gc.collect()
        assert peer.cancelled.wait(timeout=10)


def test_closing_the_async_iterator_cancels_at_the_server(peer: Peer) -> None:
    async def run() -> None:
        async with AsyncClient(peer.url) as client:
            stream = cast(AsyncGenerator[Piece, None], client.stream("never end"))
            assert (await anext(stream)).text == "half"
            await stream.aclose()
            assert await asyncio.to_thread(peer.cancelled.wait, 10)

    asyncio.run(run())


def test_cancelling_the_task_cancels_at_the_server(peer: Peer) -> None:
    async def run() -> None:
        async with AsyncClient(peer.url) as client:
            task = asyncio.create_task(client.ask("never end"))
            while not peer.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(peer.cancelled.wait, 10)

    asyncio.run(run())


def test_one_client_serves_many_threads_each_with_its_own_stream(peer: Peer) -> None:
    questions = [f"question number {number}" for number in range(64)]
    with Client(peer.url) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(client.ask, questions))
    assert [answer.text.strip() for answer in answers] == questions


def test_one_loop_runs_many_asks_at_once(peer: Peer) -> None:
    questions = [f"question number {number}" for number in range(64)]

    async def run() -> list[Answer]:
        async with AsyncClient(peer.url) as client:
            return await asyncio.gather(*map(client.ask, questions))

    assert [answer.text.strip() for answer in asyncio.run(run())] == questions


def test_a_conversation_is_sent_as_it_is(peer: Peer) -> None:
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hello"}]
    with Client(peer.url) as client:
        assert client.chat(messages, max_tokens=4, cache_scope="a").text == "hello "
    assert peer.documents == [{"messages": messages, "max_tokens": 4, "cache_scope": "a"}]


def test_bad_input_is_raised_by_the_call_and_not_by_the_first_piece(peer: Peer) -> None:
    with Client(peer.url) as client, pytest.raises(ClientError):
        client.stream("hi", ["no such file"])
    assert not peer.requests
