"""The responses of a door to one request, while a thread asks whether its client has left."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

from proteus.errors import InternalError
from tests.backend import triton

NAMES = [f"proteus.backend.{name}" for name in ("tensors", "guard")]
ARRAYS = {"text": np.array(["the end"])}


class SlowRequest(triton.Request):
    """Says whether its client has left when the test lets it, and must not be at its end then."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked, self.may_tell = threading.Event(), threading.Event()
        self._asks: list[None] = []

    @property
    def num_asked(self) -> int:
        return len(self._asks)

    def is_cancelled(self) -> bool:
        self._asks.append(None)
        self.asked.set()
        assert self.may_tell.wait(10)
        return super().is_cancelled()


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = triton.module()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    guard = importlib.import_module(NAMES[-1])
    yield guard
    guard.ASKING.shutdown()
    for name in NAMES:
        del sys.modules[name]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20))


async def asked_of(request: SlowRequest, responses: Any) -> asyncio.Task[bool]:
    looking = asyncio.create_task(responses.has_left())
    while not request.asked.is_set():
        await asyncio.sleep(0.001)
    return looking


def test_the_event_loop_goes_on_while_the_server_is_asked(guard: Any) -> None:
    async def scenario() -> None:
        request = SlowRequest()
        responses = guard.LoopResponses(request)
        looking = await asked_of(request, responses)
        responses.send(ARRAYS, final=False)
        assert request.answers == [ARRAYS]
        request.cancelled = True
        request.may_tell.set()
        assert await looking is True

    run(scenario())


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize(
    ("ends", "answers", "error"),
    [
        (lambda responses: responses.send(ARRAYS, final=True), [ARRAYS], ""),
        (lambda responses: responses.close(), [], ""),
        (lambda responses: responses.fail(InternalError()), [], str(InternalError())),
    ],
)
def test_the_last_response_waits_for_a_look_that_triton_would_crash_of(
    guard: Any, ends: Callable[[Any], None], answers: list[Any], error: str, is_awaited: bool
) -> None:
    async def scenario() -> None:
        request = SlowRequest()
        responses = guard.LoopResponses(request)
        looking = await asked_of(request, responses)
        if not is_awaited:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        ends(responses)
        responses.fail(InternalError())  # it has ended already
        assert not request.ended.is_set()
        request.may_tell.set()
        while not request.ended.is_set():
            await asyncio.sleep(0.001)
        assert (request.answers, request.error) == (answers, error)
        assert await responses.has_left() is False, "nothing is asked after the end"

    run(scenario())


async def all_threads_wait_for(request: SlowRequest, responses: Any) -> list[asyncio.Task[bool]]:
    looking = [asyncio.create_task(responses.has_left()) for _ in range(4)]  # twice as many as threads
    while request.num_asked < 2:
        await asyncio.sleep(0.001)
    return looking


def test_the_last_response_waits_for_every_look_that_has_begun_and_no_other_begins(guard: Any) -> None:
    async def scenario() -> None:
        request = SlowRequest()
        responses = guard.LoopResponses(request)
        *looking, last = await all_threads_wait_for(request, responses)
        last.cancel()
        responses.send(ARRAYS, final=True)
        assert not request.ended.is_set()
        request.may_tell.set()
        assert await asyncio.gather(*looking) == [False, False, False]
        while not request.ended.is_set():
            await asyncio.sleep(0.001)
        assert (request.answers, request.num_asked, last.cancelled()) == ([ARRAYS], 2, True)

    run(scenario())


def test_the_last_response_does_not_wait_for_looks_at_others(guard: Any) -> None:
    async def scenario() -> None:
        other, request = SlowRequest(), SlowRequest()
        looking = await all_threads_wait_for(other, guard.LoopResponses(other))
        responses = guard.LoopResponses(request)
        looking.append(asyncio.create_task(responses.has_left()))
        await asyncio.sleep(0)
        responses.send(ARRAYS, final=True)
        assert (request.answers, request.ended.is_set()) == ([ARRAYS], True)
        other.may_tell.set()
        assert await asyncio.gather(*looking) == [False] * 5
        assert request.num_asked == 0

    run(scenario())


def test_a_look_that_found_no_thread_is_not_made_up_for_after_the_end(
    guard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        request = SlowRequest()
        responses = guard.LoopResponses(request)
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="new thread"):
                await responses.has_left()
        responses.close()
        assert await guard.LoopResponses(triton.Request({})).has_left() is False
        assert (request.num_asked, request.ended.is_set()) == (0, True)

    run(scenario())


def test_a_look_without_an_end_ends_the_process(guard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    monkeypatch.setattr(guard, "STANDSTILL_S", 0.01)
    monkeypatch.setattr(guard, "end_process", lambda: ends.append(1))

    async def scenario() -> None:
        request = SlowRequest()
        responses = guard.LoopResponses(request)
        await asked_of(request, responses)
        await asyncio.sleep(0.05)
        assert not ends, "nobody waits for it yet"
        responses.close()
        while not ends:
            await asyncio.sleep(0.001)
        request.may_tell.set()

    run(scenario())


def test_arrays_that_are_none_of_triton_leave_the_stream_open_for_the_error(guard: Any) -> None:
    request = triton.Request({})
    responses = guard.Responses(request)

    def tensor(name: str, array: Any) -> None:
        raise ValueError("an array of objects")

    guard.tensors.__globals__["pb_utils"].Tensor = tensor
    with guard.responding(responses):
        responses.send(ARRAYS, final=True)
    assert (request.answers, request.error, request.ended.is_set()) == ([], str(InternalError()), True)
