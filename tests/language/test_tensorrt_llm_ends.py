"""How requests end in the engine on TensorRT-LLM: stopped, aborted, failed, or dropped there without a word."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import pytest

from proteus.errors import InternalError
from proteus.language.sampling import Sampling
from proteus.language.tensorrt_llm_engine import MAX_FAILURES, TensorRtLlmEngine
from tests.language.clients import PATIENCE_S, PROMPT, Client, ask, assert_empty


@pytest.fixture
def engine(tensorrt_llm_engine: TensorRtLlmEngine) -> TensorRtLlmEngine:
    return tensorrt_llm_engine


def test_a_stop_string_ends_the_work_too(engine: TensorRtLlmEngine) -> None:
    whole = ask(engine, PROMPT, max_tokens=100)
    ask(engine, PROMPT, max_tokens=100, stop=[whole.text[4:6]])
    assert ask(engine, PROMPT, max_tokens=3).finish.reason == "length"
    assert_empty(engine)
    until_s = time.monotonic() + PATIENCE_S
    while engine._llm._executor._active and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not engine._llm._executor._active


def test_an_end_that_tensorrt_llm_keeps_to_itself_ends_the_answer(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = sys.modules["tensorrt_llm.executor"].Executor
    say = executor._say

    def hidden(self: Any, item: Any, token_ids: list[int], logprobs: list[Any], reason: str | None) -> None:
        say(self, item, [] if reason == "stop" else token_ids, logprobs, reason)

    monkeypatch.setattr(executor, "_say", hidden)
    whole = ask(engine, PROMPT, max_tokens=6).ids
    client = ask(engine, PROMPT, max_tokens=6, stop_token_ids=[whole[3]])
    assert (client.ids, client.finish.reason) == (whole[:3], "stop")


def ended_by(kind: str, client: Client) -> str:
    if kind == "cancel":
        client.on_event = lambda _: client.cancel()
    return str(client.submit().wait().finish.reason)


@pytest.mark.parametrize(("kind", "reason"), [("cancel", "cancelled"), ("stop string", "stop"), ("length", "length")])
def test_who_has_ended_is_told_also_where_the_abort_fails(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, reason: str
) -> None:
    def broken(self: Any) -> None:
        raise RuntimeError("the worker is gone")

    caplog.set_level(logging.CRITICAL)
    whole = ask(engine, PROMPT, max_tokens=40)
    monkeypatch.setattr(sys.modules["tensorrt_llm.executor"].RequestOutput, "abort", broken)
    stop = (whole.text[4:6],) if kind == "stop string" else ()
    tokens = 5 if kind == "length" else 40
    assert ended_by(kind, Client(engine, PROMPT, Sampling(max_tokens=tokens, stop=stop))) == reason
    assert ask(engine, PROMPT, max_tokens=3).finish.reason == "length"
    assert_empty(engine)


def test_what_tensorrt_llm_ended_itself_is_not_aborted(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(sys.modules["tensorrt_llm.executor"].RequestOutput, "abort", aborted.append)
    whole = ask(engine, PROMPT, max_tokens=6)
    ask(engine, PROMPT, max_tokens=6, stop_token_ids=[whole.ids[2]])
    assert not aborted


def test_an_aborted_request_that_is_dropped_without_a_word_is_not_followed_for_ever(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = sys.modules["tensorrt_llm.executor"].Executor
    say = executor._say

    def silent(self: Any, item: Any, token_ids: list[int], logprobs: list[Any], reason: str | None) -> None:
        if reason != "cancelled":
            say(self, item, token_ids, logprobs, reason)

    monkeypatch.setattr(executor, "_say", silent)
    monkeypatch.setattr("proteus.language.tensorrt_llm_engine.ABORTED_S", 0.05)
    assert ended_by("cancel", Client(engine, PROMPT, Sampling(max_tokens=100))) == "cancelled"
    until_s = time.monotonic() + PATIENCE_S
    while engine._followed and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not engine._followed
    assert ask(engine, PROMPT, max_tokens=3).finish.reason == "length"


def test_a_failed_request_is_its_own_and_many_in_a_row_end_the_engine(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error")

    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(engine._llm, "generate_async", broken)
    for _ in range(MAX_FAILURES):
        assert isinstance(Client(engine, PROMPT).submit().wait().failure.error, InternalError)
    engine._thread.join(PATIENCE_S)
    assert not engine.is_alive
