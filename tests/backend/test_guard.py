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

    def is_cancelled(self) -> bool:
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


def test_the_last_response_waits_for_every_look(guard: Any) -> None:
    async def scenario() -> None:
        request = SlowRequest()
        responses = guard.LoopResponses(request)
        looking = [await asked_of(request, responses) for _ in range(4)]  # twice as many as threads
        looking.pop().cancel()  # before it had a thread
        responses.send(ARRAYS, final=True)
        request.may_tell.set()
        assert await asyncio.gather(*looking) == [False, False, False]
        while not request.ended.is_set():
            await asyncio.sleep(0.001)
        assert request.answers == [ARRAYS]

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
