"""Several answers to one request, what each is told, and what the report says of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from proteus.backend.fleet import Context, LlmCall, LlmEvent
from proteus.errors import InvalidRequest, MediaTooLarge, QueueFull, Unavailable
from proteus.language.generation import TokenLogprobs
from proteus.language.sampling import Sampling
from tests.door.test_admission import is_empty
from tests.door.test_chat import BLUE, DEMO, DETOKENIZER, END, FAMILY, RED, Client, Models, call, door, run


class Talkers(Models):
    """Each call says its own number, then ends; answer `slow` of them only when it is stopped or told to go on."""

    def __init__(self, *, slow: tuple[int, ...] = (), fails: int | None = None) -> None:
        super().__init__()
        self.slow, self.fails = slow, fails
        self.cached = [4, 3, 9, 9]

    async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
        number = len(self.calls)
        self.calls.append(call)
        await asyncio.sleep(0)
        yield LlmEvent(text=f"{number}", token_ids=(number,), end=None)
        await asyncio.sleep(0)
        if number == self.fails:
            raise Unavailable("llm does not answer")
        while number in self.slow and call.request_key not in self.stopped:
            await asyncio.sleep(0)
        reason = "cancelled" if call.request_key in self.stopped else "stop"
        end = replace(END, finish_reason=reason, cached_tokens=self.cached[number], saved_us=100 * (number + 1))
        yield LlmEvent(text="!", token_ids=(number, 50), end=end)


def test_answers_come_interleaved_and_the_report_tells_each() -> None:
    async def scenario() -> None:
        models, client = Talkers(), Client()
        await door(models).answer(call("?", RED, n=3), client)
        assert [piece.index for piece in client.pieces] == [0, 1, 2, 0, 1, 2]
        for index in range(3):
            own = [piece for piece in client.pieces if piece.index == index]
            assert "".join(piece.text for piece in own) == f"{index}!"
            assert [token_id for piece in own for token_id in piece.token_ids] == [index, index, 50]
        (report,) = client.reports
        assert report["choices"] == [
            {"index": index, "finish_reason": "stop", "output_tokens": 3} for index in range(3)
        ]
        assert report["usage"]["output_tokens"] == 9
        assert report["usage"]["cached_tokens"] == 3, "what every answer got"
        assert report["caches"]["prefix"] == {"lookups": 1, "hits": 1, "saved_ms": 0.1, "tokens": 3}
        assert (len(models.encoded), report["pictures"]) == (1, ["encoded"])

    run(scenario())


def test_every_answer_gets_the_same_prompt_and_a_name_and_a_seed_of_its_own() -> None:
    async def scenario() -> None:
        models = Talkers()
        await door(models).answer(call("?", RED, n=3, temperature=1.0, seed=5), Client())
        first, *others = models.calls
        assert len({sent.request_key for sent in models.calls}) == 3
        for sent in others:
            assert sent.input_ids is first.input_ids
            assert sent.visual_tokens is first.visual_tokens
            assert (sent.media_keys, sent.scheduling) == (first.media_keys, first.scheduling)
        seeds = [json.loads(sent.sampling)["seed"] for sent in models.calls]
        assert seeds == [Sampling(seed=5).for_choice(index).seed for index in range(3)]
        assert seeds[0] == 5
        assert len(set(seeds)) == 3

    run(scenario())


def test_the_ledger_holds_a_place_and_keys_and_values_for_each_answer() -> None:
    async def peak(**fields: Any) -> dict[str, int]:
        chat = door(Talkers())
        await chat.answer(call("?", RED, max_tokens=10, **fields), Client())
        assert is_empty(chat)
        return dict(chat.figures().admission.peak)

    async def scenario() -> None:
        one, three = await peak(), await peak(n=3)
        times = {"requests", "output_tokens", "kv_bytes", "cross_kv_bytes"}
        assert three == {name: value * (3 if name in times else 1) for name, value in one.items()}
        prompt_tokens = one["text_tokens"] + one["visual_tokens"]
        assert three["kv_bytes"] == 3 * FAMILY.language.self_kv_bytes(prompt_tokens + 10, 4)

    run(scenario())


def test_more_answers_than_can_ever_have_a_place_are_refused() -> None:
    async def scenario() -> None:
        models = Talkers()
        chat = door(models, requests=2, queued=4)
        with pytest.raises(
            MediaTooLarge, match=r"requests = 3; limit: \[admission.capacity\] requests = 2; fix: .*\(n\)"
        ):
            await chat.answer(call("?", n=3), Client())
        with pytest.raises(InvalidRequest, match=r"n = 9; limit: \[text\] max_choices = 8"):
            await chat.answer(call("?", n=9), Client())
        await chat.answer(call("?", n=2), Client())
        assert is_empty(chat)

    run(scenario())


def test_one_cancel_stops_every_answer() -> None:
    async def scenario() -> None:
        models, client = Talkers(slow=(1, 2)), Client()
        chat = door(models)
        task = asyncio.create_task(chat.answer(call("?", n=3), client))
        while len(client.pieces) < 4:
            await asyncio.sleep(0.001)
        client.gone = True
        await task
        assert set(models.stopped) == {sent.request_key for sent in models.calls}
        reasons = [choice["finish_reason"] for choice in client.reports[0]["choices"]]
        assert reasons == ["stop", "cancelled", "cancelled"]
        assert is_empty(chat)

    run(scenario())


def test_one_answer_that_fails_ends_the_request_and_stops_the_others() -> None:
    async def scenario() -> None:
        models, client = Talkers(slow=(0, 2), fails=1), Client()
        chat = door(models)
        with pytest.raises(Unavailable):
            await chat.answer(call("?", n=3), client)
        first, _, last = models.calls
        assert set(models.stopped) == {first.request_key, last.request_key}
        assert client.reports == []
        assert is_empty(chat)

    run(scenario())


def test_a_task_that_is_cancelled_stops_the_language_model_before_it_gives_back_what_it_held() -> None:
    async def scenario() -> None:
        models = Talkers(slow=(0, 1))
        chat = door(models)
        held_at_stop: list[int] = []

        async def stop(request_key: bytes) -> None:
            held_at_stop.append(chat.figures().admission.held["requests"])
            models.stopped.append(request_key)

        models.stop = stop  # type: ignore[method-assign]
        client = Client()
        task = asyncio.create_task(chat.answer(call("?", n=2), client))
        while len(client.pieces) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(models.stopped) == {sent.request_key for sent in models.calls}
        assert held_at_stop == [2, 2]
        assert is_empty(chat)

    run(scenario())


def test_a_stop_on_its_way_arrives_although_the_request_has_ended_meanwhile() -> None:
    async def scenario() -> None:
        models, client = Talkers(slow=(0, 1)), Client()
        chat = door(models)
        go_on, arrived = asyncio.Event(), list[bytes]()

        async def stop(request_key: bytes) -> None:
            models.stopped.append(request_key)
            await go_on.wait()
            arrived.append(request_key)

        models.stop = stop  # type: ignore[method-assign]
        task = asyncio.create_task(chat.answer(call("?", n=2), client))
        while len(client.pieces) < 2:
            await asyncio.sleep(0.001)
        client.gone = True
        await task
        assert arrived == []
        go_on.set()
        while len(arrived) < 2:
            await asyncio.sleep(0.001)
        assert set(arrived) == {sent.request_key for sent in models.calls}

    run(scenario())


@pytest.mark.parametrize("error", [Unavailable("llm does not answer"), QueueFull("full")])
def test_a_stop_that_does_not_reach_the_language_model_is_no_error_of_the_request(error: Exception) -> None:
    async def scenario() -> None:
        models, client = Talkers(slow=(0,)), Client()
        chat = door(models)

        async def stop(request_key: bytes) -> None:
            models.stopped.append(request_key)
            raise error

        models.stop = stop  # type: ignore[method-assign]
        task = asyncio.create_task(chat.answer(call("?"), client))
        while not client.pieces:
            await asyncio.sleep(0.001)
        client.gone = True
        await task
        assert client.reports[0]["finish_reason"] == "cancelled"
        assert is_empty(chat)

    run(scenario())


def test_every_field_of_sampling_reaches_the_language_model() -> None:
    fields = {
        "max_tokens": 5,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "frequency_penalty": -1.5,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.2,
        "logit_bias": {"7": -100.0, "511": 3.5},
        "logprobs": True,
        "top_logprobs": 3,
        "seed": 3,
        "stop": ["."],
    }

    async def scenario() -> None:
        models = Talkers()
        await door(models).answer(call("?", **fields), Client())
        assert json.loads(models.calls[0].sampling) == fields
        sampling = Sampling.from_json(models.calls[0].sampling)
        assert sampling.logit_bias == {7: -100.0, 511: 3.5}

    run(scenario())


def test_fields_left_out_are_what_the_language_model_takes_when_they_are_left_out() -> None:
    async def scenario() -> None:
        models = Talkers()
        await door(models).answer(call("?", max_tokens=5), Client())
        assert Sampling.from_json(models.calls[0].sampling) == Sampling(max_tokens=5)

    run(scenario())


def test_an_id_outside_of_the_vocabulary_is_refused_at_the_door() -> None:
    async def scenario() -> None:
        models = Talkers()
        with pytest.raises(InvalidRequest, match="logit_bias names the id 512; limit: 0 to 511"):
            await door(models).answer(call("?", RED, logit_bias={"512": 1}), Client())
        with pytest.raises(InvalidRequest, match="min_tokens = 200; limit: max_tokens = 128; fix: lower min_tokens"):
            await door(models).answer(call("?", RED, min_tokens=200), Client())
        assert (models.encoded, models.calls) == ([], [])

    run(scenario())


def test_the_language_model_is_told_whose_request_it_is_and_what_is_left_of_its_deadline() -> None:
    async def scenario() -> None:
        models = Talkers()
        chat = door(models)
        await chat.answer(call("?", RED, cache_scope="s", deadline_ms=60_000), Client())
        await chat.answer(call("?", tenant="t", latency_class="batch"), Client())
        await chat.answer(call("?"), Client())
        media, batch, text = (json.loads(sent.scheduling) for sent in models.calls)
        left_ms = media.pop("deadline_ms")
        assert 0 < left_ms <= 60_000
        assert media == {"cache_scope": "s", "tenant": "s", "latency_class": "media"}
        assert batch == {"cache_scope": "", "tenant": "t", "latency_class": "batch", "deadline_ms": None}
        assert text["latency_class"] == "text"

    run(scenario())


def test_a_media_key_names_all_that_a_pictures_rows_depend_on_and_nothing_else() -> None:
    async def keys(*parts: str | bytes, **fields: Any) -> tuple[bytes, ...]:
        models = Talkers()
        await door(models).answer(call(*parts, **fields), Client())
        assert all(len(key) == 32 for key in models.calls[0].media_keys)
        return models.calls[0].media_keys

    async def scenario() -> None:
        red, blue, again = await keys("a", RED, "b", BLUE, "c", RED)
        assert red == again != blue
        assert await keys("other words", RED) == (red,)
        assert await keys("?", RED, cache_scope="s") != (red,)

    run(scenario())


def test_logprobs_are_those_of_openai() -> None:
    first = DETOKENIZER.token_bytes(300)

    class Tells(Models):
        async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
            top = ((300, -0.5), (6, float("-inf")))
            logprobs = (TokenLogprobs(token_id=300, logprob=-0.5, top=top), TokenLogprobs(token_id=6, logprob=-2.0))
            yield LlmEvent(text="", token_ids=(300, 6), logprobs=logprobs, end=None)
            yield LlmEvent(text="", token_ids=(), end=END)

    async def scenario() -> None:
        client = Client()
        await door(Tells()).answer(call("?", logprobs=True, top_logprobs=2), client)
        told, last = client.pieces
        assert told.logprobs is not None
        one, other = json.loads(told.logprobs)
        assert one == {
            "token": first.decode(),
            "logprob": -0.5,
            "bytes": list(first),
            "top_logprobs": [
                {"token": first.decode(), "logprob": -0.5, "bytes": list(first)},
                {"token": "<|end|>", "logprob": -9999.0, "bytes": list(b"<|end|>")},
            ],
        }
        assert (other["logprob"], other["top_logprobs"]) == (-2.0, [])
        assert last.logprobs is None

    run(scenario())


@pytest.mark.parametrize("n", [1, 2, 8])
def test_a_burst_of_requests_with_many_answers_leaves_nothing_behind(n: int) -> None:
    async def scenario() -> None:
        chat = door(Models(), requests=8, queued=64)
        clients = [Client() for _ in range(12)]
        await asyncio.gather(*(chat.answer(call("?", n=n), client) for client in clients))
        assert all(len(client.reports[0]["choices"]) == n for client in clients)
        assert is_empty(chat)

    run(scenario())


def test_demo_allows_no_more_answers_than_places() -> None:
    assert DEMO.text.max_choices <= (DEMO.admission.capacity.requests or 0)
